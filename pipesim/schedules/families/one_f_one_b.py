"""1F1B: as soon as a backward can run it does, one forward and one backward in turn.

    rank 0 | F0 F1 F2 F3 .  .  .  B0 .  B1 .  B2 .  B3      1f1b with 4 micro-batches
    rank 1 | .  F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3 .
    rank 2 | .  .  F0 F1 .  B0 F2 B1 F3 B2 .  B3 .  .
    rank 3 | .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 .  .  .

Every rank first runs some forwards (its warm-up), then pairs of F and B, then the backwards
that are left (its cool-down). Its warm-up alone tells one member of the family from another,
and its warm-up plus one is the most micro-batches that it ever holds.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pipesim.pipeline.placement import Placement
from pipesim.schedules.closed_forms import ClosedForm, units_bubble
from pipesim.schedules.families.facts import Family
from pipesim.schedules.families.rank_orders import each_rank, one_forward_one_backward, single_stage
from pipesim.schedules.order.schedule import Schedule


def one_f_one_b(placement: Placement, microbatches: int) -> Schedule:
    """Return 1F1B with a flush: PipeDream-flush, DAPPLE, Megatron-LM without interleaving.

    Warm-up: min(m, p-1-s) forwards on stage s. Memory: min(m, p-s) micro-batches.
    Bubble: (p-1)/(m+p-1) with equal stages, any p and m, no transfers.
    Sources: Fan et al., DAPPLE, 2021; Narayanan et al., Megatron-LM, 2021.
    """
    last = placement.stages - 1
    return alternating("1f1b", placement, microbatches, lambda stage: last - stage)


def eager_one_f_one_b(placement: Placement, microbatches: int) -> Schedule:
    """Return 1F1B with twice the warm-up, so that transfers hide behind more forwards.

    Warm-up: min(m, 2(p-1-s)) forwards on stage s. Memory: at most 2(p-s)-1 micro-batches.
    Bubble: (p-1)/(m+p-1) with equal stages, any p and m, no transfers; with a latency c a hop
    of at most half an op, the makespan grows by 2(p-1)c only.
    Source: Zhuang et al., On Optimizing the Communication of Model Parallelism, 2023.
    """
    last = placement.stages - 1
    return alternating("1f1b_eager", placement, microbatches, lambda stage: 2 * (last - stage))


def alternating(
    name: str,
    placement: Placement,
    microbatches: int,
    warm_up_of: Callable[[int], int],
    **more: Any,
) -> Schedule:
    """Return 1F1B with any warm-up.

    Parameters
    ----------
    name, placement, microbatches
        As of any schedule.
    warm_up_of
        Stage -> the most forwards before its first backward.
    more
        Further fields of the schedule.
    """
    numbers = np.arange(microbatches)

    def order(rank: int) -> Any:
        both = single_stage(placement, rank, numbers)
        return one_forward_one_backward(warm_up_of(placement.stages_of(rank)[0]), both, both)

    orders = each_rank(placement, order)
    return Schedule.from_rank_ops(name, placement, microbatches, orders, **more)


FAMILIES = {
    "1f1b": Family(
        build=one_f_one_b,
        summary="one forward, one backward in turn",
        warm_up="min(m, p-1-r)",
        peak="min(m, p-r)",
        closed_form=ClosedForm(formula="(p-1)/(m+p-1)", of_counts=units_bubble),
        source="Narayanan et al. 2021",
    ),
    "1f1b_eager": Family(
        build=eager_one_f_one_b,
        summary="1F1B with twice the warm-up, to hide transfers",
        warm_up="min(m, 2(p-1-r))",
        peak="min(m, 2(p-r)-1)",
        closed_form=ClosedForm(formula="(p-1)/(m+p-1)", of_counts=units_bubble),
        source="Zhuang et al. 2023",
    ),
}
