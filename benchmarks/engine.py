"""How fast are the engines, do costs grow linearly, where does the time of a large run go?

1F1B, interleaved 1F1B (4 chunks a rank) and ZB-H1 with unequal stages and a latency on every hop:

    simpy      ops a second of `simulate` with the SimPy engine, spans recorded, no DataFrame
    one set    ops a second of the replay engine's steps for one cost set
    K = 1 ...  ops times cost sets a second, K cost sets through the same steps at once
    nothing    from nothing to a Run with the replay engine: schedule, program and run

Prints the tables, and writes them to benchmarks/results.md with the processor's name.
"""

import argparse
import platform
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import pipesim as ps
from pipesim.base.text import text_table
from pipesim.engine.graph.event_graph import event_graph
from pipesim.engine.op_costs import messages_of, op_times
from pipesim.engine.replay.cost_index import cost_index
from pipesim.engine.replay.plan_kernels import run_once
from pipesim.engine.replay.replay import make_plan
from pipesim.schedules.families.registry import FAMILIES

RESULTS = Path(__file__).parent / "results.md"
SIZES = ((8, 32), (16, 256), (32, 2048), (64, 4096))
SCHEDULES: dict[str, dict[str, Any]] = {"1f1b": {}, "interleaved": {"chunks": 4}, "zb_h1": {}}
SETS = (1, 64, 1024)
LATENCY_MS = 0.1
LARGE = (1024, 8192)  # ranks, micro-batches
MEMORY = """
Most of it is memory: some thirty arrays of 67 to 134 MB each are touched for the first time, and
the places of all ranks in ten of them are more pages than a processor keeps at hand."""


def main(quick: bool = False) -> None:
    sizes = SIZES[: 2 if quick else 4]
    tables = {name: table_of(name, sizes, 1 if quick else 3) for name in SCHEDULES}
    for name, table in tables.items():
        print(f"{name}; {processor()}\n\n{table}\n")
    large = "" if quick else large_run()
    print(large)
    if not quick:
        text = [
            "# Results\n",
            "Written by `make bench`: medians of three in one process, compilation left out.",
            "`simpy`: ops/s of `simulate`, spans recorded, no DataFrame; `one set`: ops/s of the",
            "replay engine's steps for one cost set; `K = ...`: ops x cost sets a second, K at",
            "once; `nothing`: seconds from nothing to a Run with the replay engine.\n",
            f"{processor()}, Python {platform.python_version()}, one core\n",
        ]
        text += [f"## {name}\n\n```\n{table}\n```\n" for name, table in tables.items()]
        ranks, microbatches = LARGE
        text.append(f"## 1F1B, {ranks} ranks, {microbatches} micro-batches\n\n```\n{large}\n```")
        text.append(MEMORY)
        RESULTS.write_text("\n".join(text) + "\n")
        print(f"\nwrote {RESULTS.relative_to(RESULTS.parent.parent)}")


def table_of(name: str, sizes: tuple[tuple[int, int], ...], repeats: int) -> str:
    rows = [row(name, p, m, repeats) for p, m in sizes]
    return text_table({key: [row[key] for row in rows] for key in rows[0]})


def row(name: str, ranks: int, microbatches: int, repeats: int) -> dict[str, str]:
    """Return the rates of one schedule at one size, as text."""
    options = SCHEDULES[name]
    pipe = pipeline(ranks, options.get("chunks", 1))
    schedule = ps.build_schedule(name, ranks, microbatches, **options)
    program = ps.lower(schedule, "eager")
    times = op_times(schedule, [pipe])
    entries = times.duration.shape[1]
    index = cost_index(program, times.entry, entries, wires=False)
    plan = make_plan(event_graph(program, wires=False), index)
    costs = index.cost_sets(times.duration, *messages_of(program, [pipe], index.messages))
    steps = plan.a, plan.b, plan.w, plan.c
    one, value = np.ascontiguousarray(costs[:, 0]), np.empty(len(plan) + 1)

    def from_nothing() -> None:
        # Not `build_schedule`, which would hand out the same one again.
        built = FAMILIES[name].build(schedule.placement, microbatches)
        ps.simulate(pipe, built, engine="replay")

    ops = len(schedule)
    cells = {
        "p": str(ranks),
        "m": str(microbatches),
        "ops": f"{ops:,}",
        "simpy": f"{ops / seconds(lambda: ps.simulate(pipe, schedule), repeats) / 1e3:,.0f} k/s",
        "one set": rate(ops, seconds(lambda: run_once(*steps, one, value), 5)),
    }
    for sets in SETS:
        many = np.repeat(costs, sets, axis=1)
        time = seconds(lambda many=many: plan.run(many), repeats)  # type: ignore[misc]
        cells[f"K = {sets}"] = rate(ops * sets, time)
    return cells | {"nothing": f"{seconds(from_nothing, repeats):.4f} s"}


def large_run() -> str:
    """Return where the time of a run of 16.8 million ops goes, in a process of its own."""
    command = [sys.executable, __file__, "--large"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.rstrip()


def large_steps() -> None:
    ranks, microbatches = LARGE
    ps.simulate(pipeline(2), "1f1b", 2, engine="replay")  # load what is compiled
    pipe = pipeline(ranks)
    begin = perf_counter()
    state: dict[str, Any] = {}

    def step(what: str, work: Callable[[], Any]) -> None:
        start = perf_counter()
        state[what] = work()
        print(f"{what:36}{perf_counter() - start:6.2f} s")

    step("build the schedule", lambda: ps.build_schedule("1f1b", ranks, microbatches))
    schedule = state["build the schedule"]
    step("simulate", lambda: ps.simulate(pipe, schedule, engine="replay"))
    run = state["simulate"]
    step("busy and idle times", lambda: run.rank_times)
    step("equal stages, for the inflation", lambda: run.inflation)
    step("lower bound", lambda: run.lower_bound)
    step("the rest of the summary", run.summary)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{'all, ' + format(len(schedule), ',') + ' ops':36}{perf_counter() - begin:6.2f} s")
    print(f"{'memory at most':36}{peak:6.2f} GiB")


def pipeline(ranks: int, chunks: int = 1) -> ps.Pipeline:
    stages = ranks * chunks
    return ps.Pipeline.from_costs(
        forward=[1.0 + stage / (4 * stages) for stage in range(stages)],
        input_grad=1.0,
        weight_grad=0.9,
        ranks=ranks,
        latency_ms=LATENCY_MS,
    )


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median time of some calls, after one that does not count."""
    work()
    times = []
    for _ in range(repeats):
        begin = perf_counter()
        work()
        times.append(perf_counter() - begin)
    return statistics.median(times)


def rate(count: int, time: float) -> str:
    return f"{count / time / 1e6:,.0f} M/s"


def processor() -> str:
    """Return the processor's name as the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the two smallest sizes only")
    parser.add_argument("--large", action="store_true", help="only where a large run's time goes")
    given = parser.parse_args()
    large_steps() if given.large else main(given.quick)
