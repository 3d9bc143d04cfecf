"""How many ops a second does the SimPy engine run, and does its cost grow linearly?

1F1B with a latency on every hop; the spans are recorded, the DataFrame is not built. Prints a
table and writes it to benchmarks/results.md with the processor's name.
"""

import argparse
import platform
import statistics
from pathlib import Path
from time import perf_counter

import pipesim as ps
from pipesim.text_table import text_table

RESULTS = Path(__file__).parent / "results.md"
SIZES = ((8, 32), (16, 256), (32, 2048), (64, 4096))
LATENCY_MS = 0.1


def main(quick: bool = False) -> None:
    rates = {(p, m): rate(p, m, repeats=1 if quick else 3) for p, m in SIZES[: 2 if quick else 4]}
    smallest = next(iter(rates.values()))
    columns = {
        "p": [str(p) for p, _ in rates],
        "m": [str(m) for _, m in rates],
        "ops": [f"{2 * p * m:,}" for p, m in rates],
        "ops/s": [f"{value:,.0f}" for value in rates.values()],
        "ratio": [f"{value / smallest:.2f}" for value in rates.values()],
    }
    table = text_table(columns)
    print(f"SimPy engine, 1F1B, latency on every hop, trace recorded; {processor()}\n\n{table}")
    if not quick:
        RESULTS.write_text(
            "# Results\n\nWritten by `make bench`. Medians of three runs in one process; a ratio\n"
            "is ops/s over those of the smallest size: 1 would be exactly linear.\n\n"
            f"{processor()}, Python {platform.python_version()}\n\n## SimPy engine\n\n"
            f"1F1B, latency on every hop, spans recorded, no DataFrame.\n\n```\n{table}\n```\n"
        )
        print(f"\nwrote {RESULTS.relative_to(RESULTS.parent.parent)}")


def rate(ranks: int, microbatches: int, repeats: int) -> float:
    """Return the median ops a second of a whole `simulate`, schedule given."""
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=ranks, latency_ms=LATENCY_MS)
    schedule = ps.build_schedule("1f1b", ranks, microbatches)
    rates = []
    ps.simulate(pipe, "1f1b", 1)  # imports and first calls are not what is measured
    for _ in range(repeats):
        begin = perf_counter()
        ps.simulate(pipe, schedule)
        rates.append(len(schedule) / (perf_counter() - begin))
    return statistics.median(rates)


def processor() -> str:
    """Return the processor's name as the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the two small sizes, once")
    main(parser.parse_args().quick)
