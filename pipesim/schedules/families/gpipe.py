"""GPipe: all forwards, then all backwards; and the forwards alone.

    rank 0 | F0 F1 F2 F3 .  .  .  .  .  .  B3 B2 B1 B0      gpipe, order="lifo"
    rank 1 | .  F0 F1 F2 F3 .  .  .  .  B3 B2 B1 B0 .
    rank 2 | .  .  F0 F1 F2 F3 .  .  B3 B2 B1 B0 .  .
    rank 3 | .  .  .  F0 F1 F2 F3 B3 B2 B1 B0 .  .  .

         0 | F0 F1 R1 .  .  .  .  B1 R0 B0                  gpipe, recompute="early"
         1 | .  F0 F1 R1 .  .  B1 R0 B0 .
         2 | .  .  F0 F1 R1 B1 R0 B0 .  .

Source: Huang et al., GPipe, 2019. Both orders have bubble (p-1)/(m+p-1) with equal stages
and hold all m micro-batches at the turn. Last-in-first-out is what automatic differentiation
over the whole batch does; PyTorch's ScheduleGPipe goes first-in-first-out.
"""

import numpy as np

from pipesim.base.ops import Kind
from pipesim.pipeline.placement import Placement
from pipesim.schedules.closed_forms import ClosedForm, units_bubble
from pipesim.schedules.families.facts import Family
from pipesim.schedules.families.rank_orders import each_rank
from pipesim.schedules.order.schedule import Schedule

RECOMPUTE = ("with_backward", "early", "except_last")


def gpipe_forward(placement: Placement, microbatches: int) -> Schedule:
    """Return the forwards alone: inference, or the forward half of GPipe.

    Warm-up: all. Memory: one micro-batch a stage, freed when its forward ends.
    Bubble: (p-1)/(m+p-1) with equal stages. Source: Huang et al. 2019.
    """
    kinds = np.full(microbatches, Kind.F)
    orders = each_rank(
        placement,
        lambda rank: (
            np.full(microbatches, placement.stages_of(rank)[0]),
            kinds,
            np.arange(microbatches),
        ),
    )
    return Schedule.from_rank_ops("gpipe_forward", placement, microbatches, orders)


def gpipe(
    placement: Placement,
    microbatches: int,
    *,
    order: str = "lifo",
    recompute: str = "with_backward",
) -> Schedule:
    """Return GPipe: all forwards, then all backwards.

    Warm-up: all m forwards on every stage. Memory: m micro-batches on every stage.
    Bubble: (p-1)/(m+p-1) with equal stages, any p and m. Source: Huang et al. 2019.

    With equal stages, and R the time to rebuild activations, the step takes
    (m+p-1)(F+R+B) where the backward rebuilds them; rebuilt early, while the gradient is awaited,
    (m+p-1)F + m(R+B) + (p-1)B; and R less if the last micro-batch keeps them.

    Parameters
    ----------
    placement
        One stage a rank.
    microbatches
        Number of micro-batches m.
    order
        Order of the backwards: "lifo", the last micro-batch first, or "fifo", as PyTorch does.
    recompute
        When to rebuild what a forward has not kept: "with_backward", as a part of it; "early", by
        an op R before it, so that it goes on while the gradient is awaited; or "except_last",
        early, but for the last micro-batch, which keeps all (torchgpipe's default). All stages
        have R; where nothing is to be rebuilt it takes no time, and no overhead.

    Raises
    ------
    ValueError
        If the order or `recompute` is none of these.
    """
    if order not in ("lifo", "fifo"):
        raise ValueError(f"order = {order!r} of gpipe is neither 'lifo' nor 'fifo'")
    if recompute not in RECOMPUTE:
        known = ", ".join(map(repr, RECOMPUTE))
        raise ValueError(f"recompute = {recompute!r} of gpipe is none of {known}")
    forwards = np.arange(microbatches)
    backwards = forwards[::-1] if order == "lifo" else forwards
    numbers, kinds = (
        np.concatenate([forwards, backwards]),
        np.repeat([Kind.F, Kind.B], microbatches),
    )
    separate = recompute != "with_backward"
    if separate:
        rebuilt = np.arange(2 * microbatches) >= microbatches
        if recompute == "except_last":
            rebuilt &= numbers < microbatches - 1
        places = np.flatnonzero(rebuilt)
        numbers = np.insert(numbers, places, numbers[places])
        kinds = np.insert(kinds, places, Kind.R)
    orders = each_rank(
        placement,
        lambda rank: (np.full(len(kinds), placement.stages_of(rank)[0]), kinds, numbers),
    )
    return Schedule.from_rank_ops(
        "gpipe", placement, microbatches, orders, separate_recompute=separate
    )


FAMILIES = {
    "gpipe_forward": Family(
        build=gpipe_forward,
        summary="forwards only",
        backward="none",
        warm_up="m",
        peak="1",
        closed_form=ClosedForm(formula="(p-1)/(m+p-1)", of_counts=units_bubble),
        source="Huang et al. 2019",
    ),
    "gpipe": Family(
        build=gpipe,
        summary="all forwards, then all backwards",
        warm_up="m",
        peak="m",
        closed_form=ClosedForm(
            formula="(p-1)/(m+p-1)",
            valid="recompute with the backward",
            of_counts=lambda order: None if order.separate_recompute else units_bubble(order),
        ),
        source="Huang et al. 2019",
    ),
}
