"""One link of a pipeline is slow: where does it hurt most, and when does it begin to?

Equal stages on 8 ranks, 32 micro-batches, F = 1 and B = 2 a rank. No transfer takes any time but
those over one link, in both directions: a latency c from 0 to six forwards. The step is longer by

    GPipe         2c wherever the link is: it delays the first forward and the last backward
    1F1B          2c (1 + floor((m - w) / 2)) from the start, w = p - 1 - r the warm-up of rank r
                  before the link: 26c at the first link, 32c at the last, for two micro-batches
                  share a round trip. All 7 links as slow cost 68c, one alone nearly half of that
    eager 1F1B    2c as long as its warm-up, w = 2 (p - 1 - r), hides the link: up to c = 1.5 at the
                  last and 2.5 at the first. Each ms beyond costs 2 (1 + floor((m - w + 1) / 3)),
                  22 ms at the last and 14 at the first: three share a round trip
    interleaved   4c up to c = 0.75 at the last and 0.79 at the first, for a link is two boundaries.
                  Each ms beyond costs 40 ms at the last and, in the end, 32 at the first

So it hurts most at the last link, and there it begins first: the early ranks send their warm-up
ahead and go to and fro for fewer micro-batches. The way from the last rank back to the first, which
only interleaving takes, costs about half as much. The two derivatives of `run.sensitivity` by the
latencies of a link add up to the slope that is measured.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

import pipesim as ps
from pipesim.plot.style import CURVES

OUT = Path(__file__).parent.parent / "out"

SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "1f1b_eager": "eager 1F1B",
    "interleaved": "interleaved (v = 2)",
}
RANKS, MICROBATCHES = 8, 32
FORWARD_MS, BACKWARD_MS = 1.0, 2.0  # of a rank; interleaved, of its two stages together
MOST_MS = 6.0  # latency
STEPS, QUICK_STEPS = 144, 24  # from no latency to the most
COMPARED_MS = 3.0  # latency at which the places are compared
MARKS = 12  # latencies at which run.sensitivity is drawn


def main(quick: bool = False) -> tuple[pd.DataFrame, pd.DataFrame]:
    points = pd.concat([sweep(name, QUICK_STEPS if quick else STEPS) for name in SCHEDULES])
    links = points.groupby(["schedule", "link"], sort=False).apply(read_curve).reset_index()
    print(
        f"{RANKS} ranks, {MICROBATCHES} micro-batches, F = {FORWARD_MS:g}, B = {BACKWARD_MS:g} ms"
    )
    print("slopes: ms of step time a ms of latency, measured and by run.sensitivity\n")
    print(links.to_string(index=False, float_format="{:.2f}".format), end="\n\n")
    OUT.mkdir(parents=True, exist_ok=True)
    points.to_csv(OUT / "10_slow_link.csv", index=False)
    draw(points)
    print("wrote out/10_slow_link.csv, out/10_slow_link.png")
    return points, links


def sweep(name: str, steps: int) -> pd.DataFrame:
    """Return the step time of a schedule, one row a slow link and its latency."""
    schedule = ps.build_schedule(name, RANKS, MICROBATCHES)
    links = RANKS if name == "interleaved" else RANKS - 1  # with the way back to the first rank
    table = pd.MultiIndex.from_product(
        [[name], range(links), np.linspace(0.0, MOST_MS, steps + 1)],
        names=["schedule", "link", "latency_ms"],
    ).to_frame(index=False)
    pipelines = [
        pipeline(name, link, c) for link, c in zip(table.link, table.latency_ms, strict=True)
    ]
    table["step_ms"] = ps.simulate_many(schedule, pipelines)["makespan_ms"]
    table["added_ms"] = table.step_ms - table.step_ms[0]  # the first has no latency
    return table


def pipeline(name: str, link: int, latency: float) -> ps.Pipeline:
    """Return equal stages with one slow link, from rank `link` to the next and back."""
    chunks = 2 if name == "interleaved" else 1
    ends = link, (link + 1) % RANKS
    return ps.Pipeline.from_costs(
        FORWARD_MS / chunks,
        BACKWARD_MS / chunks,
        stages=RANKS * chunks,
        ranks=RANKS,
        latency_ms={ends: latency, ends[::-1]: latency},
    )


def sensitivity(name: str, link: int, latency: float) -> float:
    """Return what the step gains for each ms that is taken off both directions of the link."""
    pipe = pipeline(name, link, latency)
    table = ps.simulate(pipe, name, MICROBATCHES, engine="replay").sensitivity
    there, back = link, (link + 1) % RANKS
    names = [f'links.latency_ms."{a}->{b}"' for a, b in ((there, back), (back, there))]
    return float(table.gain_ms[table.parameter.isin(names)].sum())


def read_curve(rows: pd.DataFrame) -> pd.Series:
    """Return the slopes of one curve at its ends, and where the first slope stops to hold."""
    name, link = rows.name
    c, added = rows.latency_ms.to_numpy(), rows.added_ms.to_numpy()
    slopes = np.diff(added) / np.diff(c)
    straight = np.isclose(slopes, slopes[0], rtol=1e-9)
    middle = (c[1:] + c[:-1]) / 2
    return pd.Series(
        {
            "first_slope": slopes[0],
            "first_sensitivity": sensitivity(name, link, middle[0]),
            "until_ms": c[-1] if straight.all() else c[np.argmin(straight)],
            "last_slope": slopes[-1],
            "last_sensitivity": sensitivity(name, link, middle[-1]),
        }
    )


def draw(points: pd.DataFrame) -> None:
    """Draw step time over latency, over the place of the link, and slopes over latency."""
    import matplotlib.pyplot as plt

    figure, (over, places, slopes) = plt.subplots(1, 3, figsize=(12.5, 4.4), layout="constrained")
    last = RANKS - 2
    for (name, rows), (colour, marker) in zip(
        points.groupby("schedule", sort=False), CURVES, strict=False
    ):
        look = {"color": colour, "marker": marker, "ms": 5}
        at_last = rows[rows.link == last]
        every = max(1, (len(at_last) - 1) // MARKS)
        over.plot(
            at_last.latency_ms,
            at_last.added_ms,
            markevery=every,
            label=SCHEDULES[str(name)],
            **look,
        )
        here = rows[np.isclose(rows.latency_ms, COMPARED_MS)]
        row, back = here[here.link < RANKS - 1], here[here.link == RANKS - 1]
        places.plot(row.link, row.added_ms, **look)
        places.plot(back.link, back.added_ms, ls="", **look)
        draw_slopes(slopes, at_last, look)
    label(over, f"the link between ranks {last} and {last + 1} is slow")
    over.set_ylabel("step longer by [ms]")
    over.legend(frameon=False, fontsize=9)
    label(places, f"one link of {COMPARED_MS:g} ms, at each place")
    places.set_xlabel("slow link: between ranks")
    places.set_xticks(
        range(RANKS), [f"{link}, {(link + 1) % RANKS}" for link in range(RANKS)], fontsize=9
    )
    places.set_ylabel("step longer by [ms]")
    label(slopes, "slope: lines measured, marks run.sensitivity")
    slopes.set_ylabel("ms of step time a ms of latency")
    figure.suptitle(
        f"One slow link: p = {RANKS}, m = {MICROBATCHES}, "
        f"F = {FORWARD_MS:g} ms, B = {BACKWARD_MS:g} ms a rank",
        fontsize=11,
    )
    ps.plot.save(over, OUT / "10_slow_link.png")
    plt.close(figure)


def draw_slopes(ax: Axes, rows: pd.DataFrame, look: dict) -> None:
    """Draw the measured slope at the last link as steps, and what run.sensitivity says."""
    name, link = rows.schedule.iloc[0], rows.link.iloc[0]
    c = rows.latency_ms.to_numpy()
    ax.stairs(np.diff(rows.added_ms) / np.diff(c), c, baseline=None, color=look["color"], lw=1.2)
    every = max(1, (len(c) - 1) // MARKS)
    first = list(SCHEDULES).index(name) * every // len(SCHEDULES)  # that none hides another
    middle = ((c[1:] + c[:-1]) / 2)[first::every]
    ax.plot(middle, [sensitivity(name, link, x) for x in middle], ls="", **look)


def label(ax: Axes, title: str) -> None:
    ax.set_title(title, fontsize=10)
    ax.set_xlabel("latency of the link, each way [ms]")
    ax.set_ylim(bottom=0)
    ax.grid(alpha=0.3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} latencies a link")
    main(parser.parse_args().quick)
