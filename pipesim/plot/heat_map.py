"""Heat maps: a number over two axes of a sweep, as shades of one colour."""

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes

from pipesim.base.types import FloatArray
from pipesim.plot.curves import WORDS
from pipesim.plot.style import new_axes
from pipesim.plot.titles import sweep_head

if TYPE_CHECKING:
    import pandas as pd

MAP = "Blues"  # light to dark of one hue: larger is darker in print without colour, too
MOST_WRITTEN = 150  # cells; with more, numbers in them could not be read
EVEN = 1e-6  # relative; steps this close count as equal


def heat_map(table: "pd.DataFrame", x: str, y: str, value: str, ax: Axes | None = None) -> Axes:
    """Return the Axes with one column of a sweep as shades over two others.

    Larger is darker. In few cells the numbers are written, too; a cell without a number, such as
    that of a point that failed, is left white and crossed out. Values that are spaced
    geometrically get a logarithmic axis; values that are no numbers, and numbers that are spaced
    neither way, get cells of equal size. The title has the schedule, ranks and microbatches that
    all rows share.

    Parameters
    ----------
    table
        One row a run, at most one for each pair of values.
    x, y
        Columns of the horizontal and the vertical axis.
    value
        The column to show.
    ax
        The Axes to draw on; by default those of a new figure.

    Raises
    ------
    ValueError
        If the table lacks a column, has several rows for a cell, or no numbers to show.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"m": [4, 4, 8, 8], "factor": [1.0, 1.5, 1.0, 1.5],
    ...                       "inflation": [1.0, 1.2, 1.0, 1.4]})
    >>> heat_map(table, x="m", y="factor", value="inflation").get_ylabel()
    'factor'
    """
    missing = [name for name in (x, y, value) if name not in table.columns]
    if missing:
        raise ValueError(f"the table has no column {missing[0]!r}; it has {list(table.columns)}")
    if table.duplicated([x, y]).any():
        raise ValueError(
            f"there are several rows for one pair of {x} and {y}: a heat map shows one a cell"
        )
    if table[value].isna().all():
        raise ValueError(f"there is nothing to show: the column {value} has no numbers")
    grid = table.pivot(index=y, columns=x, values=value)
    if not _are_numbers(table[x]):
        grid = grid[list(dict.fromkeys(table[x]))]  # texts in the table's order
    if not _are_numbers(table[y]):
        grid = grid.loc[list(dict.fromkeys(table[y]))]
    ax = ax or new_axes(7.0, 4.8)
    places, numbers = [], grid.to_numpy(dtype=np.float64)
    for axis, values in ((ax.xaxis, list(grid.columns)), (ax.yaxis, list(grid.index))):
        scale, centres, edges = _spacing(values)
        places.append((centres, edges))
        (ax.set_xscale if axis is ax.xaxis else ax.set_yscale)(scale)
        if len(values) <= 16:
            names = [v if isinstance(v, str) else f"{v:g}" for v in values]
            axis.set_ticks(centres, names)
            axis.set_ticks([], minor=True)
    (along, x_edges), (up, y_edges) = places
    shades = ax.pcolormesh(x_edges, y_edges, np.ma.masked_invalid(numbers), cmap=MAP)
    figure = ax.get_figure(root=True)
    assert figure is not None
    bar = figure.colorbar(shades, ax=ax)
    bar.set_label(WORDS.get(value, value))
    _write(ax, along, up, numbers)
    ax.set_title(sweep_head(table, (x, y)), fontsize=10, parse_math=False)
    ax.set_xlabel(x, parse_math=False)
    ax.set_ylabel(y, parse_math=False)
    return ax


def _write(
    ax: Axes,
    along: FloatArray,
    up: FloatArray,
    numbers: FloatArray,
) -> None:
    """Write the numbers into the cells if they are few, and cross out those that have none."""
    low, high = np.nanmin(numbers), np.nanmax(numbers)
    for row, height in enumerate(up):
        for column, place in enumerate(along):
            number = numbers[row, column]
            if np.isnan(number):
                ax.plot([place], [height], "x", color="#808080", ms=6)
            elif numbers.size <= MOST_WRITTEN:
                dark = high > low and (number - low) / (high - low) > 0.6
                ax.text(
                    place,
                    height,
                    f"{number:.3g}" if abs(number) < 1000 else f"{number:.0f}",
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="white" if dark else "black",
                )


def _are_numbers(values: "pd.Series") -> bool:
    return values.dtype.kind in "iuf"


def _spacing(
    values: list[object],
) -> tuple[str, FloatArray, FloatArray]:
    """Return the scale of an axis, and the centres and the edges of the cells of its values."""
    count = len(values)
    if count > 1 and all(isinstance(value, int | float | np.number) for value in values):
        centres = np.array(values, dtype=np.float64)
        if _is_even(centres):
            return "linear", centres, _edges(centres)
        if centres[0] > 0 and _is_even(np.log(centres)):
            log_edges: FloatArray = np.exp(_edges(np.log(centres)))
            return "log", centres, log_edges
    places: FloatArray = np.arange(count, dtype=np.float64)
    return "linear", places, np.arange(count + 1, dtype=np.float64) - 0.5


def _is_even(values: FloatArray) -> bool:
    steps = np.diff(values)
    return bool(np.allclose(steps, steps[0], rtol=EVEN, atol=0.0))


def _edges(centres: FloatArray) -> FloatArray:
    half = (centres[1] - centres[0]) / 2
    edges: FloatArray = np.append(centres - half, centres[-1] + half)
    return edges
