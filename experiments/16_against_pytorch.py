"""Does the simulation predict what PyTorch's own pipelining takes?

Each rank is a process that runs `torch.distributed.pipelining` over gloo, with stages that sleep:
as many as there are run side by side, on however few cores. The steps of PyTorch's GPipe, 1F1B,
interleaved 1F1B and ZB-V, and of orders that pipesim writes as files, on several splits of a
model, are set beside three predictions:

    nominal     of the times that the stages sleep
    measured    of the time that each op was measured to take: a longest path
    fitted      of the times that they sleep, with one overhead for all ops and one latency for all
                messages, from the ends of the ops of a single run

Last come two ranks that compute, each kept on a core.
"""

import argparse
import os
import platform
import sys
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

import pipesim as ps
from pipesim.plot.style import CURVES

ROOT = Path(__file__).parent.parent
OUT = ROOT / "out"
RESULTS = ROOT / "benchmarks" / "against_pytorch.md"

# Forward of each of 16 layers [ms]; a backward takes twice that, half of it the input's gradient.
LAYERS = [3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 4, 4, 4, 6]
SPLITS = {  # layers a stage, on 4 ranks
    "equal layers": (4, 4, 4, 4),
    "by time": (6, 4, 3, 3),
    "heavy last": (4, 4, 3, 5),
}
CHUNKED = (2,) * 8  # two stages a rank
EIGHT = (2,) * 8  # one a rank
FIT_ON = ("Schedule1F1B", 8)  # on the first split
SIZES = {4: (4, 8, 16), 8: (8, 16)}
REPEATS = 5


def main(quick: bool = False) -> pd.DataFrame | None:
    if find_spec("torch") is None:
        print("this runs PyTorch itself: pip install 'pipesim[torch]'", file=sys.stderr)
        print("nothing was run")
        return None
    plans = {2: quick_plan()} if quick else {4: plan_for(4), 8: plan_for(8)}
    rows = [row for plan in plans.values() for row in measured(plan, 2 if quick else REPEATS)]
    table = with_fit(rows)
    print(text(table), end="\n\n")
    verdict = "\n".join(summary(table))
    print(verdict, end="\n\n")
    computed = computing(m=4 if quick else 16, repeats=2 if quick else REPEATS)
    print(computed)
    draw(table)
    if not quick:
        write(table, verdict, computed)
    return table


def profile() -> ps.LayerProfile:
    return ps.LayerProfile(
        forward_ms=LAYERS, input_grad_ms=LAYERS, weight_grad_ms=LAYERS, source="made up"
    )


def quick_plan() -> list[dict]:
    pipe = ps.Pipeline.from_costs([4, 6], input_grad=[4, 6], weight_grad=[4, 6])
    return [
        {"split": "two", "pipe": pipe, "schedule": schedule, "m": 4}
        for schedule in ("Schedule1F1B", "ScheduleGPipe", ps.build_schedule("zb_h1", 2, 4))
    ]


def plan_for(ranks: int) -> list[dict]:
    """Return what is run on so many ranks: splits, schedules, numbers of micro-batches."""
    layers = profile()
    splits = SPLITS if ranks == 4 else {"equal layers": EIGHT}
    plan = []
    for m in SIZES[ranks]:
        for name, counts in splits.items():
            pipe = layers.split(counts)
            for schedule in ("Schedule1F1B", "ScheduleGPipe", "zb_h1"):
                plan.append({"split": name, "pipe": pipe, "schedule": schedule, "m": m})
        if ranks == 4:
            looped = layers.split(CHUNKED, ranks=ranks)
            v = layers.split(CHUNKED, ranks=ranks, placement="v_shape")
            plan.append({"split": "8 stages", "pipe": looped, "m": m} | INTERLEAVED)
            plan.append({"split": "8 stages", "pipe": v, "m": m} | ZBV)
    for entry in plan:
        if entry["schedule"] == "zb_h1":  # as a file that pipesim writes
            entry["schedule"] = ps.build_schedule("zb_h1", ranks, entry["m"])
    return plan


INTERLEAVED = {"schedule": "ScheduleInterleaved1F1B"}
ZBV = {"schedule": "ScheduleZBVZeroBubble"}


def measured(plan: list[dict], repeats: int) -> list[dict]:
    """Return the entries of a plan with what was measured of each."""
    from pipesim.runtime import measure_steps, sleeping_step

    steps = [sleeping_step(entry["pipe"], entry["schedule"], entry["m"]) for entry in plan]
    found = measure_steps(steps, repeats=repeats, timeout_s=300)
    return [entry | {"found": step} for entry, step in zip(plan, found, strict=True)]


def with_fit(rows: list[dict]) -> pd.DataFrame:
    """Return a table of measured and predicted step times, one row a run."""
    on = next((r for r in rows if (r["schedule"], r["m"]) == FIT_ON), rows[0])
    found = on["found"]
    fit = ps.fit_overhead(
        [
            ps.MeasuredRun(
                on["pipe"], found.order, found.makespan, None, found.protocol, found.end_ms
            )
        ]
    )
    print(f"fitted on {on['schedule']}, {on['split']}, m = {on['m']}: {fit}\n")
    table = []
    for row in rows:
        step, pipe = row["found"], row["pipe"]
        given = isinstance(row["schedule"], ps.Schedule)
        table.append(
            {
                "p": step.order.ranks,
                "split": row["split"],
                "schedule": f"{step.order.name}.csv" if given else row["schedule"],
                "m": row["m"],
                "measured": step.makespan,
                "spread": (step.makespans.max() - step.makespans.min()) / step.makespan,
                "nominal": predicted([pipe], step),
                "per_op": predicted(step.pipelines(), step),
                "fitted": predicted([fit.apply(pipe)], step),
                "fit_on": row is on,
            }
        )
    return pd.DataFrame(table)


def predicted(pipes: list[ps.Pipeline], step: object) -> float:
    """Return the median of the makespans of a step's order on some pipelines."""
    order = step.order.relabelled()
    numbers = ps.simulate_many(order, pipes, protocol=step.protocol)
    return float(np.median(numbers["makespan_ms"]))


def text(table: pd.DataFrame) -> str:
    shown = table.drop(columns="fit_on").copy()
    for name in ("nominal", "per_op", "fitted"):
        shown.insert(
            shown.columns.get_loc(name) + 1, f"{name} %", 100 * (table[name] / table.measured - 1)
        )
    shown["spread"] *= 100
    formats = dict.fromkeys(("measured", "nominal", "per_op", "fitted"), "{:.1f}".format)
    formats |= {f"{name} %": "{:+.2f}".format for name in ("nominal", "per_op", "fitted")}
    formats["spread"] = "{:.1f}".format
    shown = shown.rename(columns={"spread": "spread %"})
    formats["spread %"] = formats.pop("spread")
    return shown.to_string(index=False, formatters=formats)


def summary(table: pd.DataFrame) -> list[str]:
    """Return how far the predictions are off, and whether they rank as reality does."""
    lines = []
    for name in ("nominal", "per_op", "fitted"):
        for p, rows in table[~table.fit_on].groupby("p"):
            error = 100 * (rows[name] / rows.measured - 1).abs()
            lines.append(
                f"{name:8} p = {p}: median error {error.median():.2f} %, largest "
                f"{error.max():.2f} %, within 1 %: {(error <= 1).sum()} of {len(error)}"
            )
    for name in ("nominal", "fitted"):
        pairs = same = clear = same_of_clear = 0
        for _, rows in table.groupby(["p", "m"]):
            for a, b in combinations(rows.itertuples(), 2):
                agree = (a.measured < b.measured) == (getattr(a, name) < getattr(b, name))
                pairs, same = pairs + 1, same + agree
                if abs(a.measured / b.measured - 1) > 0.01:
                    clear, same_of_clear = clear + 1, same_of_clear + agree
        lines.append(
            f"{name:8} ranks {same} of {pairs} pairs of the same p and m as measured; of those "
            f"that differ by more than 1 %, {same_of_clear} of {clear}"
        )
    return lines


def computing(m: int, repeats: int) -> str:
    """Return what was measured and predicted of two ranks that compute, each kept on a core."""
    import torch
    from torch import nn

    from pipesim.runtime import measure_steps, real_step

    torch.manual_seed(0)
    width = 512
    blocks = [
        nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(count)])
        for count in (6, 4)
    ]
    batch = torch.randn(m * 256, width)
    cores = sorted(os.sched_getaffinity(0))[:2] if hasattr(os, "sched_getaffinity") else []
    steps = [
        real_step(blocks, schedule, batch, batch, nn.MSELoss(), microbatches=m)
        for schedule in ("Schedule1F1B", "ScheduleGPipe", ps.build_schedule("zb_h1", 2, m))
    ]
    found = measure_steps(steps, repeats=repeats, cores=cores if len(cores) == 2 else None)
    on = found[0]
    runs = zip(on.pipelines(), on.makespans.tolist(), on.end, strict=True)
    fit = ps.fit_overhead(
        [
            ps.MeasuredRun(pipe, on.order, step_ms, None, on.protocol, ends)
            for pipe, step_ms, ends in runs
        ]
    )
    lines = [
        f"two ranks that compute, m = {m}: measured [ms], the longest path of the measured ops,",
        f"with {fit.overhead_ms:.2f} ms more an op, {fit.latency_ms:.2f} ms a message (from 1f1b)",
    ]
    for step in found:
        pipes = step.pipelines()
        cells = [
            f"{took:8.1f} {took / step.makespan - 1:+6.1%}"
            for took in (predicted(pipes, step), predicted([*map(fit.apply, pipes)], step))
        ]
        lines.append(f"{step.order.name:8} {step.makespan:8.1f} {'  '.join(cells)}")
    return "\n".join(lines)


def draw(table: pd.DataFrame) -> None:
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(7.5, 4.6), layout="constrained")
    ways = {
        "nominal": "costs alone",
        "per_op": "measured ops",
        "fitted": "overhead, latency fitted",
    }
    for (name, label), (colour, marker) in zip(ways.items(), CURVES, strict=False):
        filled = {} if name == "fitted" else {"mfc": "white"}
        ax.plot(
            table[name], table.measured / table[name], marker, color=colour, label=label, **filled
        )
    ax.axhspan(0.99, 1.01, color="0.9", zorder=0, label="within 1 %")
    ax.axhline(1, color="black", lw=0.8)
    ax.set_xlabel("predicted step [ms]")
    ax.set_ylabel("measured / predicted")
    ax.set_title("torch.distributed.pipelining on sleeping stages, and its simulation", fontsize=10)
    ax.grid(alpha=0.3)
    ax.legend(frameon=False, fontsize=9)
    ps.plot.save(ax, OUT / "16_against_pytorch.png")
    plt.close(figure)
    print("\nwrote out/16_against_pytorch.png")


def write(table: pd.DataFrame, verdict: str, computed: str) -> None:
    import torch

    RESULTS.write_text(
        f"# Against PyTorch\n\nWritten by `python experiments/16_against_pytorch.py`: medians of "
        f"{REPEATS} steps [ms].\n`nominal`: predicted from the times that stages sleep; `per_op`: "
        f"from the measured time of each op;\n`fitted`: from the former with one overhead and one "
        f"latency, fitted on the ends of the ops of\n{FIT_ON[0]} on the first split at m = "
        f"{FIT_ON[1]}. `spread`: largest minus smallest over the median.\n\n"
        f"PyTorch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"gloo on loopback\n\n```\n{text(table)}\n```\n\n```\n{verdict}\n```\n\n```\n"
        f"{computed}\n```\n"
    )
    print(f"wrote {RESULTS.relative_to(ROOT)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two ranks, some seconds")
    sys.exit(2 if main(parser.parse_args().quick) is None else 0)
