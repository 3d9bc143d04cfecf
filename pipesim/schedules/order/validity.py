"""Checks that an order of ops is a valid schedule."""

import numpy as np

from pipesim.base.errors import ScheduleError
from pipesim.base.ops import COMPUTE_KINDS, Kind
from pipesim.base.types import BoolArray, Int32Array
from pipesim.schedules.order.dataflow import has_pairs, local_inputs, second_of_pair
from pipesim.schedules.order.op_columns import OpColumns


def check_order(name: str, ops: OpColumns) -> None:
    """Check that an order of ops is valid; errors begin with its name.

    Raises
    ------
    ScheduleError
        If it is not; the message names the first op at fault.
    """
    _check_fields(name, ops)
    if ops.checked_flows is not None:
        return
    stages, microbatches, slices = ops.stages, ops.microbatches, ops.slices
    strange = set(np.unique(ops.kind).tolist()) - set(COMPUTE_KINDS)
    if strange:
        raise ScheduleError(
            f"{name}: kind {min(strange)} is no compute op; an order holds F, B, I, W and R"
        )

    def fail(faulty: BoolArray, fault: str) -> None:
        if faulty.any():
            number = int(np.argmax(faulty))
            where = f"rank {int(ops.rank[number])}: {ops.op(number)}"
            raise ScheduleError(f"{name}: {where} {fault}")

    for values, count, noun in (
        (ops.stage, stages, "stage"),
        (ops.microbatch, microbatches, "micro-batch"),
        (ops.slice, slices, "slice"),
    ):
        fail((values < 0) | (values >= count), f"names a {noun} outside 0..{count - 1}")
    owner = ops.rank_table[ops.stage, ops.microbatch]
    fail(owner != ops.rank, "is not on the rank that holds its stage")

    numbers = ops.numbers()
    own_number = numbers[ops.kind, ops.stage, ops.unit]
    fail(own_number != np.arange(len(ops)), "is there twice")
    _check_complete(name, ops, numbers)
    fail(local_inputs(ops) >= np.arange(len(ops)), "comes before its own stage's input")
    if slices > 1:
        _check_slices(name, ops, numbers)
    if has_pairs(ops):
        _check_pairs(name, ops)


def _check_fields(name: str, ops: OpColumns) -> None:
    """Check the directions of the micro-batches and the fractions of the slices."""
    directions = ops.directions
    known = np.isin(directions, np.arange(ops.placement.directions))
    if directions.shape != (ops.microbatches,) or not known.all():
        raise ScheduleError(
            f"{name}: directions must give every micro-batch one of the "
            f"{ops.placement.directions} of its placement"
        )
    fractions = ops.fractions
    if any(not f >= 0 for f in fractions) or abs(sum(fractions) - 1) > 1e-9:
        raise ScheduleError(
            f"{name}: the fractions of the slices, {list(fractions)}, do not sum to 1"
        )


def _check_complete(name: str, ops: OpColumns, numbers: Int32Array) -> None:
    """Check that every (stage, unit) has F, and all or none a backward, whole or split."""
    present = numbers >= 0
    whole, split = present[Kind.B], present[Kind.I] | present[Kind.W]
    forward_only = not (whole.any() or split.any())
    faults = [
        (~present[Kind.F], "has no F"),
        (whole & split, "has both B and a part of it; give B, or I and W"),
        (split & ~present[Kind.W], "has I but no W"),
        (split & ~present[Kind.I], "has W but no I"),
        (present[Kind.R] & ~(whole | split), "has R but no backward to rebuild it for"),
        (~(whole | split | forward_only), "has F but no backward, which others have"),
    ]
    for faulty, fault in faults:
        if faulty.any():
            stage, unit = (int(i) for i in np.argwhere(faulty)[0])
            microbatch, part = divmod(unit, ops.slices)
            of_slice = f", slice {part}" if ops.slices > 1 else ""
            raise ScheduleError(
                f"{name}: stage {stage}, micro-batch {microbatch}{of_slice} {fault}"
            )


def _check_slices(name: str, ops: OpColumns, numbers: Int32Array) -> None:
    """Check that forwards run the slices of a micro-batch in order, and backwards in reverse."""
    by_slice = (*numbers.shape[:2], ops.microbatches, ops.slices)
    ordered = numbers.reshape(by_slice)
    backward = np.maximum(ordered[Kind.B], ordered[Kind.I])
    late = ordered[Kind.F, ..., 1:] < ordered[Kind.F, ..., :-1]
    early = (backward[..., 1:] > backward[..., :-1]) & (backward[..., :-1] >= 0)
    for faulty, fault in ((late, "forward out of"), (early, "backward out of reverse")):
        if faulty.any():
            stage, microbatch, _ = (int(i) for i in np.argwhere(faulty)[0])
            raise ScheduleError(
                f"{name}: stage {stage}, micro-batch {microbatch} runs its slices {fault} order"
            )


def _check_pairs(name: str, ops: OpColumns) -> None:
    """Check that an overlapped pair is one forward and one backward, next to each other."""
    second = np.flatnonzero(second_of_pair(ops))
    paired = np.flatnonzero(ops.group >= 0)
    in_pairs = np.sort(np.concatenate([second - 1, second]))
    forwards = (ops.kind == Kind.F)[second - 1].astype(int) + (ops.kind == Kind.F)[second]
    same_rank = ops.rank[second - 1] == ops.rank[second]
    rebuilding = (ops.kind == Kind.R)[paired]
    alone = not np.array_equal(in_pairs, paired) or not same_rank.all()
    if alone or (forwards != 1).any() or rebuilding.any():
        raise ScheduleError(
            f"{name}: an overlapped pair is one forward and one backward, "
            "next to each other on a rank"
        )
    tied = second[local_inputs(ops)[second] == second - 1]
    if tied.size:
        raise ScheduleError(f"{name}: {ops.op(int(tied[0]))} cannot overlap with its own forward")
