"""Recompute: how much memory does it save, and how much time does it take?

A transformer of 48 layers on 8 stages, 32 micro-batches, with the times of a layer measured by
Korthikanti et al. 2022 (Table 4: 22 billion parameters, tensor parallel over 8 A100) and the bytes
of their formula. The first 1, 2, .. or all stages keep a part (selective) or only their inputs
(full). Memory is the activations of the rank that holds the most.

    1F1B           rank r holds 8 - r micro-batches: the first ranks need recompute, the last do
                   not. But one slow stage slows all: full recompute takes 25 % more time on the
                   first stage alone, 31 % on four (half the memory), 39 % on all (a tenth of it).
                   Selective on four gives half the memory, too, for 5 %; on more it saves nothing
    layers moved   fewer layers to the stages that recompute: full on the first four takes 17 %
                   more, not 31 %, for 42 % less memory
    GPipe          every rank holds all 32 micro-batches: nothing is saved until all recompute
    GPipe, early   rebuilt by ops of their own, while the gradient is awaited: (p - 1) R less, 32 %
                   more time in place of 39 %

A stage that rebuilds layer by layer keeps the input of each layer, and has one of them rebuilt at a
time. One that rebuilds early does so as a whole: it keeps its own input only, which all in all is
less here, with 32 micro-batches held.
"""

import argparse
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

import pipesim as ps
from pipesim.plot.style import CURVES

OUT = Path(__file__).parent.parent / "out"

LAYERS, STAGES, MICROBATCHES = 48, 8, 32
FORWARD_MS, BACKWARD_MS = 7.7, 11.9  # of a layer
SELECTIVE_MS = 13.2 - BACKWARD_MS  # the attention again
HIDDEN, HEADS, SEQUENCE, MICRO_BATCH, TENSOR_PARALLEL = 6144, 64, 2048, 4, 8
SBH = SEQUENCE * MICRO_BATCH * HIDDEN  # numbers in an activation
ATTENTION = 5 * HEADS * SEQUENCE / HIDDEN / TENSOR_PARALLEL
OUTPUT_BYTES = 2 * SBH
SELECTIVE_BYTES = round(SBH * (10 + 24 / TENSOR_PARALLEL))
STASH_BYTES = round(SBH * (10 + 24 / TENSOR_PARALLEL + ATTENTION))
MODES = ("selective", "full")
VARIANTS = {  # selective adds too little for a layer to move
    "1F1B": MODES,
    "1F1B, layers moved": ("full",),
    "GPipe": MODES,
    "GPipe, early": MODES,
}


def main(quick: bool = False) -> pd.DataFrame:
    table = trade(quick)
    print(
        f"{LAYERS} layers on {STAGES} stages, {MICROBATCHES} micro-batches; the first so many "
        "stages recompute;\nmemory: activations of the rank that holds the most; saved and added: "
        "against no recompute\n"
    )
    print(table.to_string(index=False, float_format="{:.1f}".format), end="\n\n")
    OUT.mkdir(parents=True, exist_ok=True)
    table.to_csv(OUT / "12_recompute_trade.csv", index=False)
    draw(table)
    print("wrote out/12_recompute_trade.csv, out/12_recompute_trade.png")
    return table


def trade(quick: bool) -> pd.DataFrame:
    """Return step time and memory, one row a schedule, a mode and how many stages recompute."""
    rows = []
    for variant, modes in VARIANTS.items():
        points = [("none", 0)]
        some = [1, STAGES // 2, STAGES] if quick else range(1, STAGES + 1)
        points += [(mode, stages) for mode in modes for stages in some]
        for mode, stages in points:
            run = simulated(variant, mode, stages)
            gigabytes = run.ranks.peak_stash_bytes.max() / 1e9
            rows.append((variant, mode, stages, run.makespan, gigabytes))
    table = pd.DataFrame(rows, columns=["schedule", "mode", "stages", "step_ms", "peak_gb"])
    none = table[table["mode"] == "none"].set_index("schedule")
    before = none.loc[table.schedule]
    table["added_percent"] = 100 * (table.step_ms / before.step_ms.to_numpy() - 1)
    table["saved_percent"] = 100 * (1 - table.peak_gb / before.peak_gb.to_numpy())
    return table


def simulated(variant: str, mode: str, stages: int) -> ps.Run:
    """Return the run in which the first so many stages recompute."""
    counts = [LAYERS // STAGES] * STAGES
    if variant == "1F1B, layers moved":
        counts = balanced(stages if mode == "full" else 0)
    if variant == "GPipe, early":  # an op rebuilds a stage as a whole
        pipe = profile().split(counts)
        part = {
            "time_share": SELECTIVE_MS / FORWARD_MS,
            "kept_share": SELECTIVE_BYTES / STASH_BYTES,
        }
        pipe = pipe.recompute(mode, range(stages), **part if mode == "selective" else {})
        return ps.simulate(pipe, "gpipe", MICROBATCHES, options={"recompute": "early"})
    pipe = profile().recompute(mode, range(sum(counts[:stages]))).split(counts)
    return ps.simulate(pipe, "gpipe" if variant == "GPipe" else "1f1b", MICROBATCHES)


def profile() -> ps.LayerProfile:
    """Return equal layers that keep everything."""
    values = {
        "forward_ms": FORWARD_MS,
        "backward_ms": BACKWARD_MS,
        "selective_ms": SELECTIVE_MS,
        "stash_bytes": STASH_BYTES,
        "selective_stash_bytes": SELECTIVE_BYTES,
        "output_bytes": OUTPUT_BYTES,
    }
    return ps.LayerProfile(**{name: (value,) * LAYERS for name, value in values.items()})


def balanced(stages: int) -> list[int]:
    """Return the layers of every stage such that the slowest takes as little time as can be.

    The first so many recompute in full.
    """
    again = [FORWARD_MS if s < stages else 0.0 for s in range(STAGES)]
    layer = [FORWARD_MS + BACKWARD_MS + more for more in again]
    counts = [0] * STAGES
    for _ in range(LAYERS):  # to where it takes the least; of equal ones the first
        place = min(range(STAGES), key=lambda s: ((counts[s] + 1) * layer[s], s))
        counts[place] += 1
    return counts


def draw(table: pd.DataFrame) -> None:
    """Draw time over memory, one curve a schedule and mode, one mark for so many stages."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(12.5, 5.0), layout="constrained", sharey=True)
    for ax, family in zip(axes, ("1F1B", "GPipe"), strict=True):
        of_family = table[table.schedule.str.startswith(family)]
        for (variant, rows), (colour, marker) in zip(
            of_family.groupby("schedule", sort=False), CURVES, strict=False
        ):
            none = rows[rows["mode"] == "none"]
            for mode, line in zip(MODES, ("--", "-"), strict=True):
                if mode not in VARIANTS[variant]:
                    continue
                points = pd.concat([none, rows[rows["mode"] == mode]])
                ax.plot(
                    points.peak_gb,
                    points.added_percent,
                    line,
                    color=colour,
                    marker=marker,
                    ms=6,
                    mfc="white" if mode == "selective" else colour,
                    label=f"{variant}: {mode}",
                )
                above = variant == "GPipe" or (variant, mode) == ("1F1B", "full")
                number(ax, points, above=above)
        ax.set_xlabel("activations of the rank that holds the most [GB]")
        ax.set_xlim(left=0)
        ax.set_ylim(-1, 45)
        ax.set_title(f"{family}; a number: the first so many stages recompute", fontsize=10)
        ax.grid(alpha=0.3)
        ax.legend(frameon=False, fontsize=9, loc="upper right" if family == "1F1B" else "center")
    axes[0].set_ylabel("step longer by [%]")
    figure.suptitle(
        f"Recompute: {LAYERS} layers on {STAGES} stages, {MICROBATCHES} micro-batches", fontsize=11
    )
    ps.plot.save(axes[0], OUT / "12_recompute_trade.png")
    plt.close(figure)


def number(ax: Axes, points: pd.DataFrame, *, above: bool) -> None:
    """Write how many stages recompute, above or below the marks that save memory."""
    lowest = points.peak_gb.cummin().shift(1)
    for row in points[points.peak_gb < lowest].itertuples():
        ax.annotate(
            str(row.stages),
            (row.peak_gb, row.added_percent),
            xytext=(0, 6 if above else -13),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="1, half or all stages only")
    main(parser.parse_args().quick)
