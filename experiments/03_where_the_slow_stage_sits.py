"""Does it matter where in the pipeline the slow stage sits?

It does: the earlier, the better. A slow first stage is the only one that nobody has to fill
before it starts and to drain after it ends.
"""

import argparse
from pathlib import Path

import pipesim as ps
from pipesim.base.text import text_table
from pipesim.run.run import Run

OUT = Path(__file__).parent.parent / "out"
RANKS, MICROBATCHES = 4, 8
FORWARD_MS, BACKWARD_MS, SLOW_FACTOR = 1.0, 2.0, 2.0


def main(quick: bool = False) -> list[Run]:
    runs = [slow_at(stage) for stage in range(RANKS)]
    print(f"1F1B, {RANKS} ranks, {MICROBATCHES} micro-batches, one stage x {SLOW_FACTOR:g}\n")
    columns = {
        "slow stage": [str(stage) for stage in range(RANKS)],
        "makespan": [f"{run.makespan:g}" for run in runs],
        "bubble": [f"{run.bubble_fraction:.2%}" for run in runs],
        "inflation": [f"{run.inflation:.4f}" for run in runs],
        "lower bound": [f"{run.lower_bound:g}" for run in runs],
    }
    print(text_table(columns))
    if not quick:
        ps.plot.save(ps.plot.gantt(runs), OUT / "03_where_the_slow_stage_sits.png")
        print("\nwrote out/03_where_the_slow_stage_sits.png")
    return runs


def slow_at(slow: int) -> Run:
    factors = [SLOW_FACTOR if stage == slow else 1.0 for stage in range(RANKS)]
    pipe = ps.Pipeline.from_costs(
        forward=[FORWARD_MS * x for x in factors],
        backward=[BACKWARD_MS * x for x in factors],
        title=f"stage {slow} x {SLOW_FACTOR:g}",
    )
    return ps.simulate(pipe, "1f1b", MICROBATCHES)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out the figure")
    main(parser.parse_args().quick)
