"""Does the bubble vanish as the number of micro-batches grows, as the closed form says?

With equal stages, simulation and (p-1)/(m+p-1) agree to the last digit. With one slow stage the
bubble levels off at what the stages' imbalance leaves idle, and the closed form does not see it.
"""

import argparse
from pathlib import Path

import pandas as pd

import pipesim as ps

OUT = Path(__file__).parent.parent / "out"
RANKS = 4
MICROBATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
SLOW_FACTOR = 2.0  # of the last stage
FORWARD_MS, BACKWARD_MS = 1.0, 2.0


def main(quick: bool = False) -> pd.DataFrame:
    factors = {
        "equal stages": [1.0] * RANKS,
        "last stage x 2": [1.0] * (RANKS - 1) + [SLOW_FACTOR],
    }
    rows = []
    for stages, factor in factors.items():
        pipe = ps.Pipeline.from_costs(
            forward=[FORWARD_MS * x for x in factor], backward=[BACKWARD_MS * x for x in factor]
        )
        for microbatches in MICROBATCHES[:4] if quick else MICROBATCHES:
            run = ps.simulate(pipe, "1f1b", microbatches)
            rows.append(
                {
                    "stages": stages,
                    "micro-batches m": microbatches,
                    "makespan_ms": run.makespan,
                    "bubble_fraction": run.bubble_fraction,
                    "closed_form_bubble_fraction": run.closed_form,
                }
            )
    table = pd.DataFrame(rows)
    print(f"1F1B on {RANKS} ranks, F = {FORWARD_MS:g}, B = {BACKWARD_MS:g}\n")
    print(table.to_string(index=False, float_format=lambda x: f"{x:.4f}"))
    mean = (RANKS - 1 + SLOW_FACTOR) / RANKS
    print(f"\nlimit with the slow stage as m grows: 1 - mean/max = {1 - mean / SLOW_FACTOR:.4f}")
    ax = ps.plot.bubble(table, x="micro-batches m", by=["stages"])
    ax.set_xscale("log", base=2)
    ax.set_xticks(MICROBATCHES, map(str, MICROBATCHES))
    ax.set_title(f"1F1B, {RANKS} ranks: the gap that the closed form does not see", fontsize=10)
    ps.plot.save(ax, OUT / "02_bubble_vs_microbatches.png")
    print("wrote out/02_bubble_vs_microbatches.png")
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only up to 8 micro-batches")
    main(parser.parse_args().quick)
