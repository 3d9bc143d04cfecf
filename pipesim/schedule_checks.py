"""What must hold of an order before it may call itself a schedule."""

from typing import TYPE_CHECKING

import numpy as np

from pipesim.base.errors import ScheduleError
from pipesim.base.ops import COMPUTE_KINDS, Kind
from pipesim.base.types import BoolArray, Int32Array
from pipesim.dataflow import has_pairs, keep_flows, local_inputs, op_numbers, second_of_pair

if TYPE_CHECKING:
    from pipesim.schedule import Schedule

LARGE = 200_000  # ops from which compiled code looks first whether all is right


def check_schedule(schedule: "Schedule") -> None:
    """Raise a ScheduleError that names the first op at fault."""
    _check_fields(schedule)
    if len(schedule) >= LARGE and _is_right(schedule):
        return
    stages, microbatches, slices = schedule.stages, schedule.microbatches, schedule.slices
    strange = set(np.unique(schedule.kind).tolist()) - set(COMPUTE_KINDS)
    if strange:
        raise ScheduleError(
            f"{schedule.name}: kind {min(strange)} is no compute op; "
            "an order holds F, B, I, W and R"
        )

    def fail(faulty: BoolArray, fault: str) -> None:
        if faulty.any():
            number = int(np.argmax(faulty))
            where = f"rank {int(schedule.rank[number])}: {schedule.op(number)}"
            raise ScheduleError(f"{schedule.name}: {where} {fault}")

    for values, count, noun in (
        (schedule.stage, stages, "stage"),
        (schedule.microbatch, microbatches, "micro-batch"),
        (schedule.slice, slices, "slice"),
    ):
        fail((values < 0) | (values >= count), f"names a {noun} outside 0..{count - 1}")
    owner = schedule.rank_table[schedule.stage, schedule.microbatch]
    fail(owner != schedule.rank, "is not on the rank that holds its stage")

    numbers = op_numbers(schedule)
    own_number = numbers[schedule.kind, schedule.stage, schedule.unit]
    fail(own_number != np.arange(len(schedule)), "is there twice")
    _check_complete(schedule, numbers)
    fail(local_inputs(schedule) >= np.arange(len(schedule)), "comes before its own stage's input")
    if slices > 1:
        _check_slices(schedule, numbers)
    if has_pairs(schedule):
        _check_pairs(schedule)


def _is_right(schedule: "Schedule") -> bool:
    """Say of a very large order whether nothing is wrong with it; what it is takes longer."""
    if schedule.slices > 1 or has_pairs(schedule):
        return False  # it may be right, but that is for the slow checks to tell
    from pipesim.dataflow_kernels import check_and_connect

    columns = schedule.kind, schedule.stage, schedule.unit, schedule.offsets
    right, *flows = check_and_connect(*columns, schedule.rank_table)
    if right:
        keep_flows(schedule, *flows)
    return bool(right)


def _check_fields(schedule: "Schedule") -> None:
    """Check what is not about single ops."""
    directions = schedule.directions
    known = np.isin(directions, np.arange(schedule.placement.directions))
    if directions.shape != (schedule.microbatches,) or not known.all():
        raise ScheduleError(
            f"{schedule.name}: directions must give every micro-batch one of the "
            f"{schedule.placement.directions} of its placement"
        )
    fractions = schedule.fractions
    if any(not f >= 0 for f in fractions) or abs(sum(fractions) - 1) > 1e-9:
        raise ScheduleError(
            f"{schedule.name}: the fractions of the slices, {list(fractions)}, do not sum to 1"
        )
    if len(schedule.weight_versions) != schedule.stages or min(schedule.weight_versions) < 1:
        raise ScheduleError(f"{schedule.name}: weight_versions must be one count a stage")


def _check_complete(schedule: "Schedule", numbers: Int32Array) -> None:
    """Check that every pair has its F, and all or none have a backward, whole or split."""
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
            microbatch, part = divmod(unit, schedule.slices)
            of_slice = f", slice {part}" if schedule.slices > 1 else ""
            raise ScheduleError(
                f"{schedule.name}: stage {stage}, micro-batch {microbatch}{of_slice} {fault}"
            )


def _check_slices(schedule: "Schedule", numbers: Int32Array) -> None:
    """Check that slices, each of which attends to those before, go forward and then in reverse."""
    by_slice = (*numbers.shape[:2], schedule.microbatches, schedule.slices)
    ordered = numbers.reshape(by_slice)
    backward = np.maximum(ordered[Kind.B], ordered[Kind.I])
    late = ordered[Kind.F, ..., 1:] < ordered[Kind.F, ..., :-1]
    early = (backward[..., 1:] > backward[..., :-1]) & (backward[..., :-1] >= 0)
    for faulty, fault in ((late, "forward out of"), (early, "backward out of reverse")):
        if faulty.any():
            stage, microbatch, _ = (int(i) for i in np.argwhere(faulty)[0])
            raise ScheduleError(
                f"{schedule.name}: stage {stage}, micro-batch {microbatch} runs its slices "
                f"{fault} order"
            )


def _check_pairs(schedule: "Schedule") -> None:
    """Check that an overlapped pair is one forward and one backward, next to each other."""
    second = np.flatnonzero(second_of_pair(schedule))
    paired = np.flatnonzero(schedule.group >= 0)
    in_pairs = np.sort(np.concatenate([second - 1, second]))
    forwards = (schedule.kind == Kind.F)[second - 1].astype(int) + (schedule.kind == Kind.F)[second]
    same_rank = schedule.rank[second - 1] == schedule.rank[second]
    rebuilding = (schedule.kind == Kind.R)[paired]
    alone = not np.array_equal(in_pairs, paired) or not same_rank.all()
    if alone or (forwards != 1).any() or rebuilding.any():
        raise ScheduleError(
            f"{schedule.name}: an overlapped pair is one forward and one backward, "
            "next to each other on a rank"
        )
    tied = second[local_inputs(schedule)[second] == second - 1]
    if tied.size:
        raise ScheduleError(
            f"{schedule.name}: {schedule.op(int(tied[0]))} cannot overlap with its own forward"
        )
