"""On 16 devices, how many for the pipeline and how many for replicas, and what does ZeRO-1 buy?

A model of 32 layers, an embedding and a head, 6.7 billion parameters (hidden size 4096), 1F1B, 64
sequences a step whatever the grid: with more replicas each has fewer micro-batches. A longer
pipeline idles more, more replicas reduce larger stages, and the optimizer of a large stage is long:

    16 x 1     no reduction, and 34 % of the time idle: the fill, and 34 layers on 16 stages
    4 x 4      the fastest, with ZeRO-1, too: 2.66 s a step
    1 x 16     no bubble, and a reduction of 1.0 s: all of the model after its last backward
    ZeRO-1     as much on the network, half before and half after the optimizer, whose work and
               state the replicas share: 4 x 4 holds 21 instead of 37 GB a rank, 1 x 16 holds 41
               instead of 116, too much for a device of 80 GB, and its step is 3 % shorter

Then the schedule of 4 x 2 where one rank of one replica is slow: all replicas wait for it. That a
stage is reduced whole, after its last backward, is the worst case: in buckets a part of it would
hide behind that backward.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

import pipesim as ps
from pipesim.plot.style import END_STYLES, KIND_COLOURS
from pipesim.report.run_text import step_text

OUT = Path(__file__).parent.parent / "out"

DEVICES, SEQUENCES = 16, 64
GRIDS = ((16, 1), (8, 2), (4, 4), (2, 8), (1, 16))  # ranks x replicas
LAYERS = 32
LAYER_MS, HEAD_MS = (5.0, 10.0), (3.0, 6.0)  # F and B of one sequence of 2048 tokens
LAYER_PARAMS, VOCABULARY_PARAMS = 12 * 4096**2, 32_000 * 4096
STASH_BYTES = 34 * 2048 * 4096  # of a layer, attention rebuilt
OUTPUT_BYTES = 2 * 2048 * 4096
BANDWIDTH_GB_S, LATENCY_MS = 25.0, 0.02
OPTIMIZER_MS = 15e-9  # a parameter: 30 bytes at 2 TB/s
DRAWN_MICROBATCHES, SLOW = 8, 0.8  # of the picture: speed of the slow rank


def main(quick: bool = False) -> pd.DataFrame:
    grids = [(4, 4), (1, 16)] if quick else GRIDS
    table = pd.DataFrame([row(*grid, zero) for zero in (0, 1) for grid in grids])
    print(f"{DEVICES} devices, {SEQUENCES} sequences a step, ranks x replicas\n")
    shown = table.assign(bubble=[f"{100 * x:.1f} %" for x in table.bubble])
    print(shown.to_string(index=False, float_format=lambda x: f"{x:.1f}"), end="\n\n")
    step = slow_replica()
    print(f"4 x 2, rank 2 of replica 1 at {SLOW:.0%} of the speed:\n{step_text(step)}")
    if not quick:
        draw(table)
        ps.plot.save(ps.plot.gantt(step), OUT / "13_replicas.png")
        print("\nwrote out/13_pipeline_x_data_parallel.png, out/13_replicas.png")
    return table


def model(ranks: int) -> ps.Pipeline:
    """Return the model cut by time: embedding, layers, head."""
    profile = ps.LayerProfile(
        forward_ms=(0.0, *[LAYER_MS[0]] * LAYERS, HEAD_MS[0]),
        backward_ms=(0.0, *[LAYER_MS[1]] * LAYERS, HEAD_MS[1]),
        param_bytes=tuple(
            2 * n for n in (VOCABULARY_PARAMS, *[LAYER_PARAMS] * LAYERS, VOCABULARY_PARAMS)
        ),
        stash_bytes=(0, *[STASH_BYTES] * LAYERS, OUTPUT_BYTES),
        output_bytes=(OUTPUT_BYTES,) * (LAYERS + 2),
    )
    return ps.partition(
        profile, ranks, bandwidth_gb_s=BANDWIDTH_GB_S, latency_ms=LATENCY_MS, title="6.7B"
    )


def trained(pipe: ps.Pipeline, replicas: int, zero: int, **more) -> ps.Training:
    return ps.Training(
        replicas=replicas,
        zero=zero,
        bandwidth_gb_s=BANDWIDTH_GB_S,
        latency_ms=LATENCY_MS,
        optimizer_ms=tuple(OPTIMIZER_MS * stage.param_bytes / 2 for stage in pipe.stages),
        **more,
    )


def row(ranks: int, replicas: int, zero: int) -> dict:
    pipe = model(ranks)
    training = trained(pipe, replicas, zero)
    step = ps.simulate_step(pipe, "1f1b", SEQUENCES // replicas, training=training)
    work = step.runs[0].rank_times.busy.mean()
    return {
        "zero": zero,
        "grid": f"{ranks} x {replicas}",
        "microbatches": SEQUENCES // replicas,
        "bubble": step.runs[0].bubble_fraction,
        "work_ms": work,
        "idle_ms": step.makespan - work,
        "reduction_ms": step.exposed_reduction_ms,
        "update_ms": step.update_ms,
        "step_ms": step.step_ms,
        "most_gb": max(held_bytes(step.runs[0])) / 1e9,
    }


def held_bytes(run: ps.Run) -> np.ndarray:
    """Return what each rank holds at most: parameters, gradients, optimizer, activations."""
    state = [s.param_bytes + s.grad_bytes + s.optimizer_bytes for s in run.pipeline.stages]
    return np.array(state) + run.ranks.peak_stash_bytes.to_numpy()


def slow_replica() -> ps.Step:
    pipe = model(4)
    speed = (1.0, (1.0, 1.0, SLOW, 1.0))
    training = trained(pipe, 2, 1, speed=speed)
    return ps.simulate_step(pipe, "1f1b", DRAWN_MICROBATCHES, training=training)


def draw(table: pd.DataFrame) -> None:
    """Draw the parts of the step for every grid, next to what the fullest rank holds."""
    import matplotlib.pyplot as plt

    figure, (times, sizes) = plt.subplots(
        1, 2, figsize=(9.0, 4.0), width_ratios=(3, 2), layout="constrained"
    )
    grids = list(table.grid.unique())
    parts = {
        "work_ms": ("compute (mean of the ranks)", KIND_COLOURS["F"], None),
        "idle_ms": ("idle: the bubble", "#f2f2f2", "////"),
        "reduction_ms": ("gradients reduced", *END_STYLES["REDUCE"][:2]),
        "update_ms": ("optimizer, parameters gathered", *END_STYLES["OPTIMIZER"][:2]),
    }
    for zero, side in ((0, -0.2), (1, 0.2)):
        own = table[table.zero == zero]
        place = np.arange(len(grids)) + side
        below = np.zeros(len(own))
        for name, (words, face, hatch) in parts.items():
            values = own[name].to_numpy() / 1e3
            style = {"color": face, "hatch": hatch, "edgecolor": "0.35", "lw": 0.6}
            label = None if zero else words
            times.bar(place, values, 0.36, bottom=below, label=label, **style)
            below += values
        for x, top in zip(place, below, strict=True):
            times.text(x, top + 0.05, f"Z{zero}", ha="center", fontsize=7)
        face = ("0.8", "0.45")[zero]
        words = ("plain data parallelism (Z0)", "ZeRO-1 (Z1)")[zero]
        bars = sizes.bar(place, own.most_gb, 0.36, color=face, label=words)
        sizes.bar_label(bars, fmt="%.0f", fontsize=8)
    finish(times, grids, "step [s]", "time of a step")
    finish(sizes, grids, "GB", "most that a rank holds")
    ps.plot.save(times, OUT / "13_pipeline_x_data_parallel.png")
    plt.close(figure)


def finish(ax: Axes, grids: list[str], label: str, title: str) -> None:
    ax.set_xticks(range(len(grids)), grids)
    ax.set_xlabel("ranks x replicas")
    ax.set_ylabel(label)
    ax.set_title(title, fontsize=10)
    ax.set_ylim(top=1.35 * ax.get_ylim()[1])  # room for the legend
    ax.legend(frameon=False, fontsize=8, loc="upper center")
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two grids, no figures")
    main(parser.parse_args().quick)
