"""The bubble as something grows: measured by simulation, next to the closed form."""

from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from pipesim.plot.style import CURVES, new_axes

if TYPE_CHECKING:
    import pandas as pd

MEASURED, CLOSED = "bubble_fraction", "closed_form_bubble_fraction"


def bubble(table: "pd.DataFrame", x: str, ax: Axes | None = None, *, by: str | None = None) -> Axes:
    """Return the Axes with the measured bubble fraction over one column, one curve a group.

    Curves with marks are simulated; the dashed line of the same colour is the closed form for
    equal stages.

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
        The column that tells the curves apart; by default there is one curve.

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
    missing = [name for name in (x, MEASURED, CLOSED, by) if name and name not in table.columns]
    if missing:
        raise ValueError(f"the table has no column {missing[0]!r}; it has {list(table.columns)}")
    ax = ax or new_axes(7.0, 4.2)
    groups = [("simulated", table)] if by is None else list(table.groupby(by, sort=False))
    drawn: list[tuple[float, ...]] = []
    for number, (name, rows) in enumerate(groups):
        rows = rows.sort_values(x)
        colour, marker, line = CURVES[number % len(CURVES)]
        ax.plot(rows[x], rows[MEASURED], line, marker=marker, color=colour, ms=4, label=str(name))
        closed = tuple(rows[CLOSED])
        if closed not in drawn and not rows[CLOSED].isna().all():
            drawn.append(closed)
            label = "closed form" if len(drawn) == 1 else None
            ax.plot(rows[x], rows[CLOSED], "--", color="black", linewidth=1.2, label=label)
    ax.set_xlabel(x)
    ax.set_ylabel("bubble fraction: idle / (p x makespan)")
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set_ylim(bottom=0)
    ax.grid(alpha=0.3)
    ax.legend(frameon=False, fontsize=8)
    return ax
