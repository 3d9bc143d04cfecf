"""Equal layers, equal parameters, or equal time: what is a fair split of a model with a large head?

The head of a large vocabulary takes as long as several layers, the embedding next to nothing,
and both hold as many parameters. With equal layers, the embedding and the head on top of the
first and the last stage, all wait for the last. Equal time is the fastest, and its first stage
holds the most. Equal parameters leave the embedding alone on a stage that is idle, and come
close: the head, which is slow, is large, too.

Then Table 5 of the vocabulary parallelism paper (arXiv:2411.05288) from FLOPs alone: what the
measured utilisation falls to as the vocabulary grows from 32k, and what dividing the layers by
their time gains. Many splits have the same slowest stage: a simulation that gives the published
numbers takes those with the slow stages late, and the ones with them early take up to 6.5 % less
time.
"""

import argparse
from pathlib import Path

import pandas as pd
from tqdm import tqdm

import pipesim as ps
from pipesim.base.text import text_table
from pipesim.run.run import Run

OUT = Path(__file__).parent.parent / "out"

MICROBATCHES = 128
PEAK_TFLOPS, EFFICIENCY = 312, 0.5  # of an A100; no ratio below depends on them
SHAPES = {  # by ranks
    8: {"layers": 32, "hidden": 3072, "heads": 24},
    16: {"layers": 48, "hidden": 4096, "heads": 32},
    32: {"layers": 64, "hidden": 5120, "heads": 40},
}
EXAMPLE = (16, 4096, 128)
# Ranks, sequence, vocabulary / 1024 -> measured: utilisation with equal layers over the one with
# a vocabulary of 32k; utilisation with layers divided by time over that with equal layers.
PUBLISHED = {
    (8, 2048, 256): (0.5466, 1.5422),
    (8, 4096, 32): (1.0, 0.9974),
    (8, 4096, 64): (0.8899, 1.1173),
    (8, 4096, 128): (0.7439, 1.3554),
    (16, 2048, 32): (1.0, 0.9978),
    (16, 2048, 128): (0.7105, 1.1914),
    (16, 4096, 32): (1.0, 0.9968),
    (16, 4096, 64): (0.8665, 1.0451),
    (16, 4096, 128): (0.7124, 1.2736),
    (16, 4096, 256): (0.5326, 1.5851),
    (32, 2048, 128): (0.6767, 1.2537),
    (32, 2048, 256): (0.4873, 1.3979),
    (32, 4096, 32): (1.0, 1.0076),
    (32, 4096, 64): (0.8725, 1.0003),
    (32, 4096, 128): (0.688, 1.2602),
}


def main(quick: bool = False) -> tuple[dict[str, Run], pd.DataFrame]:
    model = transformer(*EXAMPLE)
    print(model, end="\n\n")
    runs = {f"equal {what}": simulate(pipe) for what, pipe in splits(model, EXAMPLE[0]).items()}
    print(f"{EXAMPLE[0]} ranks, {MICROBATCHES} micro-batches, 1F1B")
    print(splits_text(runs), end="\n\n")
    cases = list(PUBLISHED)[: 3 if quick else None]
    rows = [row(case) for case in tqdm(cases, unit="model", leave=False, disable=None, delay=1.0)]
    table = pd.DataFrame(rows)
    print("Table 5: equal layers, over a vocabulary of 32k; equal time, over equal layers")
    print(table.round(3).to_string(index=False))
    draw(runs, table)
    return runs, table


def transformer(ranks: int, sequence: int, vocabulary_k: int) -> ps.Transformer:
    return ps.Transformer(**SHAPES[ranks], sequence=sequence, vocabulary=1024 * vocabulary_k)


def splits(model: ps.Transformer, ranks: int) -> dict[str, ps.Pipeline]:
    """Return the model in stages of equal layers, parameters, and time."""
    profile = model.profile(PEAK_TFLOPS, EFFICIENCY)
    counts = [model.layers // ranks] * ranks
    counts[0] += 1  # the embedding
    counts[-1] += 1  # the head
    return {
        "layers": profile.split(counts),
        "parameters": ps.partition(profile, ranks, by="param_bytes"),
        "time": ps.partition(profile, ranks),
    }


def slow_stages_late(model: ps.Transformer, ranks: int) -> ps.Pipeline:
    """Return the model in stages of equal time, the other way round where splits are as good."""
    profile = model.profile(PEAK_TFLOPS, EFFICIENCY)
    return profile.split(ps.min_max_split(list(profile.total_ms())[::-1], ranks)[::-1])


def simulate(pipe: ps.Pipeline) -> Run:
    return ps.simulate(pipe, "1f1b", MICROBATCHES, engine="replay")


def row(case: tuple[int, int, int]) -> dict[str, float | int]:
    """Return the measured and simulated ratios of one case: of equal work, so of step times."""
    ranks, sequence, vocabulary_k = case
    model = transformer(*case)
    small = simulate(splits(transformer(ranks, sequence, 32), ranks)["layers"])
    pipes = splits(model, ranks)
    layers, time = simulate(pipes["layers"]), simulate(pipes["time"])
    late = simulate(slow_stages_late(model, ranks))
    over_32k, over_layers = PUBLISHED[case]
    return {
        "ranks": ranks,
        "sequence": sequence,
        "vocabulary": f"{vocabulary_k}k",
        "over_32k": over_32k,
        "ours": (1 - layers.bubble_fraction) / (1 - small.bubble_fraction),
        "over_layers": over_layers,
        "ours_late": layers.makespan / late.makespan,
        "ours_early": layers.makespan / time.makespan,
    }


def splits_text(runs: dict[str, Run]) -> str:
    columns: dict[str, list[str]] = {"stages of": list(runs)}
    pipes = [run.pipeline for run in runs.values()]
    times = [run.ranks.busy / MICROBATCHES for run in runs.values()]
    params = [[stage.param_bytes for stage in pipe.stages] for pipe in pipes]
    columns["slowest [ms]"] = [f"{time.max():.1f}" for time in times]
    columns["over mean time"] = [f"{time.max() / time.mean():.2f}" for time in times]
    columns["largest [GB]"] = [f"{max(sizes) / 1e9:.2f}" for sizes in params]
    columns["over mean size"] = [f"{max(sizes) * len(sizes) / sum(sizes):.2f}" for sizes in params]
    columns["step [s]"] = [f"{run.makespan / 1e3:.2f}" for run in runs.values()]
    columns["bubble"] = [f"{run.bubble_fraction:.1%}" for run in runs.values()]
    return text_table(columns, left=("stages of",))


def draw(runs: dict[str, Run], table: pd.DataFrame) -> None:
    import matplotlib.pyplot as plt

    from pipesim.plot.style import CURVES

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
    for (name, run), (colour, marker), line in zip(
        runs.items(), CURVES, ("-", "--", ":"), strict=False
    ):
        left.plot(
            run.ranks.busy / MICROBATCHES,
            marker=marker,
            ms=4,
            ls=line,
            color=colour,
            label=f"{name}: {run.makespan / 1e3:.1f} s a step",
        )
    left.set_xlabel("stage")
    left.set_ylabel("F and B of a micro-batch [ms]")
    left.set_ylim(bottom=0)
    ranks, _, vocabulary_k = EXAMPLE
    left.set_title(f"{SHAPES[ranks]['layers']} layers, vocabulary {vocabulary_k}k", fontsize=10)
    most = 1.08 * max(table.over_layers.max(), table.ours_early.max())
    right.plot([0.4, most], [0.4, most], color="0.6", lw=1, label="equal")
    for published, ours, label, (colour, marker), face in (
        ("over_32k", "ours", "equal layers, over vocabulary 32k", CURVES[0], "full"),
        ("over_layers", "ours_late", "equal time over equal layers", CURVES[1], "full"),
        ("over_layers", "ours_early", "the same, slow stages early", CURVES[2], "none"),
    ):
        right.plot(table[published], table[ours], marker, color=colour, label=label, fillstyle=face)
    right.set_xlabel("measured utilisation, ratio")
    right.set_ylabel("simulated from FLOPs, ratio")
    right.set_title("Vocabulary parallelism paper, Table 5", fontsize=10)
    for ax in (left, right):
        ax.grid(alpha=0.3)
        ax.legend(frameon=False)
    ps.plot.save(left, OUT / "11_equal_what.png")
    plt.close(figure)
    print("wrote out/11_equal_what.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the first three cases only")
    main(parser.parse_args().quick)
