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

import numpy as np

from pipesim.ops import Kind
from pipesim.placement import Placement
from pipesim.schedule import RankOps, Schedule


def one_f_one_b(placement: Placement, microbatches: int) -> Schedule:
    """Return 1F1B with a flush: PipeDream-flush, DAPPLE, Megatron-LM without interleaving.

    Warm-up: min(m, p-1-s) forwards on stage s. Memory: min(m, p-s) micro-batches.
    Bubble: (p-1)/(m+p-1) with equal stages, any p and m, no transfers.
    Sources: Fan et al., DAPPLE, 2021; Narayanan et al., Megatron-LM, 2021.
    """
    last = placement.ranks - 1
    return _alternating("1f1b", placement, microbatches, lambda rank: last - rank)


def eager_one_f_one_b(placement: Placement, microbatches: int) -> Schedule:
    """Return 1F1B with twice the warm-up, so that transfers hide behind more forwards.

    Warm-up: min(m, 2(p-1-s)) forwards on stage s. Memory: at most 2(p-s)-1 micro-batches.
    Bubble: (p-1)/(m+p-1) with equal stages, any p and m, no transfers; with a latency c a hop
    of at most half an op, the makespan grows by 2(p-1)c only.
    Source: Zhuang et al., On Optimizing the Communication of Model Parallelism, 2023.
    """
    last = placement.ranks - 1
    return _alternating("1f1b_eager", placement, microbatches, lambda rank: 2 * (last - rank))


def _alternating(
    name: str, placement: Placement, microbatches: int, warm_up_of: Callable[[int], int]
) -> Schedule:
    def rank_ops(rank: int) -> RankOps:
        warm_up = min(microbatches, warm_up_of(rank))
        kinds = np.concatenate(
            [
                np.full(warm_up, Kind.F),
                np.tile([Kind.F, Kind.B], microbatches - warm_up),
                np.full(warm_up, Kind.B),
            ]
        )
        # Both kinds go through the micro-batches in order: the n-th F is F of micro-batch n.
        numbers = np.where(kinds == Kind.F, np.cumsum(kinds == Kind.F), np.cumsum(kinds == Kind.B))
        return np.full(len(kinds), placement.stages_of(rank)[0]), kinds, numbers - 1

    return Schedule.from_rank_ops(
        name, placement, microbatches, map(rank_ops, range(placement.ranks))
    )
