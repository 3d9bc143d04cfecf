"""Contiguous min-max partition: items in a row into parts whose largest load is the least.

Every part has loads of its own, for it may be a faster device, and may have a limit on another
load, its bytes. From the last part to the first,

    least[s, i] = min over j > i of max(load of items i..j-1 on part s, least[s+1, j])

is exact. With unequal parts none of which may be empty it does not grow or fall steadily with i
(a slow part must take at least one item, which may be a large one), so nothing is bisected; a
part's load grows with its items, though, and the look at j ends where it reaches the best so far.
O(parts x items^2) at worst, a few items each in practice.

Many splits have the same largest load. A second pass, over parts that stay below it, takes the
most even of them, with the least sum of squares: few slow stages cost less than many.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from pipesim.base.types import FloatArray, IntArray

SLACK = 1e-12  # relative; differences of running sums round differently


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """What items come to on each part: their sum, and the largest of what adds but once.

    Parameters
    ----------
    before
        The sum of the items up to each, array (parts, items + 1), from 0 on never falling.
    top
        What counts once, at its largest in the part, array (parts, items).
    """

    before: FloatArray
    top: FloatArray

    @classmethod
    def of_items(cls, items: FloatArray, top: FloatArray) -> "Loads":
        """Return the loads of items, array (parts, items), and of what counts once."""
        zero = np.zeros((len(items), 1))
        before = np.concatenate([zero, np.cumsum(items, axis=1)], axis=1)
        return cls(before, np.broadcast_to(top, items.shape).astype(np.float64))

    def scaled(self, factors: FloatArray) -> "Loads":
        """Return the loads times a factor for each part, array (parts,)."""
        column = factors[:, np.newaxis]
        return Loads(self.before * column, self.top * column)

    def of_splits(self, counts: IntArray) -> FloatArray:
        """Return the load of every part in each of some splits, both arrays (splits, parts)."""
        from pipesim.pipeline.partition.kernels import loads_of_splits

        loads: FloatArray = loads_of_splits(self.before, self.top, counts)
        return loads


def least_split(
    loads: Loads, held: Loads | None = None, limits: FloatArray | None = None
) -> tuple[int, ...] | None:
    """Return how many items each part gets so that the largest load is the least.

    None if no split keeps within the limits. No part is empty. Of all best splits, it is the most
    even one, and of those the one whose earlier parts are the largest.

    Parameters
    ----------
    loads
        What is to be small.
    held, limits
        What must not be above the limit of each part, array (parts,); by default nothing.
    """
    from pipesim.pipeline.partition.kernels import even_rows, fill_rows

    if held is None or limits is None:
        held, limits = loads, np.full(len(loads.top), np.inf)
    tables = loads.before, loads.top, held.before, held.top, limits
    largest = fill_rows(*tables)[0, 0]
    if largest == np.inf:
        return None
    squares = even_rows(*tables, largest * (1 + SLACK))
    counts: list[int] = []
    for part, limit in enumerate(limits):
        first = sum(counts)
        own = loads.before[part], loads.top[part], held.before[part], held.top[part], limit
        ends, load = part_ends(*own, largest, first)
        even = load**2 + squares[part + 1][ends] <= squares[part, first] * (1 + SLACK)
        counts.append(int(ends[even].max()) - first)
    return tuple(counts)


def part_ends(
    before: FloatArray,
    top: FloatArray,
    held: FloatArray,
    held_top: FloatArray,
    limit: float,
    largest: float,
    first: int,
) -> tuple[IntArray, FloatArray]:
    """Return where a part may end that begins at item `first`, and its load there.

    Its load is at most `largest`.
    """
    load = before[first + 1 :] - before[first] + np.maximum.accumulate(top[first:])
    bytes_held = held[first + 1 :] - held[first] + np.maximum.accumulate(held_top[first:])
    fits = np.flatnonzero((load <= largest * (1 + SLACK)) & (bytes_held <= limit))
    return first + 1 + fits, load[fits]


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to write a total as a sum of a number of positive counts, in order.

    Examples
    --------
    >>> list(compositions(4, 2))
    [(1, 3), (2, 2), (3, 1)]
    """
    for cuts in combinations(range(1, total), parts - 1):
        ends = (*cuts, total)
        yield tuple(end - start for start, end in zip((0, *cuts), ends, strict=True))


def moves(counts: Sequence[int]) -> IntArray:
    """Return every split that is one item away, array (splits, parts).

    An item goes from one part to any other, near or far: those between hand one on, each to the
    next. No part is emptied.

    Examples
    --------
    >>> moves([2, 1, 1]).tolist()
    [[1, 2, 1], [1, 1, 2]]
    """
    own = np.asarray(counts, dtype=np.int64)
    steps = [
        (source, target)
        for source in np.flatnonzero(own > 1).tolist()
        for target in range(len(own))
        if source != target
    ]
    splits = np.tile(own, (len(steps), 1))
    for row, (source, target) in zip(splits, steps, strict=True):
        row[source] -= 1
        row[target] += 1
    return splits
