"""Does a model's measured profile predict which split is the fastest, and how fast it is?

A model whose layers differ, narrow blocks whose weights work several times, then wide ones, then a
big head and the loss, is measured layer by layer, and split four ways: by the number of layers, by
parameters, by measured time, and by simulation from there. Each split is predicted from the
profile; then a real training step runs in the order of 1F1B, every op timed, and these times stand
side by side on as many ranks.
"""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

import pipesim as ps
from pipesim.plot.style import CURVES

if TYPE_CHECKING:
    from torch import nn

OUT = Path(__file__).parent.parent / "out"

RANKS, MICROBATCHES, SAMPLES = 4, 8, 32  # samples of a micro-batch
NARROW, WIDE, WORDS = 256, 1024, 4096  # widths; the head's outputs
BLOCKS = 8  # of each width
ROUNDS = 6  # that a narrow block goes
STEPS, REPEATS = 7, 15
SEED = 1


def main(quick: bool = False) -> pd.DataFrame | None:
    if find_spec("torch") is None:
        print("this runs PyTorch itself: pip install 'pipesim[torch]'", file=sys.stderr)
        print("nothing was run")
        return None
    import torch

    torch.manual_seed(SEED)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # each rank has a core of its own
    try:
        profile, table = measure(2 if quick else STEPS, 2 if quick else REPEATS)
    finally:
        torch.set_num_threads(threads)
    print(profile, end="\n\n")
    print(f"{RANKS} ranks, {MICROBATCHES} micro-batches of {SAMPLES}, 1F1B; medians of real steps")
    print(table.round(3).to_string(index=False))
    draw(table)
    return table


def measure(steps: int, repeats: int) -> tuple[ps.LayerProfile, pd.DataFrame]:
    import torch

    from pipesim.runtime import profile_layers

    network = model()
    profile = profile_layers(
        network,
        torch.randn(SAMPLES, NARROW),
        loss_fn=torch.nn.functional.cross_entropy,
        targets=torch.randint(WORDS, (SAMPLES,)),
        repeats=repeats,
    )
    rows = []
    for name, counts in splits(profile).items():
        predicted = ps.simulate(profile.split(counts), "1f1b", MICROBATCHES)
        times = real_steps(network, counts, steps)
        rows.append(
            {
                "split by": name,
                "layers": "/".join(map(str, counts)),
                "predicted_ms": predicted.makespan,
                "measured_ms": float(np.median(times)),
                "error": predicted.makespan / float(np.median(times)) - 1,
            }
        )
    return profile, pd.DataFrame(rows)


def model() -> "nn.Sequential":
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width: int, inner: int, rounds: int = 1) -> None:
            super().__init__()
            self.mlp = nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width)
            )
            self.rounds = rounds

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(self.rounds):
                x = x + self.mlp(x)
            return x

    narrow = [Block(NARROW, 2 * NARROW, ROUNDS) for _ in range(BLOCKS)]
    wide = [Block(WIDE, WIDE) for _ in range(BLOCKS)]
    return nn.Sequential(*narrow, nn.Linear(NARROW, WIDE), *wide, nn.Linear(WIDE, WORDS))


def splits(profile: ps.LayerProfile) -> dict[str, tuple[int, ...]]:
    assert profile.param_bytes is not None
    weights = {
        "layers": [1.0] * len(profile),
        "parameters": list(map(float, profile.param_bytes)),
        "time": profile.total_ms().tolist(),
    }
    found = {name: ps.min_max_split(values, RANKS) for name, values in weights.items()}
    refined = ps.refine_split(profile, found["time"], "1f1b", MICROBATCHES)
    return found | {"simulation": refined.counts}


def real_steps(network: "nn.Sequential", counts: tuple[int, ...], steps: int) -> list[float]:
    """Return what steps take whose ops all really ran, as far as they run side by side [ms].

    The last layer is the loss, which the pipeline runs behind its last stage.
    """
    import torch
    from torch import nn

    from pipesim.runtime import Pipeline, split_model

    own = [*counts[:-1], counts[-1] - 1]
    pipeline = Pipeline(split_model(network, own), MICROBATCHES, "1f1b")
    inputs = torch.randn(MICROBATCHES * SAMPLES, NARROW)
    targets = torch.randint(WORDS, (MICROBATCHES * SAMPLES,))
    times = []
    for _ in range(steps + 1):  # the first is to warm up
        # Gradients stay where they are: memory that is new costs the first micro-batch dearly.
        network.zero_grad(set_to_none=False)
        result = pipeline.step(inputs, targets, nn.functional.cross_entropy, count_bytes=False)
        times.append(result.run.makespan)
    return times[1:]


def draw(table: pd.DataFrame) -> None:
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(7, 4.2), layout="constrained")
    place = np.arange(len(table))
    for shift, column, (colour, _), hatch in zip(
        (-0.2, 0.2), ("predicted_ms", "measured_ms"), CURVES, ("", "//"), strict=False
    ):
        bars = ax.bar(
            place + shift,
            table[column],
            0.38,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            label=column.removesuffix("_ms"),
        )
        ax.bar_label(bars, fmt="%.0f", fontsize=8)
    labels = [
        f"{name}\n{counts}" for name, counts in zip(table["split by"], table.layers, strict=True)
    ]
    ax.set_xticks(place, labels)
    ax.set_ylabel("step [ms]")
    ax.set_title(f"Split by what? 1F1B, {RANKS} ranks, {MICROBATCHES} micro-batches", fontsize=10)
    ax.margins(y=0.12)
    ax.legend(frameon=False)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ps.plot.save(ax, OUT / "15_profile_and_rebalance.png")
    plt.close(figure)
    print("\nwrote out/15_profile_and_rebalance.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few repeats")
    sys.exit(2 if main(parser.parse_args().quick) is None else 0)
