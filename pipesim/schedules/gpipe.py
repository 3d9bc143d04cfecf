"""GPipe: all forwards, then all backwards; and the forwards alone.

    rank 0 | F0 F1 F2 F3 .  .  .  .  .  .  B3 B2 B1 B0      gpipe, order="lifo"
    rank 1 | .  F0 F1 F2 F3 .  .  .  .  B3 B2 B1 B0 .
    rank 2 | .  .  F0 F1 F2 F3 .  .  B3 B2 B1 B0 .  .
    rank 3 | .  .  .  F0 F1 F2 F3 B3 B2 B1 B0 .  .  .

Source: Huang et al., GPipe, 2019. Both orders have bubble (p-1)/(m+p-1) with equal stages
and hold all m micro-batches at the turn. Last-in-first-out is what automatic differentiation
over the whole batch does; PyTorch's ScheduleGPipe goes first-in-first-out.
"""

import numpy as np

from pipesim.ops import Kind
from pipesim.placement import Placement
from pipesim.schedule import Schedule
from pipesim.schedules.rank_orders import each_rank, one_forward_one_backward, single_stage


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


def gpipe(placement: Placement, microbatches: int, *, order: str = "lifo") -> Schedule:
    """Return GPipe: all forwards, then all backwards.

    Warm-up: all m forwards on every stage. Memory: m micro-batches on every stage.
    Bubble: (p-1)/(m+p-1) with equal stages, any p and m. Source: Huang et al. 2019.

    Parameters
    ----------
    placement
        One stage a rank.
    microbatches
        Number of micro-batches m.
    order
        Of the backwards: "lifo", the last micro-batch first, or "fifo", as PyTorch does.

    Raises
    ------
    ValueError
        If the order is neither.
    """
    if order not in ("lifo", "fifo"):
        raise ValueError(f"order = {order!r} of gpipe is neither 'lifo' nor 'fifo'")
    forwards = np.arange(microbatches)
    backwards = forwards[::-1] if order == "lifo" else forwards
    orders = each_rank(
        placement,
        lambda rank: one_forward_one_backward(
            microbatches,
            single_stage(placement, rank, forwards),
            single_stage(placement, rank, backwards),
        ),
    )
    return Schedule.from_rank_ops("gpipe", placement, microbatches, orders)
