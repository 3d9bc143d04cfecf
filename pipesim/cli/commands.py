"""The commands: each reads a config, runs it, prints, and writes the files asked for."""

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipesim.cli.outputs import ProgressBar, check_output
from pipesim.cli.parser import RUN_FLAGS
from pipesim.config import Config, override, parse_config, read_config, simulate_config
from pipesim.errors import ConfigError, ScheduleError
from pipesim.io.config_file import Document, read_document
from pipesim.io.files import FIGURE_ENDINGS, TABLE_ENDINGS
from pipesim.io.table_file import write_table
from pipesim.report import headline, run_report
from pipesim.run import Run
from pipesim.schedules import FAMILIES
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
    for name in names:
        if name not in FAMILIES:
            known = ", ".join(FAMILIES)
            raise ScheduleError(f"--schedules: unknown schedule {name!r}; known: {known}")
    document = override(read_document(arguments.config), arguments.config, overrides)
    runs: list[Run] = []
    unfit: dict[str, str] = {}
    for name in names:
        try:
            config = _with_schedule(document, arguments.config, name, names)
            with ProgressBar("op") as progress:
                runs.append(simulate_config(config, progress))
        except ConfigError as error:
            unfit[name] = "; ".join(error.faults)
    if not runs:
        faults = [f"{name}: {why}" for name, why in unfit.items()]
        everywhere = set(unfit.values())
        raise ConfigError(arguments.config, list(everywhere) if len(everywhere) == 1 else faults)
    runs.sort(key=lambda result: float(f"{result.makespan:.9g}"))  # ties stay in order
    if arguments.gantt:
        _write_gantt(runs, arguments.gantt)
    if arguments.json:
        does_not_fit = [{"schedule": name, "reason": why} for name, why in unfit.items()]
        rows = [result.summary() for result in runs]
        print(to_json({"runs": rows, "does_not_fit": does_not_fit}))
        return
    print(_comparison(runs))
    if len({result.schedule.kinds for result in runs}) > 1:
        print("not all of them run the same ops: gpipe_forward has no backwards")
    for name, why in unfit.items():
        print(f"{name} does not fit: {why}")


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
    print("on stage s of p, with m micro-batches; bubble: of equal stages without transfers")


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


def _with_schedule(document: Document, path: str, name: str, names: list[str]) -> Config:
    """Return a config with another schedule, which gets of its options those that it has."""
    section = document.get("run", {})
    options = section.get("options") if isinstance(section, dict) else None
    changes: dict[str, Any] = {"run.schedule": name}
    if isinstance(options, dict):
        known = {option for other in names for option in FAMILIES[other].options}
        own = FAMILIES[name].options
        changes["run.options"] = {k: v for k, v in options.items() if k in own or k not in known}
    return parse_config(override(document, path, changes), path, Path(path).parent)


def _write_curves(table: "pd.DataFrame", axes: list[str], arguments: Namespace) -> None:
    """Plot a sweep along one axis; the others tell the curves apart, but for a zip."""
    from pipesim.plot import lines, save

    numbers = [axis for axis in axes if table[axis].dtype.kind in "if"]
    x = arguments.x or next(iter(numbers or axes))
    by = [] if table.attrs["mode"] == "zip" else [axis for axis in axes if axis != x]
    save(lines(table, x=x, y=arguments.y, by=by), arguments.plot)
    _tell(arguments.plot)


def _comparison(runs: list[Run]) -> str:
    fastest = runs[0].makespan
    columns = {
        "schedule": [r.schedule.name for r in runs],
        "step ms": [f"{r.makespan:.2f}" for r in runs],
        "": [f"{r.makespan / fastest - 1:+.2%}" if fastest else "-" for r in runs],
        "inflation": ["-" if r.inflation is None else f"{r.inflation:.4f}" for r in runs],
        "bubble": [f"{r.bubble_fraction:.2%}" for r in runs],
        "closed form": ["-" if r.closed_form is None else f"{r.closed_form:.2%}" for r in runs],
        "lower bound": [f"{r.lower_bound:.2f}" for r in runs],
        "held": [str(max(r.schedule.peak_in_flight())) for r in runs],
    }
    head = runs[0].pipeline.title
    note = "held: micro-batches in flight at most, on the rank that holds the most"
    return f"{head}\n{text_table(columns, left=('schedule',))}\n{note}"


def _write_gantt(runs: Run | list[Run], path: str) -> None:
    from pipesim.plot import gantt, save

    save(gantt(runs), path)
    _tell(path)


def _tell(path: str) -> None:
    print(f"wrote {path}", file=sys.stderr)
