"""Curves over a sweep: any of its numbers, and the bubble beside its closed form."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from pipesim.plot.style import CURVES, LINES, new_axes
from pipesim.plot.titles import sweep_head

if TYPE_CHECKING:
    import pandas as pd

MEASURED, CLOSED = "bubble_fraction", "closed_form_bubble_fraction"
WORDS = {
    MEASURED: "bubble fraction: idle / (p x makespan)",
    "makespan_ms": "makespan [ms]",
    "lower_bound_ms": "lower bound of the makespan [ms]",
    "inflation": "inflation: makespan / makespan of equal stages",
}


def bubble(
    table: "pd.DataFrame", x: str, ax: Axes | None = None, *, by: Sequence[str] = ()
) -> Axes:
    """Return the Axes with the measured bubble fraction over one column, one curve a group of rows.

    Curves with marks are simulated; dashed lines are the closed form for equal stages.

    Parameters
    ----------
    table
        One row a run, with the columns `bubble_fraction`, `closed_form_bubble_fraction`, `x`
        and `by`: what a sweep returns.
    x
        The column that grows: micro-batches, an imbalance factor.
    ax
        The Axes to draw on; by default those of a new figure.
    by
        The columns that tell the curves apart; by default there is one curve.

    Raises
    ------
    ValueError
        If the table lacks a column.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"m": [4, 8], "bubble_fraction": [0.5, 0.3],
    ...                       "closed_form_bubble_fraction": [3 / 7, 3 / 11]})
    >>> bubble(table, x="m").get_xlabel()
    'm'
    """
    return lines(table, x, MEASURED, ax, by=by)


def lines(
    table: "pd.DataFrame", x: str, y: str, ax: Axes | None = None, *, by: Sequence[str] = ()
) -> Axes:
    """Return the Axes with one column of a sweep over another, one curve a group of rows.

    A bubble fraction gets its closed form as a dashed line. The title has the schedule, ranks and
    microbatches that all rows share, if they are not x or in `by`.

    Parameters
    ----------
    table
        One row a run.
    x, y
        Columns of the horizontal and the vertical axis.
    ax
        The Axes to draw on; by default those of a new figure.
    by
        The columns that tell the curves apart; by default there is one curve.

    Raises
    ------
    ValueError
        If the table lacks a column.
    """
    needed = [x, y, *by, *([CLOSED] if y == MEASURED else [])]
    missing = [name for name in needed if name not in table.columns]
    if missing:
        raise ValueError(f"the table has no column {missing[0]!r}; it has {list(table.columns)}")
    ax = ax or new_axes(7.0, 4.2)
    drawn: list[tuple[float, ...]] = []
    for number, (words, rows) in enumerate(_curves(table, x, by)):
        colour, marker = CURVES[number % len(CURVES)]
        line = LINES[number // len(CURVES) % len(LINES)]
        ax.plot(rows[x], rows[y], line, marker=marker, color=colour, ms=4, label=words)
        closed = tuple(rows[CLOSED]) if y == MEASURED else ()
        if closed and closed not in drawn and not rows[CLOSED].isna().all():
            reference = None if drawn else "closed form, equal stages"
            drawn.append(closed)
            ax.plot(rows[x], closed, "k--x", linewidth=0.8, ms=3, label=reference, zorder=4)
    ax.set_title(sweep_head(table, (x, *by)), fontsize=10, parse_math=False)
    ax.set_xlabel(x, parse_math=False)
    ax.set_ylabel(WORDS.get(y, y))
    if y == MEASURED:
        ax.yaxis.set_major_formatter(PercentFormatter(1.0))
        ax.set_ylim(0, 1.05 * ax.get_ylim()[1])
    ax.grid(alpha=0.3)
    legend = ax.legend(frameon=False, fontsize=8)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return ax


def _curves(
    table: "pd.DataFrame", x: str, by: Sequence[str]
) -> Iterator[tuple[str, "pd.DataFrame"]]:
    """Yield the name and the rows of each curve; texts along x stay in the table's order."""
    if table[x].dtype.kind in "iuf":
        table = table.sort_values(x, kind="stable")
    else:
        table = table.assign(**{x: table[x].map(str)})
    if not by:
        yield "simulated", table
        return
    words = sum(
        (f"{key} = " + table[key].map(str) + ", " for key in by[1:]),
        start=f"{by[0]} = " + table[by[0]].map(str) + ", ",
    )
    for name, rows in table.groupby(words.str.rstrip(", "), sort=False):
        yield str(name), rows
