"""What does imbalance cost: how much longer is a step when the slowest stage is x times the mean?

One cloud a schedule over random stage costs of the same mean; the floor that no schedule with
that slowest stage can break, m x / (m + p - 1); and as a star the stages of the production job
of 01, which itself ran 4 micro-batches.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from tqdm import tqdm

import pipesim as ps
from pipesim.plot.style import CURVES

HERE = Path(__file__).parent
CONFIG = HERE / "configs" / "straggler.toml"
OUT = HERE.parent / "out"

SCHEDULES = ("gpipe", "1f1b")
RANKS = 4
MICROBATCHES = (4, 32)
DRAWS = 300
SPREADS = (0.05, 0.6)  # of the logarithm of a stage's cost, drawn anew for every pipeline
BACKWARD_RATIO = 2.0
SEED = 1


def main(quick: bool = False) -> pd.DataFrame:
    table = simulate_all(10 if quick else DRAWS)
    for (schedule, m), rows in table.groupby(["schedule", "microbatches"], sort=False):
        faster = (rows.inflation < 1).mean()
        worst = rows.loc[rows.inflation.idxmax()]
        print(
            f"{schedule:6} m = {m:2}: {len(rows)} random pipelines, "
            f"inflation {rows.inflation.min():.3f} to {worst.inflation:.3f} "
            f"(slowest/mean {worst.slowest_over_mean:.2f}); {faster:.0%} below 1; "
            f"{(rows.makespan_ms / rows.lower_bound_ms - 1).mean():.1%} above the bound on average"
        )
    stars = {m: production_job(m) for m in MICROBATCHES}
    for m, (x, y) in stars.items():
        print(f"production stages, m = {m:2}: slowest/mean {x:.3f}, inflation {y:.3f}")
    draw(table, stars)
    return table


def simulate_all(draws: int) -> pd.DataFrame:
    random = np.random.default_rng(SEED)
    rows = []
    total = draws * len(SCHEDULES) * len(MICROBATCHES)
    with tqdm(total=total, unit="run", leave=False, disable=None, delay=1.0) as bar:
        for draw_number in range(draws):
            costs = np.exp(random.normal(0.0, random.uniform(*SPREADS), RANKS))
            pipe = ps.Pipeline.from_costs(forward=costs, backward=BACKWARD_RATIO * costs)
            for schedule in SCHEDULES:
                for m in MICROBATCHES:
                    run = ps.simulate(pipe, schedule, m)
                    rows.append(
                        {
                            "draw": draw_number,
                            "schedule": schedule,
                            "microbatches": m,
                            "slowest_over_mean": 1 / run.balance,
                            "inflation": run.inflation,
                            "makespan_ms": run.makespan,
                            "lower_bound_ms": run.lower_bound,
                        }
                    )
                    bar.update()
    return pd.DataFrame(rows)


def production_job(microbatches: int) -> tuple[float, float]:
    """Return slowest / mean stage and inflation of the production job's stages with 1F1B."""
    run = ps.simulate(ps.read_config(CONFIG).pipeline, "1f1b", microbatches)
    return 1 / run.balance, run.inflation


def draw(table: pd.DataFrame, stars: dict[int, tuple[float, float]]) -> None:
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        1, len(MICROBATCHES), figsize=(10, 4.4), layout="constrained", sharey=True
    )
    for ax, m in zip(panels, MICROBATCHES, strict=True):
        draw_panel(ax, table[table.microbatches == m], m, stars[m])
    panels[0].set_ylabel("step time / step time of equal stages")
    panels[0].legend(frameon=False, fontsize=8, loc="upper left")
    ps.plot.save(panels[0], OUT / "05_price_of_imbalance.png")
    plt.close(figure)
    print("wrote out/05_price_of_imbalance.png")


def draw_panel(ax: Axes, table: pd.DataFrame, m: int, star: tuple[float, float]) -> None:
    for (schedule, rows), (colour, marker) in zip(
        table.groupby("schedule", sort=False), CURVES, strict=False
    ):
        x, y = rows.slowest_over_mean, rows.inflation
        ax.plot(x, y, marker, ms=2.5, alpha=0.55, mew=0, color=colour, label=schedule)
    reach = np.array([1.0, table.slowest_over_mean.max()])
    floor = m * reach / (m + RANKS - 1)
    ax.plot(reach, floor, ":", color="black", label="floor: m x / (m+p-1)")
    ax.axhline(1.0, color="black", linewidth=0.8, linestyle="--", label="equal stages")
    ax.plot(*star, "*", ms=14, color="#c2457a", mec="black", label="production stages, 1f1b")
    ax.set_title(f"{RANKS} ranks, {m} micro-batches, B = {BACKWARD_RATIO:g}F", fontsize=10)
    ax.set_xlabel("slowest stage / mean stage")
    ax.grid(alpha=0.3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="10 random pipelines only")
    main(parser.parse_args().quick)
