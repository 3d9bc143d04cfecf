"""The commands: each reads a config, runs it, prints, and writes the files asked for."""

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipesim.cli.outputs import ProgressBar, check_output
from pipesim.cli.parser import RUN_FLAGS
from pipesim.config import (
    override,
    parse_config,
    parse_pipeline,
    read_config,
    simulate_config,
)
from pipesim.errors import ConfigError, DeadlockError, ScheduleError
from pipesim.io.config_file import Document, read_document
from pipesim.io.files import FIGURE_ENDINGS, TABLE_ENDINGS
from pipesim.io.table_file import write_table
from pipesim.ops import Kind
from pipesim.pipeline import Pipeline
from pipesim.report import headline, run_report
from pipesim.run import Run, simulate
from pipesim.schedules import FAMILIES, Family
from pipesim.text_gantt import text_gantt
from pipesim.text_table import text_table

if TYPE_CHECKING:
    import pandas as pd

TEXT_KEYS = ("title", "source", "run.schedule", "layers.file")  # taken as they are typed


def run(arguments: Namespace) -> None:
    """Simulate one step and print where the time goes."""
    if arguments.text and arguments.json:
        raise ValueError("--text and --json: give one of them")
    check_output("--gantt", arguments.gantt, FIGURE_ENDINGS)
    check_output("--trace", arguments.trace, TABLE_ENDINGS)
    flags = {key: vars(arguments)[key] for key, _, _ in RUN_FLAGS.values()}
    overrides = dict(assignment(f"{key}={text}") for key, text in flags.items() if text is not None)
    overrides |= dict(assignment(f"run.options.{text}") for text in arguments.option)
    overrides |= dict(map(assignment, arguments.set))
    if arguments.config is None:
        document = override({}, "command line", overrides)
        config = parse_config(document, "command line")
    else:
        config = read_config(arguments.config, overrides)
    with ProgressBar("op") as progress:
        result = simulate_config(config, progress)
        if arguments.json:
            text = to_json(result.summary())
        else:
            text = f"{headline(result)}\n{run_report(result, progress)}"
    # Files first: whoever reads the screen through a pipe may be gone before its end.
    if arguments.gantt:
        _write_gantt(result, arguments.gantt)
    if arguments.trace:
        write_table(result.trace, arguments.trace)
        _tell(arguments.trace)
    print(text)
    if arguments.text:
        print(text_gantt(result))


def compare(arguments: Namespace) -> None:
    """Run several schedules on the stages of one config and print them, fastest first."""
    check_output("--gantt", arguments.gantt, FIGURE_ENDINGS)
    overrides = dict(map(assignment, arguments.set))
    names = [name.strip() for name in arguments.schedules.split(",")]
    if names == ["all"]:
        names = list(FAMILIES)
    for name in names:
        if name not in FAMILIES:
            known = ", ".join(FAMILIES)
            raise ScheduleError(f"--schedules: unknown schedule {name!r}; known: {known}")
    document = override(read_document(arguments.config), arguments.config, overrides)
    if isinstance(document.get("run"), dict):
        document["run"].setdefault("schedule", names[0])
    runs, unfit = _run_each(document, arguments.config, names)
    if not runs:
        faults = dict.fromkeys(f"run.schedule: {why}" for why in unfit.values())
        raise ConfigError(arguments.config, list(faults))
    microbatches = document["run"]["microbatches"]
    runs.sort(key=lambda result: _rank(result, microbatches))
    if arguments.gantt:
        _write_gantt(runs, arguments.gantt)
    if arguments.json:
        does_not_fit = [{"schedule": name, "reason": why} for name, why in unfit.items()]
        rows = [result.summary() for result in runs]
        print(to_json({"runs": rows, "does_not_fit": does_not_fit}))
        return
    print(_comparison(runs, microbatches))
    alone = [r.schedule.name for r in runs if r.schedule.kinds == {Kind.F}]
    if alone and len(alone) < len(runs):
        print(f"not all of them run the same ops: {', '.join(alone)} run no backwards")
    for name, why in unfit.items():
        print(f"{name} does not fit: {why.removeprefix(f'{name}: ').removeprefix(f'{name} ')}")


def sweep(arguments: Namespace) -> None:
    """Run a config for every combination of its axes, print the table, write it and plot it."""
    from pipesim.sweep import METRICS, sweep_axes, sweep_config

    check_output("--csv", arguments.csv, TABLE_ENDINGS)
    check_output("--plot", arguments.plot, FIGURE_ENDINGS)
    if arguments.y not in METRICS:
        raise ValueError(f"--y {arguments.y!r} is unknown; known: {', '.join(METRICS)}")
    overrides = dict(map(assignment, arguments.set))
    axes = sweep_axes(arguments.config, overrides)
    if arguments.x is not None and arguments.x not in axes:
        raise ValueError(f"--x {arguments.x!r} is no axis; the axes are: {', '.join(axes)}")
    with ProgressBar("run") as progress:
        table = sweep_config(arguments.config, overrides, progress)
    if arguments.csv:
        write_table(table, arguments.csv)
        _tell(arguments.csv)
    if arguments.plot:
        _write_curves(table, axes, arguments)
    if arguments.json:
        print(to_json(table.replace({float("nan"): None}).to_dict(orient="records")))
    else:
        print(table[[*axes, *METRICS[:3], "closed_form_bubble_fraction"]].to_string(index=False))


def schedules(arguments: Namespace) -> None:
    """Print every schedule, and what is known of it."""
    rows = [
        {
            "name": name,
            "placement": family.placement,
            "chunks": "v" if family.chunks is None else str(family.chunks),
            "backward": family.backward,
            "warm-up": family.warm_up,
            "peak held": family.peak,
            "bubble": family.formula,
            "options": ", ".join(f"{key}={value}" for key, value in family.options.items()) or "-",
            "source": family.source,
            "summary": family.summary,
        }
        for name, family in FAMILIES.items()
    ]
    if arguments.json:
        print(to_json(rows))
        return
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    print(text_table(columns, left=tuple(columns)))
    print(
        "on rank r of p, with m micro-batches, v chunks a rank, k slices; "
        "bubble: of equal stages without transfers"
    )


def to_json(value: Any) -> str:
    """Return plain values as JSON, numbers in full precision, and never NaN."""
    return json.dumps(value, indent=2, allow_nan=False)


def parse_value(text: str) -> Any:
    """Return what a value on the command line means: JSON, a list with commas, or a text.

    Examples
    --------
    >>> parse_value("1,1,2.5"), parse_value("1f1b"), parse_value("4"), parse_value('{"a.b": [1]}')
    ([1, 1, 2.5], '1f1b', 4, {'a.b': [1]})
    """
    try:
        return json.loads(text)
    except ValueError:
        pass
    if "," in text and not text.lstrip().startswith(("[", "{", '"')):
        return [parse_value(part) for part in text.split(",")]
    for number in (int, float):  # what JSON does not take for one: 010, .5, 1., nan
        try:
            return number(text)
        except ValueError:
            continue
    return text


def assignment(text: str) -> tuple[str, Any]:
    """Return the key and the value of a text such as `run.microbatches=8`.

    Raises
    ------
    ValueError
        If there is no `=` in it.
    """
    key, sign, value = text.partition("=")
    key = key.strip()
    if not sign or not key:
        raise ValueError(f"{text!r} is no assignment; write KEY=VALUE")
    return key, value if key in TEXT_KEYS else parse_value(value)


def _run_each(document: Document, path: str, names: list[str]) -> tuple[list[Run], dict[str, str]]:
    """Return the runs of the schedules that fit a config, and why the others do not.

    Where a schedule takes fewer stages a rank than the config has, neighbouring ones are merged.
    Of the options in the config each gets those that it has.
    """
    sections, pipe = parse_pipeline(document, path, Path(path).parent, names)
    runs, unfit = [], {}
    for name in names:
        own = FAMILIES[name].options
        try:
            with ProgressBar("op") as progress:
                result = simulate(
                    _regrouped(pipe, FAMILIES[name]),
                    name,
                    sections.run.microbatches,
                    queue_capacity=sections.run.queue_capacity,
                    options={k: v for k, v in sections.run.options.items() if k in own},
                    progress=progress,
                )
        except (ScheduleError, ValueError, DeadlockError) as error:
            unfit[name] = str(error).splitlines()[0]
        else:
            runs.append(result)
    return runs, unfit


def _regrouped(pipe: Pipeline, family: Family) -> Pipeline:
    chunks = family.chunks
    if chunks is None or len(pipe.stages) % (pipe.ranks * chunks):
        return pipe
    return pipe.regroup(chunks)


def _write_curves(table: "pd.DataFrame", axes: list[str], arguments: Namespace) -> None:
    """Plot a sweep along one axis; the others tell the curves apart, but for a zip."""
    from pipesim.plot import lines, save

    numbers = [axis for axis in axes if table[axis].dtype.kind in "if"]
    x = arguments.x or next(iter(numbers or axes))
    by = [] if table.attrs["mode"] == "zip" else [axis for axis in axes if axis != x]
    save(lines(table, x=x, y=arguments.y, by=by), arguments.plot)
    _tell(arguments.plot)


def _step(run: Run, microbatches: int) -> float:
    """Return the time that a batch takes [ms]; asynchronous schedules run several in one go."""
    return run.makespan * microbatches / run.schedule.microbatches


def _rank(run: Run, microbatches: int) -> tuple[bool, float, int, float]:
    """Return what runs are sorted by: the time of a batch, then memory.

    What runs forwards only is no rival of the others and comes last.
    """
    held = max(run.ranks.peak_in_flight)
    step = float(f"{_step(run, microbatches):.9g}")  # rounding makes no winner
    return run.schedule.kinds == {Kind.F}, step, max(run.ranks.peak_stash_bytes), held


def _comparison(runs: list[Run], microbatches: int) -> str:
    steps = [_step(r, microbatches) for r in runs]
    stash = [max(r.ranks.peak_stash_bytes) for r in runs]
    columns = {
        "schedule": [r.schedule.name for r in runs],
        "stages": [str(r.schedule.stages) for r in runs],
        "step ms": [f"{step:.2f}" for step in steps],
        "": [f"{step / steps[0] - 1:+.2%}" if steps[0] else "-" for step in steps],
        "inflation": ["-" if r.inflation is None else f"{r.inflation:.4f}" for r in runs],
        "bubble": [f"{r.bubble_fraction:.2%}" for r in runs],
        "span bubble": ["-" if r.span_bubble is None else f"{r.span_bubble:.2%}" for r in runs],
        "closed form": ["-" if r.closed_form is None else f"{r.closed_form:.2%}" for r in runs],
        "lower bound": [f"{r.lower_bound:.2f}" for r in runs],
        "held": [_held(r) for r in runs],
        "stash GB": [f"{size / 1e9:.2f}" for size in stash],
    }
    if not any(stash):
        del columns["stash GB"]
    if len(set(columns["stages"])) == 1:
        del columns["stages"]
    note = (
        "held: micro-batches in flight at most, on the rank that holds the most "
        "(chunks and slices of them as parts)"
    )
    several = [r.schedule.name for r in runs if r.schedule.microbatches != microbatches]
    if several:
        note += f"\n{', '.join(several)}: step and lower bound of one and of all batches"
    return f"{runs[0].pipeline.title}\n{text_table(columns, left=('schedule',))}\n{note}"


def _held(run: Run) -> str:
    """Return the most that a rank holds, in micro-batches of all its stages."""
    schedule = run.schedule
    copies = schedule.placement.directions
    parts = schedule.stages // schedule.ranks * schedule.slices
    most = max(schedule.peak_in_flight()) / (parts if copies == 1 else 1)
    return f"{most:g}" if most == int(most) else f"{most:.1f}"


def _write_gantt(runs: Run | list[Run], path: str) -> None:
    from pipesim.plot import gantt, save

    save(gantt(runs), path)
    _tell(path)


def _tell(path: str) -> None:
    print(f"wrote {path}", file=sys.stderr)
