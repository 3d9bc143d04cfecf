"""The command `pipesim compare`: several schedules on the stages of one config."""

from argparse import Namespace
from pathlib import Path

from pipesim.base.errors import ConfigError, DeadlockError, MemoryLimitError, ScheduleError
from pipesim.base.files import GANTT_ENDINGS, is_schedule_file
from pipesim.base.ops import Kind
from pipesim.base.text import size_cells, size_unit, text_table
from pipesim.cli.assignments import assignment
from pipesim.cli.outputs import ProgressBar, check_output, read_window, to_json, write_gantt
from pipesim.config.override import override
from pipesim.config.read import parse_pipeline
from pipesim.config.rules import OR_A_FILE, unknown
from pipesim.config.simulate import run_options
from pipesim.config.training import training_of
from pipesim.files.config_file import Document, read_document
from pipesim.files.schedule_csv.read import read_schedule
from pipesim.pipeline.pipeline import Pipeline
from pipesim.report.run_text import shared_notes
from pipesim.run.resolve import resolve_schedule
from pipesim.run.run import Run
from pipesim.run.simulate import simulate
from pipesim.run.step import simulate_slowest, simulate_step, without_end
from pipesim.schedules.families.facts import Family
from pipesim.schedules.families.registry import FAMILIES
from pipesim.schedules.order.schedule import Schedule


def compare(arguments: Namespace) -> None:
    """Run several schedules on the stages of one config and print them, fastest first."""
    check_output("--gantt", arguments.gantt, GANTT_ENDINGS)
    window = read_window(arguments.window, arguments.gantt)
    overrides = dict(map(assignment, arguments.set))
    names = [name.strip() for name in arguments.schedules.split(",")]
    if "all" in names:
        names = list(FAMILIES)
    chosen: dict[str, str | Schedule] = {}
    for name in names:
        if name not in FAMILIES and not is_schedule_file(name):
            raise ScheduleError(unknown("--schedules", name, ("all", *FAMILIES), OR_A_FILE))
        chosen[name] = name if name in FAMILIES else _from_file(name, names)
    document = override(read_document(arguments.config), arguments.config, overrides)
    if isinstance(document.get("run"), dict):
        document["run"].setdefault("schedule", names[0])
    runs, unfit, wanted, ends = _run_each(document, arguments.config, chosen)
    if not runs:
        for error in unfit.values():
            if isinstance(error, DeadlockError | MemoryLimitError):
                raise error
        faults = dict.fromkeys(f"run.schedule: {_reason(error)}" for error in unfit.values())
        raise ConfigError(arguments.config, list(faults))
    microbatches = wanted or runs[0].schedule.microbatches
    steps = {r.schedule.name: _of_a_batch(r.makespan, r, microbatches) for r in runs}
    steps = {name: step + ends.get(name, 0.0) for name, step in steps.items()}
    runs.sort(key=lambda result: _rank(result, steps))
    left_out = [_left_out(name, error) for name, error in unfit.items()]
    if arguments.gantt:
        write_gantt(runs, arguments.gantt, window=window, notes=left_out)
    notes = list(shared_notes(result.schedule for result in runs))
    if arguments.json:
        does_not_fit = [{"schedule": n, "reason": _reason(e)} for n, e in unfit.items()]
        rows = [{**r.summary(), "step_ms": steps[r.schedule.name]} for r in runs]
        print(to_json({"runs": rows, "does_not_fit": does_not_fit, "notes": notes}))
        return
    print("\n".join((_comparison(runs, microbatches, steps), *notes)))
    if ends:
        endless = [r.schedule.name for r in runs if r.schedule.name not in ends]
        but = f", but for {', '.join(endless)}" if endless else ""
        print(f"step: with the reductions and the optimizer of [training]{but}")
    alone = [r.schedule.name for r in runs if r.schedule.kinds == {Kind.F}]
    if alone and len(alone) < len(runs):
        print(f"not all of them run the same ops: {', '.join(alone)} run no backwards")
    for line in left_out:
        print(line)


def _run_each(
    document: Document, path: str, chosen: dict[str, str | Schedule]
) -> tuple[list[Run], dict[str, Exception], int | None, dict[str, float]]:
    """Return the runs of the schedules that fit a config, why the others do not, m, and ends.

    m is None if the costs of micro-batches say it. Of several replicas it is the slowest one's
    run; the ends of the steps [ms] are what reductions and optimizer add, by schedule.

    Each is given by its name, and from a file as a Schedule.
    Where a schedule takes fewer stages a rank than the config has, neighbouring ones are merged.
    Of the options in the config each gets those that it has.
    """
    sections, pipe = parse_pipeline(document, path, Path(path).parent, list(chosen))
    training = training_of(sections)
    # A config may leave m to a schedule file, which then all others follow.
    batches = (s.microbatches for s in chosen.values() if isinstance(s, Schedule))
    microbatches = sections.run.microbatches or next(batches, None)
    runs: list[Run] = []
    unfit: dict[str, Exception] = {}
    ends: dict[str, float] = {}
    for name, schedule in chosen.items():
        family = FAMILIES.get(name)
        own = {} if family is None else family.options
        try:
            with ProgressBar("op") as progress:
                fitting = pipe if family is None else _regrouped(pipe, family)
                options = {k: v for k, v in sections.run.options.items() if k in own}
                order = resolve_schedule(fitting, schedule, microbatches, options)
                how = run_options(sections) | {"progress": progress}
                if training is None:
                    result = simulate(fitting, order, **how)
                elif without_end(order) is not None:
                    result = simulate_slowest(fitting, order, training=training, **how)
                else:
                    step = simulate_step(fitting, order, training=training, **how)
                    result = step.runs[step.slowest_replica]
                    ends[order.name] = step.step_ms - step.makespan
        except (DeadlockError, MemoryLimitError, ScheduleError, ValueError) as error:
            unfit[name] = error
        else:
            runs.append(result)
    return runs, unfit, microbatches, ends


def _reason(error: Exception) -> str:
    """Return why a schedule could not be run, in one line."""
    lines = str(error).splitlines()
    return f"hangs: {lines[1].strip()}" if isinstance(error, DeadlockError) else lines[0]


def _left_out(name: str, error: Exception) -> str:
    why = _reason(error).removeprefix(f"{name}: ").removeprefix(f"{name} ")
    return f"{name} does not fit: {why}"


def _from_file(path: str, names: list[str]) -> Schedule:
    """Return the schedule in a file, called by the path where its name would not tell it apart."""
    schedule = read_schedule(path)
    stems = [Path(name).stem for name in names]
    return schedule.relabelled(name=path) if stems.count(schedule.name) > 1 else schedule


def _regrouped(pipe: Pipeline, family: Family) -> Pipeline:
    chunks = family.chunks
    if chunks is None or len(pipe.stages) % (pipe.ranks * chunks):
        return pipe
    return pipe.regroup(chunks)


def _of_a_batch(time: float, run: Run, microbatches: int) -> float:
    """Return a batch's part of a time [ms]; asynchronous schedules run several in one go."""
    return time * microbatches / run.schedule.microbatches


def _rank(run: Run, steps: dict[str, float]) -> tuple[bool, float, int, float]:
    """Return what runs are sorted by: the time of a batch, then memory.

    What runs forwards only is no rival of the others and comes last.
    """
    step = float(f"{steps[run.schedule.name]:.9g}")  # rounding makes no winner
    return run.schedule.kinds == {Kind.F}, step, max(run.ranks.peak_stash_bytes), _held(run)


def _comparison(runs: list[Run], microbatches: int, step_of: dict[str, float]) -> str:
    bounds = [_of_a_batch(r.lower_bound, r, microbatches) for r in runs]
    steps = [step_of[r.schedule.name] for r in runs]
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
        "held": [f"{_held(r):.4g}" for r in runs],
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


def _held(run: Run) -> float:
    """Return the most that a rank holds, in micro-batches of all its stages."""
    schedule = run.schedule
    copies = schedule.placement.directions
    parts = schedule.stages // schedule.ranks * schedule.slices
    return max(schedule.peak_in_flight()) / (parts if copies == 1 else 1)
