"""The compiled steps of contiguous partition: one part after the other, from the last."""

import numpy as np
from numba import njit

from pipesim.base.types import FloatArray, IntArray


@njit(cache=True)
def fill_row(
    before: FloatArray,
    top: FloatArray,
    held: FloatArray,
    held_top: FloatArray,
    limit: float,
    rest: FloatArray,
    row: FloatArray,
) -> None:
    """Lower each row[i] to the least largest load where one part takes some items from i on.

    `rest[j]` is the least largest load of the parts after it, which take the items from j on. The
    part's load only grows with its items, so that the first ones tell when to stop.
    """
    items = len(top)
    for first in range(items):
        best = row[first]
        extra, held_extra = 0.0, 0.0
        for end in range(first + 1, items + 1):
            extra = max(extra, top[end - 1])
            held_extra = max(held_extra, held_top[end - 1])
            load = before[end] - before[first] + extra
            if load >= best or held[end] - held[first] + held_extra > limit:
                break
            best = min(best, max(load, rest[end]))
        row[first] = best


@njit(cache=True)
def fill_rows(
    before: FloatArray,
    top: FloatArray,
    held: FloatArray,
    held_top: FloatArray,
    limits: FloatArray,
) -> FloatArray:
    """Return the least largest load of parts s.. that take the items i.., array [s, i].

    Infinite where they cannot; one row more than parts, where nothing is left.
    """
    parts, items = top.shape
    rows = np.full((parts + 1, items + 1), np.inf)
    rows[parts, items] = 0.0
    for part in range(parts - 1, -1, -1):
        fill_row(
            before[part],
            top[part],
            held[part],
            held_top[part],
            limits[part],
            rows[part + 1],
            rows[part],
        )
    return rows


@njit(cache=True)
def even_rows(
    before: FloatArray,
    top: FloatArray,
    held: FloatArray,
    held_top: FloatArray,
    limits: FloatArray,
    largest: float,
) -> FloatArray:
    """Return the least sum of squared loads of parts s.. that take the items i.., array [s, i].

    No load is above `largest`. Infinite where they cannot; one row more than parts.
    """
    parts, items = top.shape
    rows = np.full((parts + 1, items + 1), np.inf)
    rows[parts, items] = 0.0
    for part in range(parts - 1, -1, -1):
        for first in range(items):
            best = np.inf
            extra, held_extra = 0.0, 0.0
            for end in range(first + 1, items + 1):
                extra = max(extra, top[part, end - 1])
                held_extra = max(held_extra, held_top[part, end - 1])
                load = before[part, end] - before[part, first] + extra
                bytes_held = held[part, end] - held[part, first] + held_extra
                if load > largest or bytes_held > limits[part]:
                    break
                best = min(best, load * load + rows[part + 1, end])
            rows[part, first] = best
    return rows


@njit(cache=True)
def loads_of_splits(before: FloatArray, top: FloatArray, counts: IntArray) -> FloatArray:
    """Return the load of every part in each of some splits, array (splits, parts)."""
    splits, parts = counts.shape
    loads = np.zeros((splits, parts))
    for split in range(splits):
        first = 0
        for part in range(parts):
            end = first + counts[split, part]
            extra = 0.0
            for item in range(first, end):
                extra = max(extra, top[part, item])
            loads[split, part] = before[part, end] - before[part, first] + extra
            first = end
    return loads
