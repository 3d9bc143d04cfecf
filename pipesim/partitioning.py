"""Layers -> stages: contiguous splits with the smallest possible largest stage."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from pipesim.checks import check_amount, check_count
from pipesim.layers import LayerProfile
from pipesim.pipeline import Pipeline

WEIGHTS = ("time", "layers", "stash_bytes", "param_bytes")


def min_max_split(weights: Sequence[float], parts: int) -> tuple[int, ...]:
    """Return how many items each part gets so that the heaviest part is as light as it can be.

    Parts are contiguous and none is empty. Of all best splits, it is the one whose earlier
    parts are the largest: with few micro-batches a slow stage costs less the earlier it sits.
    Exact, by dynamic programming over the last part; O(parts x items^2).

    Parameters
    ----------
    weights
        One number of at least 0 an item.
    parts
        Number of parts, at most the number of items.

    Raises
    ------
    ValueError
        If there are fewer items than parts, or a weight is negative, NaN or infinite.

    Examples
    --------
    >>> min_max_split([1, 1, 1, 1, 4], parts=3)
    (3, 1, 1)
    """
    parts = check_count("parts", parts)
    if len(weights) < parts:
        raise ValueError(f"{len(weights)} layers cannot fill {parts} stages")
    for item, weight in enumerate(weights):
        check_amount(f"weights[{item}]", weight)
    before = np.concatenate([[0.0], np.cumsum(np.asarray(weights, dtype=np.float64))])
    items = len(weights)
    # heaviest[i]: the least possible heaviest part when items i.. fill the parts left so far.
    heaviest = before[-1] - before
    table = [heaviest]
    for left in range(2, parts + 1):
        best = np.full(items + 1, np.inf)
        for first in range(items - left + 1):
            ends = np.arange(first + 1, items - left + 2)
            best[first] = np.maximum(before[ends] - before[first], heaviest[ends]).min()
        heaviest = best
        table.append(best)
    return _front_loaded(before, table)


def _front_loaded(before: Any, table: list[Any]) -> tuple[int, ...]:
    """Read a best split off the table, each part as large as the best value allows."""
    items, parts = len(before) - 1, len(table)
    limit = table[-1][0]
    slack = limit * (1 + 1e-12)  # differences of running sums round differently
    counts, first = [], 0
    for left in range(parts, 1, -1):
        ends = np.arange(first + 1, items - left + 2)
        fits = (before[ends] - before[first] <= slack) & (table[left - 2][ends] <= slack)
        counts.append(int(ends[fits].max()) - first)
        first += counts[-1]
    return (*counts, items - first)


def partition(profile: LayerProfile, stages: int, *, by: str = "time", **options: Any) -> Pipeline:
    """Return the pipeline whose largest stage is as small as a contiguous split allows.

    The smallest slowest stage is the best split as the number of micro-batches grows; with few,
    `best_split` finds a better one by simulation.

    Parameters
    ----------
    profile
        The layers.
    stages
        Number of stages.
    by
        What to balance: "time" (forward plus backward), "layers" (their number),
        "stash_bytes" or "param_bytes".
    options
        Handed to `Pipeline.from_costs`: latency_ms, bandwidth_gb_s, speed, title, ...

    Raises
    ------
    ValueError
        If there are fewer layers than stages, or the profile lacks what is to be balanced.

    Examples
    --------
    >>> profile = LayerProfile(forward_ms=(1, 1, 1, 1, 4), backward_ms=(2, 2, 2, 2, 8))
    >>> print(partition(profile, 3))
    pipeline: 3 stages on 3 ranks (linear)
    stage  rank  name  forward_ms  backward_ms
        0     0  0..2           3            6
        1     1  3              1            2
        2     2  4              4            8
    """
    return profile.split(min_max_split(layer_weights(profile, by), stages), **options)


def layer_weights(profile: LayerProfile, by: str) -> Sequence[float]:
    """Return what a split by "time", "layers", "stash_bytes" or "param_bytes" balances.

    Raises
    ------
    ValueError
        If `by` is none of these, or the profile lacks it.
    """
    if by == "time":
        return list(map(float, profile.total_ms()))
    if by == "layers":
        return [1.0] * len(profile)
    if by not in WEIGHTS:
        raise ValueError(f"by = {by!r} is unknown; known: {', '.join(WEIGHTS)}")
    weights: Sequence[float] | None = getattr(profile, by)
    if weights is None:
        raise ValueError(f"the profile gives no {by}")
    return weights


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to write a total as a sum of so many positive counts, in order.

    Examples
    --------
    >>> list(compositions(4, 2))
    [(1, 3), (2, 2), (3, 1)]
    """
    for cuts in combinations(range(1, total), parts - 1):
        ends = (*cuts, total)
        yield tuple(end - start for start, end in zip((0, *cuts), ends, strict=True))
