"""The command `pipesim compare`: several schedules on the stages of one config."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pipesim.base.errors import ConfigError, DeadlockError, MemoryLimitError, ScheduleError
from pipesim.base.files import GANTT_ENDINGS, is_schedule_file
from pipesim.base.ops import Kind
from pipesim.base.text import size_cells, size_unit, text_table
from pipesim.cli.assignments import assignment
from pipesim.cli.flags import (
    Commands,
    add_config_argument,
    add_json_flag,
    add_memory_flag,
    add_set_flag,
    add_window_flag,
)
from pipesim.cli.outputs import ProgressBar, check_output, read_window, to_json, write_gantt

if TYPE_CHECKING:
    from pipesim.studies.compare import Comparison


def add(commands: Commands, words: str) -> None:
    """Add the command and its flags to the command line."""
    compare = commands.add_parser(
        "compare",
        help=words,
        description="Run several schedules on the stages of one config, fastest first.",
    )
    add_config_argument(compare)
    compare.add_argument(
        "--schedules",
        required=True,
        metavar="NAME,..",
        help="names, .csv files, or all of `pipesim schedules`",
    )
    add_set_flag(compare)
    add_memory_flag(compare)
    compare.add_argument(
        "--gantt",
        metavar="FILE",
        help="write the Gantt charts under each other: .png, .svg, .pdf or .html",
    )
    add_window_flag(compare)
    add_json_flag(compare)
    compare.set_defaults(execute=compare_command)


def compare_command(arguments: Namespace) -> None:
    """Run several schedules on the stages of one config and print them, fastest first."""
    from pipesim.config.override import override
    from pipesim.config.read import parse_pipeline
    from pipesim.config.rules import OR_A_FILE, unknown
    from pipesim.config.simulate import run_options
    from pipesim.config.training import training_of
    from pipesim.files.config_file import read_document
    from pipesim.report.run_text import shared_notes
    from pipesim.schedules.families.registry import FAMILIES
    from pipesim.studies.compare import choose_schedules, compare_runs, reason

    check_output("--gantt", arguments.gantt, GANTT_ENDINGS)
    window = read_window(arguments.window, arguments.gantt)
    overrides = dict(map(assignment, arguments.set))
    names = [name.strip() for name in arguments.schedules.split(",")]
    if "all" in names:
        names = list(FAMILIES)
    for name in names:
        if name not in FAMILIES and not is_schedule_file(name):
            raise ScheduleError(unknown("--schedules", name, ("all", *FAMILIES), OR_A_FILE))
    chosen = choose_schedules(names)
    document = override(read_document(arguments.config), arguments.config, overrides)
    if isinstance(document.get("run"), dict):
        document["run"].setdefault("schedule", names[0])
    path = arguments.config
    sections, pipe = parse_pipeline(document, path, Path(path).parent, list(chosen))
    with ProgressBar("op") as progress:
        comparison = compare_runs(
            pipe,
            chosen,
            sections.run.microbatches,
            options=sections.run.options,
            training=training_of(sections),
            progress=progress,
            **run_options(sections),
        )
    runs, unfit, steps = comparison.runs, comparison.unfit, comparison.step_ms
    if not runs:
        for error in unfit.values():
            if isinstance(error, DeadlockError | MemoryLimitError):
                raise error
        faults = dict.fromkeys(f"run.schedule: {reason(error)}" for error in unfit.values())
        raise ConfigError(arguments.config, list(faults))
    left_out = [_left_out(name, error) for name, error in unfit.items()]
    if arguments.gantt:
        write_gantt(list(runs), arguments.gantt, window=window, notes=left_out)
    notes = list(shared_notes(result.schedule for result in runs))
    if arguments.json:
        does_not_fit = [{"schedule": n, "reason": reason(e)} for n, e in unfit.items()]
        rows = [{**r.summary(), "step_ms": steps[r.schedule.name]} for r in runs]
        print(to_json({"runs": rows, "does_not_fit": does_not_fit, "notes": notes}))
        return
    print("\n".join((_table(comparison), *notes)))
    if comparison.ended:
        endless = [r.schedule.name for r in runs if r.schedule.name not in comparison.ended]
        but = f", but for {', '.join(endless)}" if endless else ""
        print(f"step: with the reductions and the optimizer of [training]{but}")
    alone = [r.schedule.name for r in runs if r.schedule.kinds == {Kind.F}]
    if alone and len(alone) < len(runs):
        print(f"not all of them run the same ops: {', '.join(alone)} run no backwards")
    for line in left_out:
        print(line)


def _left_out(name: str, error: Exception) -> str:
    from pipesim.studies.compare import reason

    why = reason(error).removeprefix(f"{name}: ").removeprefix(f"{name} ")
    return f"{name} does not fit: {why}"


def _table(comparison: "Comparison") -> str:
    from pipesim.studies.compare import held_microbatches

    runs, microbatches = comparison.runs, comparison.microbatches
    bounds = [comparison.bound_ms(run) for run in runs]
    steps = [comparison.step_ms[r.schedule.name] for r in runs]
    stash = [max(r.ranks.peak_stash_bytes) for r in runs]
    memory = [max(r.peak_memory) for r in runs]
    columns = {
        "schedule": [r.schedule.name for r in runs],
        "stages": [str(r.schedule.stages) for r in runs],
        "step ms": [f"{step:.2f}" for step in steps],
        "": [f"{step / steps[0] - 1:+.2%}" if steps[0] else "-" for step in steps],
        "inflation": ["-" if r.inflation is None else f"{r.inflation:.4f}" for r in runs],
        "bubble": [f"{r.bubble_fraction:.2%}" for r in runs],
        "span bubble": ["-" if r.span_bubble is None else f"{r.span_bubble:.2%}" for r in runs],
        "closed form": ["-" if r.closed_form is None else f"{r.closed_form:.2%}" for r in runs],
        "lower bound": [f"{bound:.2f}" for bound in bounds],
        "held": [f"{held_microbatches(r):.4g}" for r in runs],
    }
    for name, sizes in (("stash", stash), ("memory", memory if memory != stash else [])):
        if any(sizes):
            unit, scale = size_unit(max(sizes))
            columns[f"{name} {unit}"] = size_cells(sizes, scale)
    if len(set(columns["stages"])) == 1:
        del columns["stages"]
    note = (
        "held: micro-batches in flight at most, on the rank that holds the most "
        "(chunks and slices of them as parts)"
    )
    several = [r.schedule.name for r in runs if r.schedule.microbatches != microbatches]
    if several:
        note += (
            f"\n{', '.join(several)}: several batches without flush; step and bound are a batch's"
        )
    return f"{runs[0].pipeline.title}\n{text_table(columns, left=('schedule',))}\n{note}"
