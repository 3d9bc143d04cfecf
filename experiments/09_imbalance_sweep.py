"""How much idle time do unequal stages add beyond the closed form?

Random stage costs of a given spread (standard deviation / mean), 10,000 sets at each spread, for
1F1B, interleaved with two chunks a rank, and ZB-H1, on 4, 8 and 16 ranks, with as many
micro-batches as ranks, 4 and 16 times as many. The total work is always the same, and so idle
time beyond that of equal stages, a rank, is just what the step gets longer.

The first figure is the bubble fraction: the median, 90 % of the sets around it, the closed form
of equal stages, and the floor, the bubble of the lower bound, which no order can go below. The
closed form is a reference and no floor: at p = 4, m = 4 and a spread of 0.2, 19 % of the sets
have a smaller bubble under 1F1B, and with the same work that is a shorter step. The second figure
is the price in step time. At a spread of 0.2 on 8 ranks with 32 micro-batches the median step is

    20.0 % longer under 1F1B          bubble 31.6 % instead of 17.9 %, floor 29.1 %
    16.6 % longer when interleaved           22.7 % instead of  9.9 %, floor 20.8 %
    25.4 % longer under ZB-H1                25.7 % instead of  6.8 %, floor 24.5 %

The less a schedule idles by itself, the more of the imbalance shows. Interleaving would be no
exception, but the costs of a rank's two stages partly even out: with the same factor for both it
is 21.8 %. And most of it is the stages' own: the median step under 1F1B is 3.5 % above the bound,
so that no other order with whole backwards gains more than that, and only another split does.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from tqdm import tqdm

import pipesim as ps
from pipesim.plot.style import CURVES

OUT = Path(__file__).parent.parent / "out"

CHUNKS = {"1f1b": 1, "interleaved": 2, "zb_h1": 1}  # stages a rank
WORDS = {"1f1b": "1F1B", "interleaved": "interleaved (v = 2)", "zb_h1": "ZB-H1"}
RANKS = (4, 8, 16)
MICROBATCHES_A_RANK = (1, 4, 16)
SPREADS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)  # standard deviation / mean of a stage's cost
SETS, QUICK_SETS = 10_000, 300
BAND = (5, 95)  # percentiles
FORWARD_MS = 1.0  # of a rank, on average; B = 2F, where it is split I = W = F
SEED = 1
DRAWN = 8  # ranks of the first figure


def main(quick: bool = False) -> pd.DataFrame:
    table = sweep(QUICK_SETS if quick else SETS)
    print_table(table)
    OUT.mkdir(parents=True, exist_ok=True)
    table.to_csv(OUT / "09_imbalance_sweep.csv", index=False)
    draw_bubbles(table[table.ranks == DRAWN])
    draw_steps(table)
    print("wrote out/09_imbalance_sweep.csv, out/09_imbalance_sweep.png, out/09_longer_step.png")
    return table


def sweep(sets: int) -> pd.DataFrame:
    """Return quantiles over the sets, one row a schedule, p, m and spread."""
    rows = []
    cases = [(n, p, k * p) for n in CHUNKS for p in RANKS for k in MICROBATCHES_A_RANK]
    runs = sets * len(SPREADS) * len(cases)
    with tqdm(total=runs, unit="run", unit_scale=True, leave=False, disable=None, delay=1) as bar:
        for name, p, m in cases:
            for spread in SPREADS:
                rows.append(one_spread(name, p, m, spread, sets))
                bar.update(sets)
    return pd.DataFrame(rows)


def one_spread(name: str, ranks: int, microbatches: int, spread: float, sets: int) -> dict:
    """Return the row of the table for one schedule, p, m and spread."""
    factors = stage_factors(sets, CHUNKS[name] * ranks, spread)
    numbers = simulate(name, microbatches, factors, ranks)
    case = {"schedule": name, "ranks": ranks, "microbatches": microbatches, "spread": spread}
    return case | quantiles(numbers, microbatches)


def stage_factors(sets: int, stages: int, spread: float) -> np.ndarray:
    """Return lognormal factors with a mean of 1 in each set, array (sets, stages)."""
    z = np.random.default_rng(SEED).standard_normal((sets, stages))
    factors = np.exp(np.sqrt(np.log1p(spread**2)) * z)
    return factors / factors.mean(axis=1, keepdims=True)


def simulate(
    name: str, microbatches: int, factors: np.ndarray, ranks: int
) -> dict[str, np.ndarray]:
    """Return the numbers of a run for each set of factors; the work is always the same."""
    stages = factors.shape[1]
    forward = FORWARD_MS * ranks / stages
    parts = {"input_grad": forward, "weight_grad": forward}
    backward = parts if name == "zb_h1" else {"backward": 2 * forward}
    base = ps.Pipeline.from_costs(forward, **backward, stages=stages, ranks=ranks)
    costs = {
        f"{kind}_ms": cost * factors for kind, cost in ({"forward": forward} | backward).items()
    }
    schedule = ps.build_schedule(name, ranks, microbatches)
    return ps.simulate_many(schedule, ps.CostVariants(base, costs))


def quantiles(numbers: dict[str, np.ndarray], microbatches: int) -> dict[str, float]:
    """Return what is told of the runs at one spread; of all of them the median."""
    work = 3 * FORWARD_MS * microbatches  # of a rank, on average
    bubble, longer = numbers["bubble_fraction"], numbers["inflation"] - 1
    low, high = np.percentile(bubble, BAND)
    longer_low, longer_high = np.percentile(longer, BAND)
    return {
        "closed_form": numbers["closed_form_bubble_fraction"][0],
        "floor": np.median(1 - work / numbers["lower_bound_ms"]),
        "bubble": np.median(bubble),
        "bubble_5": low,
        "bubble_95": high,
        "shorter": np.mean(longer < -1e-9),  # and its bubble below that of equal stages
        "longer": np.median(longer),
        "longer_5": longer_low,
        "longer_95": longer_high,
        "above_bound": np.median(numbers["makespan_ms"] / numbers["lower_bound_ms"]) - 1,
    }


def print_table(table: pd.DataFrame) -> None:
    """Print the medians and bands in percent."""
    shown = pd.DataFrame(
        {
            "schedule": table.schedule,
            "p": table.ranks,
            "m": table.microbatches,
            "spread": table.spread,
            "equal": table.closed_form,
            "floor": table.floor,
            "bubble": table.bubble,
            "5..95 %": _range(table.bubble_5, table.bubble_95),
            "step longer by": table.longer,
            "5..95 % ": _range(table.longer_5, table.longer_95),
            "above bound": table.above_bound,
        }
    )
    print("bubble of equal stages, of the lower bound, and median; step time against equal stages")
    kept = shown[shown.spread.isin((0.1, 0.2, 0.5))]  # the file has all
    percent = dict.fromkeys(("equal", "floor", "bubble", "step longer by", "above bound"), "{:.1%}")
    print(kept.to_string(index=False, formatters={key: f.format for key, f in percent.items()}))
    print()


def _range(low: pd.Series, high: pd.Series) -> list[str]:
    return [f"{a:.1%}..{b:.1%}" for a, b in zip(low, high, strict=True)]


def draw_bubbles(table: pd.DataFrame) -> None:
    """Draw the bubble fraction, one row a schedule, one column a number of micro-batches."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        3, 3, figsize=(9.5, 8), sharex=True, sharey=True, layout="constrained"
    )
    for axes, (name, of_one) in zip(panels, table.groupby("schedule", sort=False), strict=True):
        for ax, (m, rows) in zip(axes, of_one.groupby("microbatches"), strict=True):
            draw_bubble(ax, rows)
            ax.set_title(f"{WORDS[str(name)]}: p = {DRAWN}, m = {m}", fontsize=10)
        axes[0].set_ylabel("idle / (p x makespan)")
    for ax in panels[-1]:
        ax.set_xlabel("spread: standard deviation / mean")
    panels[0, 0].set_ylim(0, 0.75)
    panels[0, 0].yaxis.set_major_formatter(PercentFormatter(1.0))
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    ps.plot.save(panels[0, 0], OUT / "09_imbalance_sweep.png")
    plt.close(figure)


def draw_bubble(ax: Axes, rows: pd.DataFrame) -> None:
    ax.fill_between(
        rows.spread, rows.bubble_5, rows.bubble_95, color="#c9d8e8", lw=0, label="90 % of the sets"
    )
    ax.plot(rows.spread, rows.bubble, "-o", ms=4, color=CURVES[0][0], label="median")
    ax.plot(rows.spread, rows.floor, ":v", ms=4, color="black", label="lower bound, median")
    ax.plot(
        rows.spread,
        rows.closed_form,
        "--",
        color="black",
        lw=1,
        label="equal stages: closed form",
    )
    ax.grid(alpha=0.3)


def draw_steps(table: pd.DataFrame) -> None:
    """Draw how much longer the step is, one row a p, one column a number of micro-batches."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        3, 3, figsize=(9.5, 8), sharex=True, sharey=True, layout="constrained"
    )
    for axes, (p, of_one) in zip(panels, table.groupby("ranks"), strict=True):
        for ax, (m, rows) in zip(axes, of_one.groupby("microbatches"), strict=True):
            draw_step(ax, rows)
            ax.set_title(f"p = {p}, m = {m}", fontsize=10)
        axes[0].set_ylabel("step longer by")
    for ax in panels[-1]:
        ax.set_xlabel("spread: standard deviation / mean")
    panels[0, 0].yaxis.set_major_formatter(PercentFormatter(1.0))
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        title="step time against equal stages: medians, and bars over 90 % of the sets",
        loc="outside upper center",
        ncols=3,
        frameon=False,
        fontsize=9,
    )
    ps.plot.save(panels[0, 0], OUT / "09_longer_step.png")
    plt.close(figure)


def draw_step(ax: Axes, rows: pd.DataFrame) -> None:
    """Draw medians, and 90 % of the sets as bars that stand side by side."""
    for number, ((name, of_one), (colour, marker)) in enumerate(
        zip(rows.groupby("schedule", sort=False), CURVES, strict=False)
    ):
        reach = [of_one.longer - of_one.longer_5, of_one.longer_95 - of_one.longer]
        ax.errorbar(
            of_one.spread + 0.008 * (number - 1),
            of_one.longer,
            reach,
            fmt=f"-{marker}",
            ms=4,
            lw=1.2,
            elinewidth=0.8,
            capsize=2,
            color=colour,
            label=WORDS[str(name)],
        )
    ax.axhline(0, color="black", lw=0.8, ls="--")
    ax.grid(alpha=0.3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SETS} sets a spread")
    main(parser.parse_args().quick)
