"""Curves over a sweep: any number, and the bubble next to its closed form."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from pipesim.plot.style import CURVES, new_axes

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
    """Return the Axes with the measured bubble fraction over one column, one curve a group.

    Curves with marks are simulated; dashed lines are the closed form for equal stages.

    Parameters
    ----------
    table
        One row a run, with the columns `bubble_fraction`, `closed_form_bubble_fraction`, `x`
        and `by`: what a sweep returns.
    x
        The column that grows: micro-batches, an imbalance factor.
    ax
        Where to draw; by default on a new figure.
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
    """Return the Axes with one column of a sweep over another, one curve a group.

    A bubble fraction gets its closed form as a dashed line.

    Parameters
    ----------
    table
        One row a run.
    x, y
        Columns along and up.
    ax
        Where to draw; by default on a new figure.
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
    groups: list[tuple[tuple[Any, ...], pd.DataFrame]] = [((), table)]
    if by:
        groups = list(table.groupby(list(by), sort=False))
    for number, (values, group) in enumerate(groups):
        rows = group.sort_values(x)
        colour, marker, line = CURVES[number % len(CURVES)]
        words = [f"{key} = {value}" for key, value in zip(by, values, strict=True)]
        label = str(values[0]) if len(by) == 1 else ", ".join(words) or "simulated"
        ax.plot(rows[x], rows[y], line, marker=marker, color=colour, ms=4, label=label)
        closed = tuple(rows[CLOSED]) if y == MEASURED else ()
        if closed and closed not in drawn and not rows[CLOSED].isna().all():
            reference = None if drawn else "closed form, equal stages"
            drawn.append(closed)
            ax.plot(rows[x], closed, "--", color="black", linewidth=1.2, label=reference, zorder=4)
    ax.set_xlabel(x)
    ax.set_ylabel(WORDS.get(y, y))
    if y == MEASURED:
        ax.yaxis.set_major_formatter(PercentFormatter(1.0))
        ax.set_ylim(bottom=0)
    ax.grid(alpha=0.3)
    ax.legend(frameon=False, fontsize=8)
    return ax
