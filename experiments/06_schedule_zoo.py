"""Which schedule is the fastest on equal stages, and is it still on unequal ones?

All schedules on one model of 8 stages on 4 ranks: two chunks a rank where the schedule takes
two, merged to one where it takes one. Then the same with a heavy last stage. Two
tables and a figure. The bidirectional ones gain most: each rank holds an early and a late stage,
so that the slow one is shared. None beats the bound of its own stages.

Then five of them op by op, with the heavy last stage and 8 micro-batches: of the 82.5 ms that 1F1B
takes, interleaved saves 10.4 %, ZB-H1 13.9 %, ZB-V 19.7 %, DualPipe 32.1 %.
"""

import argparse
from pathlib import Path

import pandas as pd

import pipesim as ps
from pipesim.schedules.families.registry import FAMILIES

OUT = Path(__file__).parent.parent / "out"
RANKS, MICROBATCHES = 4, 16
STAGES = 8
FORWARD_MS, INPUT_GRAD_MS, WEIGHT_GRAD_MS = 1.0, 1.0, 0.9
HEAVY = 1.8  # factor of the last of the 8 stages
LATENCY_MS = 0.02
STASH_BYTES = 250_000_000  # of one micro-batch on one of the 8 stages
COMPARED, COMPARED_MICROBATCHES = ("1f1b", "interleaved", "zb_h1", "zb_v", "dualpipe"), 8


def main(quick: bool = False) -> pd.DataFrame:
    names = ["1f1b", "interleaved", "zb_h1", "dualpipe"] if quick else list(FAMILIES)
    tables = []
    for label, factor in (("equal stages", 1.0), (f"last stage x {HEAVY:g}", HEAVY)):
        table = zoo(names, factor)
        print(f"{label}: {RANKS} ranks, {MICROBATCHES} micro-batches\n")
        print(table.to_string(index=False, float_format=lambda x: f"{x:.3f}"), end="\n\n")
        tables.append(table.assign(stages=label))
    both = pd.concat(tables, ignore_index=True)
    draw(both)
    draw_compared(compared())
    print("wrote out/06_schedule_zoo.png, out/06_compared.png")
    return both


def zoo(names: list[str], factor: float) -> pd.DataFrame:
    rows = []
    for name in names:
        family = FAMILIES[name]
        if family.backward == "none" or "batches" in family.options:
            continue  # no whole step, or more than one
        run = simulate(name, factor, MICROBATCHES)
        rows.append(
            {
                "schedule": name,
                "step_ms": run.makespan,
                "inflation": run.inflation,
                "bubble": run.bubble_fraction,
                "span_bubble": run.span_bubble,
                "above_bound": max(0.0, run.above_lower_bound / run.lower_bound),
                "stash_gb": max(run.ranks.peak_stash_bytes) / 1e9,
            }
        )
    return pd.DataFrame(rows).sort_values(["step_ms", "stash_gb"], ignore_index=True)


def simulate(name: str, factor: float, microbatches: int) -> ps.Run:
    """Return the run of one schedule, with as many stages a rank as it takes."""
    factors = [1.0] * (STAGES - 1) + [factor]
    costs = f"F = I = {FORWARD_MS:g} ms, W = {WEIGHT_GRAD_MS:g} ms"
    pipe = ps.Pipeline.from_costs(
        forward=[FORWARD_MS * x for x in factors],
        input_grad=[INPUT_GRAD_MS * x for x in factors],
        weight_grad=[WEIGHT_GRAD_MS * x for x in factors],
        ranks=RANKS,
        latency_ms=LATENCY_MS,
        stash_bytes=STASH_BYTES,
        overlap_factor=1.0,
        title="" if factor == 1.0 else f"{STAGES} stages, the last {factor:g} times as slow",
        source=f"Made-up costs: {costs} of the other stages, {LATENCY_MS:g} ms a hop",
    )
    chunks = FAMILIES[name].chunks
    return ps.simulate(pipe if chunks is None else pipe.regroup(chunks), name, microbatches)


def compared() -> list[ps.Run]:
    """Return runs of a few schedules with the heavy last stage, the slowest first."""
    runs = [simulate(name, HEAVY, COMPARED_MICROBATCHES) for name in COMPARED]
    return sorted(runs, key=lambda run: -run.makespan)


def draw_compared(runs: list[ps.Run]) -> None:
    """Draw them under each other, with what each saves beside the slowest."""
    import matplotlib.pyplot as plt

    ax = ps.plot.gantt(runs)
    ps.plot.save(ax, OUT / "06_compared.png")
    plt.close(ax.figure)


def draw(table: pd.DataFrame) -> None:
    """Draw step times, one row a schedule, next to what a rank holds at most."""
    import matplotlib.pyplot as plt

    from pipesim.plot.style import CURVES

    figure, (times, stash) = plt.subplots(
        1, 2, figsize=(8.5, 5.6), sharey=True, width_ratios=(3, 1), layout="constrained"
    )
    wide = table.pivot(index="schedule", columns="stages", values="step_ms")
    wide = wide.loc[table.schedule.unique()[::-1], list(table.stages.unique())]  # fastest on top
    times.hlines(wide.index, wide.min(axis=1), wide.max(axis=1), color="0.8", lw=2, zorder=1)
    for label, (colour, marker) in zip(wide.columns, CURVES, strict=False):
        times.plot(wide[label], wide.index, marker, color=colour, label=label, ms=7)
    most = table.groupby("schedule").stash_gb.max()[wide.index]
    bars = stash.barh(most.index, most, height=0.6, color="0.75", edgecolor="0.3", lw=0.6)
    stash.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    times.set_xlabel("step [ms]")
    stash.set_xlabel("most stash on a rank [GB]")
    stash.set_xlim(0, 1.25 * most.max())
    times.grid(axis="x", alpha=0.3)
    times.legend(frameon=False)
    times.set_title(f"{STAGES} stages on {RANKS} ranks, {MICROBATCHES} micro-batches", fontsize=10)
    ps.plot.save(times, OUT / "06_schedule_zoo.png")
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="four schedules only")
    main(parser.parse_args().quick)
