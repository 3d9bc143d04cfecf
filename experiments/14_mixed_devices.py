"""One fast device among slow ones: how many layers does it get, and where does it go?

32 equal layers, F = 1 and B = 2 each on a slow device; one device is 989/155 = 6.4 times as fast
as the four others. Splits that look proportional leave it waiting: with 9 or with 7 layers on it
a slow device with 7 of them sets the pace, 7/155. With [20, 3, 3, 3, 3] it is 20/989: 2.2 times as
fast, and within 2 % of the ideal. Under 1F1B:

    place     min-max takes equally long, to 1.5 %, wherever the fast device is, for all stages take
              about equally long. With 8 micro-batches there is more to gain the earlier it is: in
              front [23, 1, 3, 3, 2] takes 10 % less, at the end nothing does; with 32 nowhere
    memory    rank r holds p - r micro-batches of its layers. In front the fast device needs room
              for the activations of 5 x 20 layers, at the end for 20: where room is short it goes
              last, and a free order finds that
    order     of two fast and two slow devices with six layers each the slow ones belong in front,
              56 instead of 60 ms; with 8 and 4 layers it makes no difference, 44 ms either way
"""

import argparse
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

import pipesim as ps
from pipesim.plot.style import CURVES

OUT = Path(__file__).parent.parent / "out"

LAYERS = 32
FAST, SLOW = 989, 155  # speeds, TFLOP/s of the two kinds
DEVICES = 5
MICROBATCHES = (8, 32)
PROPOSED = {"proposed": (9, 7, 7, 5, 4), "equal": (7, 7, 6, 6, 6)}
ROOMS = range(8, 111)  # layers' activations of one micro-batch that a device has room for
QUICK_ROOMS = range(8, 111, 12)
ROOM_MICROBATCHES = 32


def main(quick: bool = False) -> tuple[pd.DataFrame, pd.DataFrame]:
    profile = ps.LayerProfile(
        forward_ms=[1.0] * LAYERS, backward_ms=[2.0] * LAYERS, stash_bytes=[1] * LAYERS
    )
    print(f"slowest stage of {LAYERS} layers on speeds {FAST}, {', '.join([str(SLOW)] * 4)}:")
    best = tuple(len_of(stage) for stage in ps.partition(profile, DEVICES, speed=speeds(0)).stages)
    for name, counts in {**PROPOSED, "min-max": best}.items():
        pace = max(n / v for n, v in zip(counts, (FAST, *[SLOW] * 4), strict=True))
        print(f"  {name:9} {list(counts)!s:20} {pace:.4f}")
    print(f"  {'ideal':30} {LAYERS / (FAST + 4 * SLOW):.4f}\n")
    print_order_of_two_and_two()
    places = at_every_place(profile)
    print("step ms with the fast device at each place")
    print(places.to_string(index=False, float_format="{:.2f}".format), end="\n\n")
    rooms = with_room(profile, QUICK_ROOMS if quick else ROOMS)
    enough = {
        place: rows.room[rows.step_ms.notna()].min() for place, rows in rooms.groupby("fast device")
    }
    whole = {
        place: rows.room[rows.step_ms <= rows.step_ms.min() * 1.01].min()
        for place, rows in rooms.groupby("fast device")
    }
    for place in enough:
        print(
            f"fast device {place}: fits from {enough[place]} layers' activations a device, "
            f"within 1 % of any from {whole[place]}"
        )
    draw(places, rooms)
    return places, rooms


def speeds(place: int) -> list[float]:
    """Return the speeds with the fast device at one place, in those of a slow one."""
    return [FAST / SLOW if rank == place else 1.0 for rank in range(DEVICES)]


def len_of(stage: ps.Stage) -> int:
    return round(stage.forward_ms)  # every layer takes 1


def print_order_of_two_and_two() -> None:
    """Print what the order of two fast and two slow devices does to 1F1B with 8 micro-batches."""
    profile = ps.LayerProfile(forward_ms=[1.0] * 24, backward_ms=[2.0] * 24)
    print("step ms of two fast and two slow devices, half as fast, 8 micro-batches, 1F1B:")
    for name, speed in (("slow last", (6, 6, 3, 3)), ("slow first", (3, 3, 6, 6))):
        equal = ps.simulate(profile.split([6, 6, 6, 6], speed=speed), "1f1b", 8)
        fair = ps.simulate(ps.partition(profile, 4, speed=speed), "1f1b", 8)
        print(f"  {name:10} 6 layers each {equal.makespan:g}, by speed {fair.makespan:g}")
    print()


def at_every_place(profile: ps.LayerProfile) -> pd.DataFrame:
    """Return step times with the fast device at each place, by split."""
    rows = []
    for m in MICROBATCHES:
        for place in range(DEVICES):
            speed = speeds(place)
            fair = ps.partition(profile, DEVICES, speed=speed)
            counts = tuple(len_of(stage) for stage in fair.stages)
            found = ps.refine_split(profile, counts, "1f1b", m, speed=speed)
            equal = ps.simulate(profile.split(PROPOSED["equal"], speed=speed), "1f1b", m)
            rows.append(
                {
                    "m": m,
                    "place": place,
                    "equal": equal.makespan,
                    "min_max": ps.simulate(fair, "1f1b", m).makespan,
                    "refined": found.run.makespan,
                    "refined_split": "/".join(map(str, found.counts)),
                }
            )
    return pd.DataFrame(rows)


def with_room(profile: ps.LayerProfile, rooms: range) -> pd.DataFrame:
    """Return step times where every device has room for so much, NaN where nothing fits."""
    m = ROOM_MICROBATCHES
    held = ps.build_schedule("1f1b", DEVICES, m).peak_in_flight()
    ways = {
        "first": {"speed": speeds(0)},
        "last": {"speed": speeds(DEVICES - 1)},
        "anywhere": {"speed": speeds(0), "free_order": True},
    }
    rows = []
    for place, how in ways.items():
        for room in rooms:
            try:
                pipe = ps.partition(profile, DEVICES, memory_bytes=room, in_flight=held, **how)
            except ValueError:
                rows.append({"fast device": place, "room": room, "step_ms": None})
                continue
            step = ps.simulate(pipe, "1f1b", m, engine="replay").makespan
            rows.append({"fast device": place, "room": room, "step_ms": step})
    table = pd.DataFrame(rows)
    return table.assign(step_ms=table.step_ms.astype(float))


def draw(places: pd.DataFrame, rooms: pd.DataFrame) -> None:
    import matplotlib.pyplot as plt

    figure, (at_place, over_room) = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
    ideal = 3 * LAYERS * SLOW / (FAST + 4 * SLOW)
    for (m, rows), line in zip(places.groupby("m", sort=False), ("-", "--"), strict=True):
        for column, (colour, marker) in zip(("equal", "min_max", "refined"), CURVES, strict=False):
            at_place.plot(
                rows.place,
                rows[column] / (m * ideal),
                color=colour,
                marker=marker,
                ls=line,
                ms=5,
                label=f"{column.replace('_', '-')}, m = {m}",
            )
    tidy(at_place, "1F1B: where the fast device is", "place of the fast device")
    at_place.set_xticks(range(DEVICES))
    at_place.set_ylabel("step / step of a perfect split without bubble")
    at_place.legend(frameon=False, fontsize=8, ncols=2, handlelength=4)
    for (place, rows), (colour, marker), line in zip(
        rooms.groupby("fast device", sort=False), CURVES, ("-", "-", "--"), strict=False
    ):
        over_room.plot(
            rows.room,
            rows.step_ms,
            color=colour,
            marker=marker,
            ls=line,
            ms=4,
            markevery=(0 if line == "-" else 3, 6),
            label=f"fast device {place}",
        )
    title = f"1F1B: min-max split within memory, m = {ROOM_MICROBATCHES}"
    tidy(over_room, title, "room of every device [activations of a layer]")
    over_room.set_ylabel("step [ms]")
    over_room.legend(frameon=False, fontsize=9)
    ps.plot.save(at_place, OUT / "14_mixed_devices.png")
    plt.close(figure)
    print("\nwrote out/14_mixed_devices.png")


def tidy(ax: Axes, title: str, x: str) -> None:
    ax.set_title(title, fontsize=10)
    ax.set_xlabel(x)
    ax.set_ylim(bottom=0)
    ax.grid(alpha=0.3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few sizes of memory")
    main(parser.parse_args().quick)
