"""What must hold of an order before it may call itself a schedule."""

from typing import TYPE_CHECKING

import numpy as np

from pipesim.arrays import BoolArray, Int32Array
from pipesim.errors import ScheduleError
from pipesim.ops import COMPUTE_KINDS, Kind

if TYPE_CHECKING:
    from pipesim.schedule import Schedule


def check_schedule(schedule: "Schedule") -> None:
    """Raise a ScheduleError that names the first op at fault."""
    stages, microbatches = schedule.stages, schedule.microbatches
    strange = set(np.unique(schedule.kind).tolist()) - set(COMPUTE_KINDS)
    if strange:
        raise ScheduleError(
            f"{schedule.name}: kind {min(strange)} is no compute op; an order holds F, B, I and W"
        )

    def fail(faulty: BoolArray, fault: str) -> None:
        if faulty.any():
            number = int(np.argmax(faulty))
            where = f"rank {int(schedule.rank[number])}: {schedule.op(number)}"
            raise ScheduleError(f"{schedule.name}: {where} {fault}")

    fail(
        (schedule.stage < 0) | (schedule.stage >= stages),
        f"names a stage outside 0..{stages - 1}",
    )
    fail(
        (schedule.microbatch < 0) | (schedule.microbatch >= microbatches),
        f"names a micro-batch outside 0..{microbatches - 1}",
    )
    owner = np.asarray(schedule.placement.rank_of)[schedule.stage]
    fail(owner != schedule.rank, "is not on the rank that holds its stage")

    numbers = schedule.op_numbers()
    own_number = numbers[schedule.kind, schedule.stage, schedule.microbatch]
    fail(own_number != np.arange(len(schedule)), "is there twice")
    _check_complete(schedule, numbers)
    fail(schedule.local_inputs() >= np.arange(len(schedule)), "comes before its own stage's input")


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
        (~(whole | split | forward_only), "has F but no backward, which others have"),
    ]
    for faulty, fault in faults:
        if faulty.any():
            stage, microbatch = (int(i) for i in np.argwhere(faulty)[0])
            raise ScheduleError(f"{schedule.name}: stage {stage}, micro-batch {microbatch} {fault}")
