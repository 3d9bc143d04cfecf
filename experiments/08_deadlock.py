"""Which orders of sends and receives hang, and what do those that do not hang cost?

1F1B and GPipe on equal stages, half a forward a hop, under every protocol: messages
that leave by themselves, sends and receives that block in a naive order, odd ranks the other
way round, in groups as Megatron does, posted early as on NCCL streams. Naive 1F1B hangs, and the
cycle is told; odd-even and paired finish, at a price. Then which of all schedules hang under
which protocol: blocking transfers suit only orders that go back and forth between neighbours.
"""

import argparse
from pathlib import Path

import pandas as pd

import pipesim as ps
from pipesim.schedules.program.lowering import PROTOCOLS

OUT = Path(__file__).parent.parent / "out"
RANKS, MICROBATCHES = 4, 8
FORWARD_MS, BACKWARD_MS, LATENCY_MS = 1.0, 2.0, 0.5
DRAWN = ("eager", "paired", "odd_even")


def main(quick: bool = False) -> tuple[pd.DataFrame, pd.DataFrame]:
    costs, told = price_of_protocols()
    print(f"{RANKS} ranks, {MICROBATCHES} micro-batches, F = {FORWARD_MS:g}, B = {BACKWARD_MS:g},")
    print(f"{LATENCY_MS:g} a hop: step time [ms]\n\n{costs.to_string()}\n\n{told}\n")
    names = ["gpipe", "1f1b", "zb_h1", "interleaved"] if quick else ps.schedule_names()
    hanging = which_hang(names)
    print(f"which of the schedules hang\n\n{hanging.to_string()}\n")
    draw()
    return costs, hanging


def pipeline() -> ps.Pipeline:
    return ps.Pipeline.from_costs(FORWARD_MS, BACKWARD_MS, stages=RANKS, latency_ms=LATENCY_MS)


def price_of_protocols() -> tuple[pd.DataFrame, str]:
    """Return step times, one row a protocol, and how the first deadlock is told."""
    rows, told = {}, ""
    for protocol in PROTOCOLS:
        rows[protocol] = {}
        for schedule in ("1f1b", "gpipe"):
            try:
                step = ps.simulate(pipeline(), schedule, MICROBATCHES, protocol=protocol).makespan
                rows[protocol][schedule] = f"{step:g}"
            except ps.DeadlockError as error:
                rows[protocol][schedule] = "hangs"
                told = told or str(error)
    return pd.DataFrame.from_dict(rows, orient="index"), told


def which_hang(names: list[str]) -> pd.DataFrame:
    """Return which schedules hang under which protocol, told from their event graphs alone."""
    rows = {}
    for name in names:
        schedule = ps.build_schedule(name, RANKS, MICROBATCHES)
        rows[name] = {}
        for protocol in PROTOCOLS:
            try:
                ps.check_deadlock(ps.lower(schedule, protocol))
                rows[name][protocol] = "."
            except ps.DeadlockError:
                rows[name][protocol] = "hangs"
    return pd.DataFrame.from_dict(rows, orient="index")


def draw() -> None:
    runs = [ps.simulate(pipeline(), "1f1b", MICROBATCHES, protocol=p) for p in DRAWN]
    ps.plot.save(ps.plot.gantt(runs), OUT / "08_deadlock.png")
    print("wrote out/08_deadlock.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="four schedules only")
    main(parser.parse_args().quick)
