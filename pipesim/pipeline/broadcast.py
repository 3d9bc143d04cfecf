"""One number for all, or one each: what the arguments of a pipeline may look like."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pipesim.base.checks import check_count


def stage_count(
    stages: int | None, costs: Mapping[str, npt.ArrayLike | None], ranks: int | None
) -> int:
    """Return the number of stages: as given, as long as the first list of costs, or as ranks.

    Raises
    ------
    ValueError
        If nothing says it, or a cost is neither numbers, a list, nor a table of them.
    """
    arrays = (numbers(name, value) for name, value in costs.items() if value is not None)
    length = next((len(array) for array in arrays if array.ndim > 0), None)
    if stages is None and length is None and ranks is None:
        raise ValueError("every cost is a single number: say how many stages there are")
    return check_count("stages", next(n for n in (stages, length, ranks) if n is not None))


def numbers(name: str, value: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return a value as an array of numbers.

    Raises
    ------
    ValueError
        If it holds anything else, or rows of different lengths.
    """
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"{name} has rows of different lengths") from None
    if array.dtype.kind not in "iuf" and array.size:
        raise ValueError(f"{name} = {value!r} is not a number, a list or a table of them")
    return array


def per_item(name: str, value: npt.ArrayLike, count: int, items: str) -> list[Any]:
    """Return `count` values: the one number for all, or the list as it is.

    Raises
    ------
    ValueError
        If the list has another length.
    """
    array = np.asarray(value)
    if array.ndim == 0:
        return [array.item()] * count
    if array.shape != (count,):
        raise ValueError(f"{name} has {len(array)} values for {count} {items}")
    return list(array.tolist())


def per_stage_costs(name: str, value: npt.ArrayLike | None, count: int) -> list[Any]:
    """Return one cost a stage: None, a number, or a tuple of one a micro-batch.

    Raises
    ------
    ValueError
        If the value is neither a number, one a stage, nor a table (stages, micro-batches).
    """
    if value is None:
        return [None] * count
    array = numbers(name, value).astype(np.float64)
    if array.ndim == 2 and len(array) == count:
        return [tuple(row) for row in array.tolist()]
    if array.ndim >= 2:
        raise ValueError(f"{name} has shape {array.shape}, not ({count} stages, micro-batches)")
    return per_item(name, array, count, "stages")


def per_rank_pair(name: str, value: Any, rank_of: Sequence[int]) -> dict[tuple[int, int], Any]:
    """Return a value for pairs of ranks that neighbouring stages connect, in both directions.

    Parameters
    ----------
    name
        For the error.
    value
        A number, one a stage boundary, a mapping of pairs (which stays as it is), or None.
    rank_of
        The rank of every stage.

    Raises
    ------
    ValueError
        If the list has another length than there are boundaries.
    """
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return dict(value)
    boundaries = list(pairwise(rank_of))
    by_pair: dict[tuple[int, int], Any] = {}
    for (source, target), amount in zip(
        boundaries, per_item(name, value, len(boundaries), "stage boundaries"), strict=True
    ):
        if source != target:
            by_pair[source, target] = by_pair[target, source] = amount
    return by_pair
