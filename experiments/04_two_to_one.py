"""What is a stage of 50 ms worth next to one of 100 ms?

Everyone waits for the slow one: after the fill, a micro-batch comes out every 100 ms, and a
stage of 50 ms is idle at least half of the time, however many micro-batches there are.
"""

import argparse
from pathlib import Path

import pipesim as ps
from pipesim.base.text import text_table
from pipesim.run.run import Run

OUT = Path(__file__).parent.parent / "out"
STAGES_MS = {"50 / 100": (50.0, 100.0), "75 / 75": (75.0, 75.0)}  # F and B of one micro-batch
FORWARD_SHARE = 1 / 3  # B = 2F
MICROBATCHES = (1, 4, 16, 64)
SHOWN = 4  # micro-batches in the figure


def main(quick: bool = False) -> dict[str, list[Run]]:
    counts = MICROBATCHES[:2] if quick else MICROBATCHES
    runs = {name: [simulate(name, m) for m in counts] for name in STAGES_MS}
    for name, results in runs.items():
        print(f"stages of {name} ms, 1F1B")
        columns = {
            "micro-batches": [str(run.schedule.microbatches) for run in results],
            "step ms": [f"{run.makespan:.1f}" for run in results],
            "ms a micro-batch": [
                f"{run.makespan / run.schedule.microbatches:.1f}" for run in results
            ],
            "idle rank 0": [f"{run.rank_times.bubble_fraction[0]:.1%}" for run in results],
            "idle rank 1": [f"{run.rank_times.bubble_fraction[1]:.1%}" for run in results],
            "closed form": [f"{run.closed_form:.1%}" for run in results],
        }
        print(text_table(columns), end="\n\n")
    if not quick:
        ax = ps.plot.gantt([simulate(name, SHOWN) for name in STAGES_MS])
        ps.plot.save(ax, OUT / "04_two_to_one.png")
        print("wrote out/04_two_to_one.png")
    return runs


def simulate(name: str, microbatches: int) -> Run:
    pipe = ps.Pipeline.from_costs(
        forward=[FORWARD_SHARE * total for total in STAGES_MS[name]],
        backward=[(1 - FORWARD_SHARE) * total for total in STAGES_MS[name]],
        title=f"{name} ms",
    )
    return ps.simulate(pipe, "1f1b", microbatches)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few micro-batches, no figure")
    main(parser.parse_args().quick)
