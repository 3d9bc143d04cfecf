"""What an order of ops implies: which op takes whose output, and what is held from when to when.

Everything here follows from the ops alone, whatever their times; results are arrays by op number.
"""

from typing import TYPE_CHECKING

import numpy as np

from pipesim.base.ops import COMPUTE_KINDS, Kind
from pipesim.base.types import BoolArray, Int32Array, IntArray

if TYPE_CHECKING:
    from pipesim.schedule import Schedule


def op_numbers(schedule: "Schedule") -> Int32Array:
    """Return the number of every op, array (kinds, stages, units), -1 where none is.

    Its first axis goes F, B, I, W, R; a unit is a micro-batch, or a slice of it.
    """
    units = schedule.microbatches * schedule.slices
    numbers = np.full((len(COMPUTE_KINDS), schedule.stages, units), -1, dtype=np.int32)
    every_op = np.arange(len(schedule), dtype=np.int32)
    numbers[schedule.kind, schedule.stage, schedule.unit] = every_op
    return numbers


def consumers(schedule: "Schedule") -> Int32Array:
    """Return for every op the number of the op on the next stage that takes its output.

    An activation goes from F of stage s to F of s+1, a gradient from B or I of s to B or I
    of s-1; -1 where nothing is passed on.
    """
    return _flows(schedule)["consumers"]


def producers(schedule: "Schedule") -> Int32Array:
    """Return for every op the number of the op whose output it takes, -1 where none.

    The inverse of `consumers`.
    """
    return _flows(schedule)["producers"]


def local_inputs(schedule: "Schedule") -> Int32Array:
    """Return for every op the number of the op of its own stage that must come first.

    B and I need the stage's own F, or R where there is one, R needs F, W needs I; -1 for F.
    """
    return _flows(schedule)["local_inputs"]


def _flows(schedule: "Schedule") -> dict[str, Int32Array]:
    """Return the three together, worked out once for a schedule."""
    if not schedule.kept:
        numbers = op_numbers(schedule)
        where = schedule.kind, schedule.stage, schedule.unit
        backward = np.maximum(numbers[Kind.B], numbers[Kind.I])
        taken = np.full_like(numbers, -1)
        taken[Kind.F, :-1] = numbers[Kind.F, 1:]
        taken[Kind.B, 1:] = backward[:-1]
        taken[Kind.I, 1:] = backward[:-1]
        taken_by = taken[where]
        source = np.full_like(taken_by, -1)
        passing = np.flatnonzero(taken_by >= 0)
        source[taken_by[passing]] = passing
        needed = taken
        needed[Kind.F] = -1
        needed[Kind.R] = numbers[Kind.F]
        rebuilt = numbers[Kind.R]
        needed[Kind.B] = needed[Kind.I] = np.where(rebuilt >= 0, rebuilt, numbers[Kind.F])
        needed[Kind.W] = numbers[Kind.I]
        keep_flows(schedule, taken_by, source, needed[where])
    return schedule.kept


def keep_flows(
    schedule: "Schedule", taken_by: Int32Array, source: Int32Array, needed: Int32Array
) -> None:
    """Keep the consumers, producers and local inputs of a schedule for whoever asks."""
    schedule.kept.update(consumers=taken_by, producers=source, local_inputs=needed)
    for array in schedule.kept.values():
        array.flags.writeable = False


def has_pairs(schedule: "Schedule") -> bool:
    """Say whether any ops overlap."""
    alike = schedule.group.strides == (0,)  # one number seen as an array
    group = schedule.group[:1] if alike else schedule.group
    return bool((group >= 0).any())


def second_of_pair(schedule: "Schedule") -> BoolArray:
    """Return which ops run together with the op right before them."""
    second = np.zeros(len(schedule), dtype=bool)
    group = schedule.group
    if not has_pairs(schedule):
        return second
    second[1:] = (group[1:] >= 0) & (group[1:] == group[:-1])
    return second


def opens(schedule: "Schedule") -> BoolArray:
    """Return which ops put a (stage, unit) in flight: the forwards."""
    return np.equal(schedule.kind, Kind.F)


def closes(schedule: "Schedule") -> BoolArray:
    """Return which ops end a flight: B, or W when split, or a lone F."""
    if {Kind.B, Kind.W} & schedule.kinds:
        ends: BoolArray = (schedule.kind == Kind.B) | (schedule.kind == Kind.W)
        return ends
    return np.equal(schedule.kind, Kind.F)


def peak_by_rank(
    schedule: "Schedule", at_start: IntArray | Int32Array, freed_at_end: IntArray | Int32Array
) -> tuple[int, ...]:
    """Return the most that each rank holds at once of what ops take and free.

    Parameters
    ----------
    schedule, at_start, freed_at_end
        As for `held_by_op`.
    """
    held = held_by_op(schedule, at_start, freed_at_end)
    return tuple(int(most) for most in np.maximum.reduceat(held, schedule.offsets[:-1]))


def held_by_op(
    schedule: "Schedule", at_start: IntArray | Int32Array, freed_at_end: IntArray | Int32Array
) -> IntArray:
    """Return what the rank of each op holds while it runs, array (ops,).

    On one rank ops follow each other, so that its order alone decides. Of an overlapped pair
    both take before either frees.

    Parameters
    ----------
    schedule
        The order.
    at_start, freed_at_end
        What each op takes when it starts and frees when it ends, arrays (ops,). On every rank
        all that is taken is freed.
    """
    taken, freed = at_start, freed_at_end
    if has_pairs(schedule):
        second = second_of_pair(schedule)
        first = np.append(second[1:], False)
        # Within a pair, let the first op take what both take and the second free what both free.
        taken = np.where(second, 0, taken + np.where(first, np.append(taken[1:], 0), 0))
        before = np.append(0, freed[:-1])
        freed = np.where(first, 0, freed + np.where(second, before, 0))
    # While the op runs; every rank starts at 0.
    held: IntArray = np.cumsum(taken, dtype=taken.dtype)
    np.subtract(held[1:], np.cumsum(freed[:-1], dtype=taken.dtype), out=held[1:])
    return held


def peak_by_stage(schedule: "Schedule") -> tuple[int, ...]:
    """Return the most units, micro-batches or slices of them, that each stage holds at once.

    Of a stage with two copies the fuller one counts.
    """
    placement = schedule.placement
    chunks = placement.chunk_table
    own = chunks[schedule.directions[schedule.microbatch], schedule.stage]
    peaks = np.zeros((int(chunks.max()) + 1, schedule.ranks), dtype=np.int64)
    for chunk in range(len(peaks)):
        taken, freed = (of(schedule) & (own == chunk) for of in (opens, closes))
        peaks[chunk] = peak_by_rank(schedule, taken.astype(np.int32), freed.astype(np.int32))
    return tuple(peaks[chunks, placement.table].max(axis=0).tolist())
