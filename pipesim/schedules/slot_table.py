"""The classic slot table of a forward pipeline, and the closed form of its bubble.

Every stage takes one slot for every micro-batch. With 3 stages and 2 micro-batches, one
row a stage and one column a slot:

    0  1  .  .
    .  0  1  .
    .  .  0  1

Half of the cells are idle: the bubble fraction is (p-1)/(m+p-1) = 2/4.
"""

from typing import Any

import numpy as np

from pipesim.base.checks import check_count
from pipesim.base.types import IntArray


def gpipe_forward_schedule(p: int, m: int) -> IntArray:
    """Return the slot table of m micro-batches on p stages, an int array (p, m+p-1).

    Entry [s, t] is the micro-batch that stage s works on in slot t, -1 where it is idle.
    Stage s starts one slot after stage s-1.

    Parameters
    ----------
    p
        Number of stages, >= 1.
    m
        Number of micro-batches, >= 1.

    Raises
    ------
    ValueError
        If p or m is not a whole number of at least 1.

    Examples
    --------
    >>> gpipe_forward_schedule(3, 2)
    array([[ 0,  1, -1, -1],
           [-1,  0,  1, -1],
           [-1, -1,  0,  1]])
    """
    p, m = check_count("p", p), check_count("m", m)
    microbatch = np.arange(m + p - 1) - np.arange(p)[:, np.newaxis]
    return np.where((microbatch >= 0) & (microbatch < m), microbatch, -1)


def bubble_fraction(schedule: Any, m: int | None = None) -> float:
    """Return the share of idle cells (-1) of a slot table, or, of two counts, the closed form.

    Parameters
    ----------
    schedule
        A slot table, array (stages, slots); or the number of stages p if `m` is given.
    m
        Number of micro-batches, with p as the first argument.

    Raises
    ------
    ValueError
        If the table is empty or not two-dimensional, or a count is not a whole number >= 1.

    Examples
    --------
    >>> bubble_fraction(gpipe_forward_schedule(3, 30))
    0.0625
    >>> bubble_fraction(3, 30)
    0.0625
    """
    if m is not None:
        return bubble_formula(schedule, m)
    table = np.asarray(schedule)
    if table.ndim != 2 or table.size == 0:
        raise ValueError(
            f"a slot table is a non-empty array (stages, slots), not one of shape {table.shape}; "
            "with two counts call bubble_fraction(p, m)"
        )
    return float(np.count_nonzero(table == -1) / table.size)


def bubble_formula(p: int, m: int) -> float:
    """Return (p-1)/(m+p-1), the bubble fraction of p equal stages and m micro-batches.

    It holds for the forward table above and for GPipe and 1F1B with equal stages, whatever
    the ratio of backward to forward (Huang et al. 2019, section 2.3; Narayanan et al. 2021).

    Parameters
    ----------
    p
        Number of stages, >= 1.
    m
        Number of micro-batches, >= 1.

    Raises
    ------
    ValueError
        If p or m is not a whole number of at least 1.

    Examples
    --------
    >>> bubble_formula(4, 4) == 3 / 7
    True
    """
    p, m = check_count("p", p), check_count("m", m)
    return (p - 1) / (m + p - 1)
