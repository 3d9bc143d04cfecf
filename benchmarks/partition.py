"""How fast is the exact partition?

1,000 layers on 64 devices of different speeds: in a given order, without and with a memory limit;
on devices of two kinds in any order; and how long a refinement by simulation takes.

Prints the table, and writes it to benchmarks/partition.md with the processor's name.
"""

import argparse
import platform
from pathlib import Path

import numpy as np
from engine import processor, seconds

import pipesim as ps
from pipesim.base.text import text_table
from pipesim.pipeline.components import Device
from pipesim.pipeline.partition.device_order import device_order
from pipesim.pipeline.partition.partition import fair_split
from pipesim.pipeline.placement import linear_placement

RESULTS = Path(__file__).parent / "partition.md"
LAYERS, DEVICES, MICROBATCHES = 1000, 64, 128
REFINED_LAYERS, REFINED_DEVICES = 160, 16
MOST_HELD = 1.05  # memory of a device, of what the fullest needs at the least


def main(quick: bool = False) -> None:
    random = np.random.default_rng(1)
    profile = layer_profile(random, LAYERS)
    speeds = random.uniform(0.5, 2.0, DEVICES)
    placement = linear_placement(DEVICES)
    free = [Device(speed) for speed in speeds]
    held = ps.build_schedule("1f1b", DEVICES, MICROBATCHES).peak_in_flight()
    least = fair_split(profile, placement, free, by="layers")
    room = round(MOST_HELD * max(n * count for n, count in zip(held, least, strict=True)))
    tight = [Device(speed, memory_bytes=room) for speed in speeds]
    two = [Device(1.0 + (number % 2)) for number in range(DEVICES)]
    repeats = 1 if quick else 5
    times = {
        "given order": seconds(lambda: fair_split(profile, placement, free), repeats),
        "within memory": seconds(
            lambda: fair_split(profile, placement, tight, in_flight=held), repeats
        ),
    }
    if not quick:
        times["free order, two kinds"] = seconds(lambda: device_order(profile, placement, two), 1)
        small = layer_profile(random, REFINED_LAYERS)
        start = ps.min_max_split(small.total_ms(), REFINED_DEVICES)
        size = f"refined, {REFINED_LAYERS} layers on {REFINED_DEVICES} devices"
        times[size] = seconds(lambda: ps.refine_split(small, start, "1f1b", MICROBATCHES), 1)
    cells = {"": list(times), "ms": [f"{1e3 * time:,.1f}" for time in times.values()]}
    table = f"{LAYERS:,} layers on {DEVICES} devices\n\n{text_table(cells, left=('',))}"
    print(f"{table}\n\n{processor()}")
    if not quick:
        head = f"# Partition\n\nWritten by `make bench`.\n\n{processor()}, Python "
        RESULTS.write_text(f"{head}{platform.python_version()}, one core\n\n```\n{table}\n```\n")
        print(f"\nwrote {RESULTS.relative_to(RESULTS.parent.parent)}")


def layer_profile(random: np.random.Generator, layers: int) -> ps.LayerProfile:
    forward = random.uniform(0.5, 1.5, layers)
    return ps.LayerProfile(
        forward_ms=forward.tolist(), backward_ms=(2 * forward).tolist(), stash_bytes=[1] * layers
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one partition each")
    main(parser.parse_args().quick)
