"""Data flow of an order of ops: inputs, overlapped pairs, phases, and what ranks hold.

Everything here follows from the ops alone, whatever their times; results are arrays by op number.

    F F F | B F B F B | B B        the phases of a rank: forwards before the first backward;
    warm-up  steady    cool-down   both in turn; backwards after the last forward
"""

from typing import NamedTuple

import numpy as np

from pipesim.base.ops import Kind
from pipesim.base.types import BoolArray, Int32Array, IntArray
from pipesim.schedules.order.op_columns import OpColumns


def consumers(ops: OpColumns) -> Int32Array:
    """Return the number of the op that takes the output of each op, array (ops,).

    An activation goes from F of stage s to F of s+1, a gradient from B or I of s to B or I
    of s-1; -1 if nothing is passed on.
    """
    return ops.flows.consumers


def producers(ops: OpColumns) -> Int32Array:
    """Return the number of the op whose output each op takes, array (ops,); -1 for none.

    The inverse of `consumers`.
    """
    return ops.flows.producers


def local_inputs(ops: OpColumns) -> Int32Array:
    """Return the number of the op of the same stage that each op needs, array (ops,).

    B and I need the stage's own F, or R where there is one, R needs F, W needs I; -1 for F.
    """
    return ops.flows.local_inputs


def has_pairs(ops: OpColumns) -> bool:
    """Return whether any ops overlap."""
    alike = ops.group.strides == (0,)  # one number seen as an array
    group = ops.group[:1] if alike else ops.group
    return bool((group >= 0).any())


def second_of_pair(ops: OpColumns) -> BoolArray:
    """Return whether each op overlaps the op right before it, array (ops,)."""
    second = np.zeros(len(ops), dtype=bool)
    group = ops.group
    if not has_pairs(ops):
        return second
    second[1:] = (group[1:] >= 0) & (group[1:] == group[:-1])
    return second


def opens(ops: OpColumns) -> BoolArray:
    """Return whether each op puts a (stage, unit) in flight, array (ops,): the forwards."""
    return np.equal(ops.kind, Kind.F)


def closes(ops: OpColumns) -> BoolArray:
    """Return whether each op ends a flight, array (ops,): B, or W when split, or a lone F."""
    if {Kind.B, Kind.W} & ops.kinds:
        ends: BoolArray = (ops.kind == Kind.B) | (ops.kind == Kind.W)
        return ends
    return np.equal(ops.kind, Kind.F)


def peak_by_rank(
    ops: OpColumns, at_start: IntArray | Int32Array, freed_at_end: IntArray | Int32Array
) -> tuple[int, ...]:
    """Return the peak of what each rank holds, from what ops take and free.

    Parameters
    ----------
    ops, at_start, freed_at_end
        As for `held_by_op`.
    """
    held = held_by_op(ops, at_start, freed_at_end)
    return tuple(int(most) for most in np.maximum.reduceat(held, ops.offsets[:-1]))


def held_by_op(
    ops: OpColumns, at_start: IntArray | Int32Array, freed_at_end: IntArray | Int32Array
) -> IntArray:
    """Return the amount that the rank of each op holds while it runs, array (ops,).

    On one rank ops follow each other, so that its order alone decides. In an overlapped pair
    both ops take before either frees.

    Parameters
    ----------
    ops
        The order.
    at_start, freed_at_end
        Amount that each op takes when it starts and frees when it ends, arrays (ops,). On every
        rank all that is taken is freed.
    """
    taken, freed = at_start, freed_at_end
    if has_pairs(ops):
        second = second_of_pair(ops)
        first = np.append(second[1:], False)
        # Within a pair, let the first op take what both take and the second free what both free.
        taken = np.where(second, 0, taken + np.where(first, np.append(taken[1:], 0), 0))
        before = np.append(0, freed[:-1])
        freed = np.where(first, 0, freed + np.where(second, before, 0))
    # The amount while the op runs; every rank starts at 0.
    held: IntArray = np.cumsum(taken, dtype=taken.dtype)
    np.subtract(held[1:], np.cumsum(freed[:-1], dtype=taken.dtype), out=held[1:])
    return held


def peak_by_stage(ops: OpColumns) -> tuple[int, ...]:
    """Return the peak of micro-batches, or slices of them, in flight on each stage.

    If a stage has two copies, the fuller one counts.
    """
    placement = ops.placement
    chunks = placement.chunk_table
    own = chunks[ops.directions[ops.microbatch], ops.stage]
    peaks = np.zeros((int(chunks.max()) + 1, ops.ranks), dtype=np.int64)
    for chunk in range(len(peaks)):
        taken, freed = (of(ops) & (own == chunk) for of in (opens, closes))
        peaks[chunk] = peak_by_rank(ops, taken.astype(np.int32), freed.astype(np.int32))
    return tuple(peaks[chunks, placement.table].max(axis=0).tolist())


class Phases(NamedTuple):
    """Number of ops of one rank in each phase."""

    warm_up: int
    steady: int
    cool_down: int


def rank_phases(ops: OpColumns) -> list[Phases]:
    """Return the number of ops in each phase of each rank; I and W count as one each.

    A rank without backwards only warms up.

    Examples
    --------
    >>> from pipesim.schedules.order.schedule import Schedule
    >>> rank_phases(Schedule.from_orders(["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]))
    [Phases(warm_up=2, steady=0, cool_down=2), Phases(warm_up=1, steady=2, cool_down=1)]
    """
    phases = []
    for start, end in zip(ops.offsets[:-1], ops.offsets[1:], strict=True):
        forward = ops.kind[start:end] == Kind.F
        count = len(forward)
        warm_up = count if forward.all() else int(np.argmin(forward))
        cool_down = 0 if forward.all() else int(np.argmax(forward[::-1]))
        phases.append(Phases(warm_up, count - warm_up - cool_down, cool_down))
    return phases
