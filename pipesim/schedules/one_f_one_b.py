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
from dataclasses import replace
from typing import Any

import numpy as np

from pipesim.base.checks import check_count
from pipesim.pipeline.placement import Placement
from pipesim.schedule import Schedule
from pipesim.schedules.rank_orders import each_rank, one_forward_one_backward, single_stage


def one_f_one_b(placement: Placement, microbatches: int) -> Schedule:
    """Return 1F1B with a flush: PipeDream-flush, DAPPLE, Megatron-LM without interleaving.

    Warm-up: min(m, p-1-s) forwards on stage s. Memory: min(m, p-s) micro-batches.
    Bubble: (p-1)/(m+p-1) with equal stages, any p and m, no transfers.
    Sources: Fan et al., DAPPLE, 2021; Narayanan et al., Megatron-LM, 2021.
    """
    last = placement.stages - 1
    return _alternating("1f1b", placement, microbatches, lambda stage: last - stage)


def eager_one_f_one_b(placement: Placement, microbatches: int) -> Schedule:
    """Return 1F1B with twice the warm-up, so that transfers hide behind more forwards.

    Warm-up: min(m, 2(p-1-s)) forwards on stage s. Memory: at most 2(p-s)-1 micro-batches.
    Bubble: (p-1)/(m+p-1) with equal stages, any p and m, no transfers; with a latency c a hop
    of at most half an op, the makespan grows by 2(p-1)c only.
    Source: Zhuang et al., On Optimizing the Communication of Model Parallelism, 2023.
    """
    last = placement.stages - 1
    return _alternating("1f1b_eager", placement, microbatches, lambda stage: 2 * (last - stage))


def pipedream(placement: Placement, microbatches: int, *, batches: int = 2) -> Schedule:
    """Return asynchronous 1F1B: several batches with no flush between them.

    What it is for: steady throughput, one micro-batch every max t, at the price of stale
    weights. The order is 1F1B over the micro-batches of all batches, numbered through.
    Warm-up: min(m, p-1-s), m counting those of all batches. Memory: min(m, p-s) micro-batches,
    and as many versions of the weights, on stage s. Bubble: (p-1)/(m+p-1), to 0 with the batches.
    Source: Narayanan et al., PipeDream, 2019.

    Parameters
    ----------
    placement
        One stage a rank.
    microbatches
        Number of micro-batches of one batch.
    batches
        How many batches run one after the other.

    Raises
    ------
    ValueError
        If `batches` is not a whole number of at least 1.
    """
    last, total = placement.stages - 1, microbatches * check_count("batches", batches)
    versions = tuple(min(total, last - stage + 1) for stage in range(placement.stages))
    return _alternating(
        "pipedream", placement, total, lambda stage: last - stage, weight_versions=versions
    )


def pipedream_2bw(placement: Placement, microbatches: int, *, batches: int = 2) -> Schedule:
    """Return PipeDream with double-buffered weights: two versions on every stage.

    Order, warm-up and bubble as `pipedream`; gradients of a batch are gathered before they are
    applied, so that two versions suffice. Source: Narayanan et al., Memory-Efficient
    Pipeline-Parallel DNN Training, 2021.

    Parameters
    ----------
    placement
        One stage a rank.
    microbatches
        Number of micro-batches of one batch.
    batches
        How many batches run one after the other.

    Raises
    ------
    ValueError
        If `batches` is not a whole number of at least 1.
    """
    order = pipedream(placement, microbatches, batches=batches)
    return replace(order, name="pipedream_2bw", weight_versions=(2,) * placement.stages)


def _alternating(
    name: str,
    placement: Placement,
    microbatches: int,
    warm_up_of: Callable[[int], int],
    **more: Any,
) -> Schedule:
    numbers = np.arange(microbatches)

    def order(rank: int) -> Any:
        both = single_stage(placement, rank, numbers)
        return one_forward_one_backward(warm_up_of(placement.stages_of(rank)[0]), both, both)

    orders = each_rank(placement, order)
    return Schedule.from_rank_ops(name, placement, microbatches, orders, **more)
