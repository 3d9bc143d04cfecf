"""Schedules that cut each micro-batch into slices along the sequence.

    rank 0 | F0.0 F0.1 F1.0 F1.1 .    .    .    .    B0.1 .    B0.0 ...  seq1f1b, m = 2, k = 2
    rank 1 | .    F0.0 F0.1 F1.0 F1.1 .    .    B0.1 .    B0.0 .    ...
    rank 2 | .    .    F0.0 F0.1 F1.0 .    B0.1 F1.1 B0.0 .    B1.1 ...
    rank 3 | .    .    .    F0.0 F0.1 B0.1 F1.0 B0.0 F1.1 B1.1 B1.0 ...

A slice attends to the slices before it: forwards take them in order, backwards in reverse. With
causal attention later slices take longer; the fractions of a stage's cost say how much.
"""

from collections.abc import Sequence
from numbers import Real

import numpy as np

from pipesim.base.checks import check_count
from pipesim.base.ops import Kind
from pipesim.pipeline.placement import Placement
from pipesim.schedules.closed_forms import ClosedForm, units_bubble
from pipesim.schedules.families.facts import Family
from pipesim.schedules.families.rank_orders import each_rank, one_forward_one_backward
from pipesim.schedules.order.schedule import RankOps, Schedule


def seq1f1b(
    placement: Placement, microbatches: int, *, slices: int | Sequence[float] = 2
) -> Schedule:
    """Return 1F1B over slices of micro-batches.

    What it is for: a bubble smaller by the number of slices k, and less activation memory.
    Warm-up: min(m k, p-s-2+k) slices on stage s. Memory: min(m k, p-s-1+k) slices.
    Bubble with equal stages and slices of equal time, no transfers: (p-1)/(m k+p-1).
    Source: Sun et al., Seq1F1B, 2024.

    Parameters
    ----------
    placement
        One stage a rank.
    microbatches
        Number of micro-batches m.
    slices
        Their number k, of equal time; or the fractions of the cost that the slices take.

    Raises
    ------
    ValueError
        If the slices are neither a count nor fractions that sum to 1.
    """
    fractions = slice_fractions(slices)
    count = len(fractions)
    numbers, parts = np.divmod(np.arange(microbatches * count), count)

    def order(rank: int) -> RankOps:
        stage = placement.stages_of(rank)[0]
        units = np.full(len(numbers), stage), np.arange(len(numbers))
        backward = units[0], numbers * count + (count - 1 - parts)
        warm_up = placement.stages - stage - 2 + count
        stages, kinds, unit = one_forward_one_backward(warm_up, units, backward)
        microbatch, part = np.divmod(unit, count)
        return stages, kinds, microbatch, part

    orders = each_rank(placement, order)
    return Schedule.from_rank_ops("seq1f1b", placement, microbatches, orders, fractions=fractions)


def terapipe(
    placement: Placement, microbatches: int, *, slices: int | Sequence[float] = 2
) -> Schedule:
    """Return the forwards of slices, one after the other through the pipeline.

    What it is for: filling a pipeline with one long sequence. Warm-up: all. Memory: a slice,
    freed when its forward ends. Makespan of identical stages, slices of times t_i, no transfers:
    sum t_i + (p-1) max t_i. Source: Li et al., TeraPipe, 2021.

    Parameters
    ----------
    placement
        One stage a rank.
    microbatches
        Number of micro-batches m.
    slices
        Their number k, of equal time; or the fractions of the cost that the slices take.

    Raises
    ------
    ValueError
        If the slices are neither a count nor fractions that sum to 1.
    """
    fractions = slice_fractions(slices)
    numbers, parts = np.divmod(np.arange(microbatches * len(fractions)), len(fractions))

    def order(rank: int) -> RankOps:
        stage = placement.stages_of(rank)[0]
        return np.full(len(numbers), stage), np.full(len(numbers), Kind.F), numbers, parts

    orders = each_rank(placement, order)
    return Schedule.from_rank_ops("terapipe", placement, microbatches, orders, fractions=fractions)


def slice_fractions(slices: int | Sequence[float]) -> tuple[float, ...]:
    """Return the share of the cost that each slice takes.

    Raises
    ------
    ValueError
        If the slices are neither a count nor fractions that sum to 1.

    Examples
    --------
    >>> slice_fractions(4), slice_fractions([0.2, 0.3, 0.5])
    ((0.25, 0.25, 0.25, 0.25), (0.2, 0.3, 0.5))
    """
    if isinstance(slices, Real) or slices is None or np.ndim(slices) == 0:
        count = check_count("slices", slices)
        return (1.0 / count,) * count
    fractions = tuple(slices)  # type: ignore[arg-type]  # a number has dimension 0
    if not all(isinstance(f, Real) and f >= 0 for f in fractions) or not fractions:
        raise ValueError(f"slices = {slices!r} are neither a count nor fractions")
    if abs(sum(fractions) - 1) > 1e-9:
        raise ValueError(f"slices = {slices!r} sum to {sum(fractions)}, not to 1")
    return fractions


FAMILIES = {
    "seq1f1b": Family(
        build=seq1f1b,
        summary="1F1B over slices of micro-batches",
        warm_up="min(m k, p-2-r+k) slices",
        peak="min(m k, p-1-r+k) slices",
        closed_form=ClosedForm(
            formula="(p-1)/(m k+p-1)", valid="slices of equal time", of_counts=units_bubble
        ),
        source="Sun et al. 2024",
    ),
    "terapipe": Family(
        build=terapipe,
        summary="forwards of slices",
        backward="none",
        warm_up="m k slices",
        peak="1 slice",
        closed_form=ClosedForm(
            formula="(p-1)/(m k+p-1)", valid="slices of equal time", of_counts=units_bubble
        ),
        source="Li et al. 2021",
    ),
}
