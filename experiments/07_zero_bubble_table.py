"""Do the zero-bubble schedules come out as in Table 5 of their paper?

The profiled costs of Table 9, all schedules of Table 5, span bubble in percent: published, ours.
ZB-1p and ZB-2p are what a search finds, ours theirs or better. Interleaved is Megatron's
order, which takes p transfers longer than the paper's model of it.
"""

import argparse
from pathlib import Path

import pandas as pd
from tqdm import tqdm

import pipesim as ps

HERE = Path(__file__).parent
OUT = HERE.parent / "out"

SCHEDULES = ("1f1b", "interleaved", "zb_h1", "zb_h2", "zb_1p", "zb_2p")
# Config, chunks a rank of the interleaved schedule, published rates in the order of SCHEDULES.
PUBLISHED = {
    "1.5B_m24": (3, (0.2431, 0.1055, 0.1585, 0.1083, 0.1585, 0.0433)),
    "1.5B_m32": (3, (0.1985, 0.0818, 0.1242, 0.0837, 0.1242, 0.0039)),
    "6.2B_m24": (4, (0.2347, 0.0808, 0.1323, 0.0698, 0.1323, 0.0029)),
    "6.2B_m64": (4, (0.1091, 0.0320, 0.0554, 0.0294, 0.0554, 0.0010)),
    "14.6B_m64": (3, (0.2082, 0.0852, 0.1088, 0.0516, 0.1088, 0.0054)),
    "14.6B_m128": (3, (0.1251, 0.0445, 0.0576, 0.0266, 0.0576, 0.0028)),
    "28.3B_m96": (2, (0.2646, 0.1493, 0.1421, 0.0641, 0.1421, 0.0038)),
    "28.3B_m256": (2, (0.1352, 0.0624, 0.0594, 0.0257, 0.0594, 0.0018)),
}


def main(quick: bool = False) -> pd.DataFrame:
    models = list(PUBLISHED)[: 2 if quick else None]
    rows = []
    total = len(models) * len(SCHEDULES)
    with tqdm(total=total, unit="run", leave=False, disable=None, delay=1.0) as bar:
        for model in models:
            chunks, rates = PUBLISHED[model]
            config = ps.read_config(HERE / "configs" / f"zero_bubble_{model}.toml")
            pipe, m = config.pipeline, config.sections.run.microbatches
            for schedule, published in zip(SCHEDULES, rates, strict=True):
                stages = cut(pipe, chunks) if schedule == "interleaved" else pipe
                run = ps.simulate(stages, schedule, m)
                rows.append((model, schedule, published, run.span_bubble))
                bar.update()
    table = pd.DataFrame(rows, columns=["model", "schedule", "published", "ours"])
    print(side_by_side(table))
    draw(table)
    return table


def cut(pipe: ps.Pipeline, chunks: int) -> ps.Pipeline:
    """Return the pipeline of equal stages with every stage cut into so many chunks."""
    stage = pipe.stages[0]
    return ps.Pipeline.from_costs(
        stage.forward_ms / chunks,
        input_grad=stage.input_grad_ms / chunks,
        weight_grad=stage.weight_grad_ms / chunks,
        stages=len(pipe.stages) * chunks,
        ranks=pipe.ranks,
        latency_ms=pipe.link(0, 1).latency_ms,
    )


def side_by_side(table: pd.DataFrame) -> str:
    percent = table.assign(
        both=[f"{100 * p:.2f} {100 * o:.2f}" for p, o in table[["published", "ours"]].to_numpy()]
    )
    wide = percent.pivot(index="model", columns="schedule", values="both")
    wide = wide.loc[table.model.unique(), list(SCHEDULES)]
    return f"span bubble [%], published and ours\n{wide.to_string()}"


def draw(table: pd.DataFrame) -> None:
    import matplotlib.pyplot as plt

    from pipesim.plot.style import CURVES

    figure, ax = plt.subplots(figsize=(6.5, 4.6), layout="constrained")
    most = 100 * max(table.published.max(), table.ours.max()) * 1.08
    ax.plot([0, most], [0, most], color="0.6", lw=1, label="equal")
    for (schedule, rows), (colour, marker) in zip(
        table.groupby("schedule", sort=False), CURVES, strict=False
    ):
        ax.plot(
            100 * rows.published, 100 * rows.ours, marker[0], color=colour, label=schedule, ls=""
        )
    ax.set_xlabel("published span bubble [%]")
    ax.set_ylabel("simulated span bubble [%]")
    ax.set_title("Zero Bubble paper, Table 5", fontsize=10)
    ax.grid(alpha=0.3)
    ax.legend(frameon=False)
    ps.plot.save(ax, OUT / "07_zero_bubble_table.png")
    plt.close(figure)
    print("wrote out/07_zero_bubble_table.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the first two models only")
    main(parser.parse_args().quick)
