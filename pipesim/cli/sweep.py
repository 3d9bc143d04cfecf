"""The command `pipesim sweep`: a config for every combination of its axes."""

import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from pipesim.base.files import FIGURE_ENDINGS, PAGE_ENDING, TABLE_ENDINGS
from pipesim.base.text import count_text
from pipesim.cli.assignments import assignment
from pipesim.cli.flags import (
    Commands,
    add_config_argument,
    add_json_flag,
    add_memory_flag,
    add_set_flag,
)
from pipesim.cli.outputs import ProgressBar, check_output, tell, to_json

if TYPE_CHECKING:
    import pandas as pd

MOST_PRINTED = 200  # rows; a table of thousands is for a file
MOST_ERRORS = 20  # different ones on the screen
MOST_SHARED = 40  # characters of a value that points have in common
MOST_CURVES = 6  # that can be told apart


def add(commands: Commands, words: str) -> None:
    """Add the command and its flags to the command line."""
    sweep = commands.add_parser(
        "sweep",
        help=words,
        description="Run a config for every combination of the axes in its section [sweep].",
        epilog="A point that fails is a row with its error. Exit status 2 if all do, 130 if "
        "interrupted.",
    )
    add_config_argument(sweep)
    add_set_flag(sweep)
    add_memory_flag(sweep)
    sweep.add_argument(
        "--csv", metavar="FILE", help="write the table, one row a point: .csv or .parquet"
    )
    sweep.add_argument(
        "--resume",
        action="store_true",
        help="go on with an interrupted sweep to the same file",
    )
    sweep.add_argument("--plot", metavar="FILE", help="write a line plot: .png, .svg or .pdf")
    sweep.add_argument(
        "--html",
        metavar="FILE",
        help="write a page with sliders for the axes, which chart and numbers follow: .html",
    )
    sweep.add_argument(
        "--heat",
        action="store_true",
        help="plot a heat map over two axes instead: --x along and the other up",
    )
    sweep.add_argument("--x", metavar="KEY", help="axis along the plot; default: the first number")
    sweep.add_argument("--y", metavar="COLUMN", default="makespan_ms", help="default: makespan_ms")
    sweep.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="workers; -1: one a core; default: this process, or all that the cluster has",
    )
    sweep.add_argument(
        "--backend",
        choices=("loky", "dask", "ray"),
        default="loky",
        help="where the workers are: on this machine, or on a cluster; default: loky",
    )
    sweep.add_argument("--cluster", metavar="ADDRESS", help="of the cluster; default: a local one")
    add_json_flag(sweep)
    sweep.set_defaults(execute=sweep_command)


def sweep_command(arguments: Namespace) -> None:
    """Run a config for every combination of its axes, print the table, write it and plot it.

    A page has the chart of every point, for which the points are run once more, op by op.
    """
    from pipesim.config.rules import unknown
    from pipesim.studies.sweep.journal import journal_path
    from pipesim.studies.sweep.sweep import NUMBERS, sweep_axes, sweep_config

    check_output("--csv", arguments.csv, TABLE_ENDINGS)
    check_output("--plot", arguments.plot, FIGURE_ENDINGS)
    check_output("--html", arguments.html, (PAGE_ENDING,))
    if arguments.y not in NUMBERS:
        raise ValueError(unknown("--y", arguments.y, NUMBERS))
    if arguments.resume and not arguments.csv:
        raise ValueError("--resume: needs --csv, the file that the sweep was to write")
    overrides = dict(map(assignment, arguments.set))
    axes = sweep_axes(arguments.config, overrides)
    if arguments.x is not None and arguments.x not in axes:
        raise ValueError(f"--x {arguments.x!r} is no axis; the axes are: {', '.join(axes)}")
    over = _plotted(axes)
    if arguments.heat and (len(over) != 2 or arguments.x not in (None, *over)):
        raise ValueError(f"--heat: needs two axes that vary, not {', '.join(over) or 'none'}")
    for flag, given in (("--heat", arguments.heat), ("--x", arguments.x)):
        if given and not arguments.plot:
            raise ValueError(f"{flag}: needs --plot, the file of the picture")
    try:
        with ProgressBar("run") as progress:
            table = sweep_config(
                arguments.config,
                overrides,
                progress,
                jobs=arguments.jobs,
                backend=arguments.backend,
                cluster=arguments.cluster,
                file=arguments.csv,
                resume=arguments.resume,
            )
    except KeyboardInterrupt:
        if arguments.csv and journal_path(arguments.csv).exists():
            kept = journal_path(arguments.csv)
            print(f"pipesim: what is done is in {kept}; go on with --resume", file=sys.stderr)
        raise
    if arguments.csv:
        tell(arguments.csv)
    failed = int(table.error.notna().sum())
    if failed:
        print(
            f"pipesim: {failed} of {len(table)} points failed; see the column error",
            file=sys.stderr,
        )
    try:
        if arguments.plot:
            _plot(table, over, arguments)
        if arguments.html:
            _write_page(table, overrides, arguments)
    finally:  # the numbers are there, whatever becomes of the picture
        _print(table, list(axes), arguments)


def _print(table: "pd.DataFrame", axes: list[str], arguments: Namespace) -> None:
    from pipesim.studies.sweep.sweep import NUMBERS

    if arguments.json:
        plain = table.astype(object).where(table.notna(), None)
        plain = plain.replace({float("inf"): "inf", float("-inf"): "-inf"})
        print(to_json(plain.to_dict(orient="records")))
        return
    columns = [*axes, *NUMBERS[:3], "closed_form_bubble_fraction"]
    if not table.step_ms.equals(table.makespan_ms):
        columns.append("step_ms")
    marks = {text: f"[{number}]" for number, text in enumerate(table.error.dropna().unique(), 1)}
    shown = table[columns].head(MOST_PRINTED)
    if marks:
        shown = shown.assign(error=table.error.map(marks).fillna("-"))
    print(shown.to_string(index=False))
    way = "" if arguments.csv else "; --csv FILE has them all"
    if len(table) > MOST_PRINTED:
        print(f"... {len(table):,} rows{way}")
    for text, mark in list(marks.items())[:MOST_ERRORS]:
        print(f"{mark} {_points(table[table.error == text], table, axes)}: {text}")
    if len(marks) > MOST_ERRORS:
        print(f"... {len(marks):,} different errors{way}")


def _points(rows: "pd.DataFrame", table: "pd.DataFrame", axes: list[str]) -> str:
    """Return the number of some rows as text, with the values of axes that they share."""
    shared = [
        f"{axis} = {rows[axis].iloc[0]}"
        for axis in axes
        if table[axis].nunique(dropna=False) > 1 == rows[axis].nunique(dropna=False)
    ]
    short = [text for text in shared if len(text) <= MOST_SHARED]
    return count_text(len(rows), "point") + (f" ({', '.join(short)})" if short else "")


def _plotted(axes: dict[str, int]) -> list[str]:
    """Return the axes that a picture shows: those with several values, but for draws."""
    from pipesim.studies.sweep.imbalance import DRAW

    return [key for key, count in axes.items() if count > 1 and key != DRAW]


def _write_page(table: "pd.DataFrame", overrides: dict[str, Any], arguments: Namespace) -> None:
    from pipesim.plot import write_what_if
    from pipesim.studies.sweep.sweep import sweep_runs

    with ProgressBar("chart") as progress:
        runs = sweep_runs(arguments.config, overrides, progress)
        write_what_if(table, runs, arguments.html)
    tell(arguments.html)


def _plot(table: "pd.DataFrame", axes: list[str], arguments: Namespace) -> None:
    """Plot a sweep along one axis, with a curve for each point of the other axes.

    A zip has a single curve. With --heat, it is a heat map over two axes. The draws of random
    stages are shown by their mean.
    """
    from pipesim.plot import heat_map, lines, save
    from pipesim.studies.sweep.imbalance import DRAW
    from pipesim.studies.sweep.rows import HEAD
    from pipesim.studies.sweep.sweep import NUMBERS

    mode = table.attrs["mode"]
    axes = axes or [key for key in table.attrs["axes"] if key != DRAW]
    draws = table[DRAW].nunique() if DRAW in table else 0
    if draws:
        means = dict.fromkeys(HEAD, "first") | dict.fromkeys(NUMBERS, "mean")
        table = table.groupby(axes, sort=False).agg(means).reset_index()
    numbers = [axis for axis in axes if table[axis].dtype.kind in "if"]
    x = arguments.x or next(iter(numbers or axes))
    if arguments.heat:
        y = next(axis for axis in axes if axis != x)
        picture = heat_map(table, x=x, y=y, value=arguments.y)
    else:
        table = table[table[arguments.y].notna()]  # a point without a number leaves a gap
        by = [] if mode == "zip" else [axis for axis in axes if axis != x]
        curves = table.groupby(by, dropna=False).ngroups if by else 1
        if curves > MOST_CURVES:
            way = "--heat or --html FILE" if len(axes) == 2 else "--html FILE"
            print(f"note: {curves} curves on one picture; {way} shows them better", file=sys.stderr)
        picture = lines(table, x=x, y=arguments.y, by=by)
    if draws > 1:
        mean = f"mean of {draws} draws"
        picture.set_title(", ".join(filter(None, (picture.get_title(), mean))), fontsize=10)
    save(picture, arguments.plot)
    tell(arguments.plot)
