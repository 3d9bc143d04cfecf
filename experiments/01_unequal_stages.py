"""What does a slow last stage cost a real pipeline, and which split of the layers is better?

The input is configs/straggler.toml: a production job of 4 stages with 9 layers each, whose last
stage also computes the loss. Prints a screen and writes the Gantt chart and the trace to out/.
"""

import argparse
from pathlib import Path

import pipesim as ps
from pipesim.cli.outputs import ProgressBar
from pipesim.files.table_file import write_table
from pipesim.report.run_text import bound_text, ladder_text, rank_text
from pipesim.run.run import Run

HERE = Path(__file__).parent
CONFIG = HERE / "configs" / "straggler.toml"
OUT = HERE.parent / "out"

MEASURED_MS = 2002.6  # span of the compute ops in the production trace, mean over its steps
MEASURED_BUBBLE = 0.5133
LAYERS_A_STAGE = 9
SPLITS = {"today": (9, 9, 9, 9), "by hand": (10, 10, 10, 6)}


def main(quick: bool = False) -> None:
    config = ps.read_config(CONFIG)
    run = ps.simulate_config(config)
    print(f"{config.sections.title}: {len(config.pipeline.stages)} stages x ", end="")
    print(f"{run.schedule.microbatches} micro-batches, {run.schedule.name}")
    print(f"measured  {MEASURED_MS:.1f} ms, bubble {MEASURED_BUBBLE:.2%}")
    print(f"simulated {run.makespan:.1f} ms, bubble {run.bubble_fraction:.2%}", end="")
    print(f"  ({run.makespan / MEASURED_MS - 1:+.2%})\n")
    print(ladder_text(ps.ladder(run)), rank_text(run), bound_text(run), sep="\n")
    print_splits(run, quick)

    ps.plot.save(ps.plot.gantt(run), OUT / "01_unequal_stages.png")
    write_table(run.trace, OUT / "01_unequal_stages.csv")
    print("\nwrote out/01_unequal_stages.png (Gantt chart), out/01_unequal_stages.csv (trace)")


def print_splits(run: Run, quick: bool) -> None:
    """Print what other splits of the layers would give.

    All layers are taken as equal, at the mean of the first three stages; what the last stage
    takes beyond its layers is the head, which stays on the last stage.
    """
    profile = layer_profile(run)
    links = {"latency_ms": {pair: link.latency_ms for pair, link in run.pipeline.links.items()}}
    microbatches, schedule = run.schedule.microbatches, run.schedule.name
    rows = {name: (*counts[:-1], counts[-1] + 1) for name, counts in SPLITS.items()}
    rows["min-max"] = ps.min_max_split(profile.total_ms(), run.schedule.stages)
    runs = {
        name: ps.simulate(profile.split(counts, **links), schedule, microbatches)
        for name, counts in rows.items()
    }
    if not quick:
        best = best_of_all(profile, run, links)
        rows["best by simulation"], runs["best by simulation"] = best.counts, best.run
    print(f"\nlayers a stage{'step ms':>12}{'':9}{'bubble':>9}")
    today = runs["today"].makespan
    for name, counts in rows.items():
        layers = "/".join(f"{count:2}" for count in (*counts[:-1], counts[-1] - 1))
        gain = "-" if name == "today" else f"{runs[name].makespan / today - 1:+.1%}"
        print(
            f"{layers:14}{runs[name].makespan:12.1f}{gain:>9}"
            f"{runs[name].bubble_fraction:>9.1%}  {name}"
        )


def layer_profile(run: Run) -> ps.LayerProfile:
    """Return equal layers and, as one more at the end, the head."""
    stages = run.pipeline.stages
    layers = LAYERS_A_STAGE * len(stages)

    def column(costs: list[float]) -> list[float]:
        layer = sum(costs[:-1]) / (len(costs) - 1) / LAYERS_A_STAGE
        return [layer] * layers + [costs[-1] - LAYERS_A_STAGE * layer]

    return ps.LayerProfile(
        forward_ms=column([stage.forward_ms for stage in stages]),
        backward_ms=column([stage.backward_ms for stage in stages]),
    )


def best_of_all(profile: ps.LayerProfile, run: Run, links: dict) -> ps.BestSplit:
    with ProgressBar("split") as progress:
        return ps.best_split(
            profile,
            run.schedule.stages,
            run.schedule.name,
            run.schedule.microbatches,
            progress=progress,
            **links,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out the search over splits")
    main(parser.parse_args().quick)
