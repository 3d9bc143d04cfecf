"""The V family: two chunks a rank in a V, a split backward, and as little memory as one likes.

    rank 0 | 0F0 0F1 0F2 .   .   .   .   7F0 7I0 7W0 .   .   7F1 7I1 7W1 ...  v_half, m = 4
    rank 1 | .   1F0 1F1 .   .   .   6F0 1F2 .   6I0 6W0 6F1 .   .   1I0 ...
    rank 2 | .   .   2F0 2F1 .   5F0 .   5F1 .   .   5I0 5W0 2F2 2I0 2W0 ...
    rank 3 | .   .   .   3F0 4F0 3F1 4F1 .   .   .   .   4I0 3I0 4W0 3F2 ...

Rank r holds stages r and 2p-1-r. What a micro-batch holds on a rank from its two forwards to its
two weight gradients is longest on the first rank for the one chunk and on the last rank for the
other, so that the V evens memory out. Source: Qi et al., Pipeline Parallelism with Controllable
Memory, 2024; the rules of the search, for any costs, are in `v_search.py`.
"""

from pipesim.base.checks import check_count
from pipesim.base.errors import ScheduleError
from pipesim.base.ops import Kind
from pipesim.pipeline.cost_tables import split_backward_times
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.placement import Placement
from pipesim.schedules.families.facts import Family
from pipesim.schedules.families.rank_orders import columns
from pipesim.schedules.families.v_search import v_orders
from pipesim.schedules.families.zb_auto import check_objective
from pipesim.schedules.order.schedule import Schedule


def v_schedule(
    placement: Placement,
    microbatches: int,
    *,
    pipeline: Pipeline,
    limit: int | None = None,
    objective: str = "span",
) -> Schedule:
    """Return the best order found on a V in which no rank holds more than `limit` chunks.

    Parameters
    ----------
    placement, microbatches
        Two stages a rank, in a V.
    pipeline
        Whose costs to go by; of a stage whose micro-batches differ, their mean.
    limit
        Chunks that a rank may hold, each from its F to its W, at least 2; None: 2p, as much as
        1F1B's first rank.
    objective
        "span", the longest time that a rank is in use (the cost of the papers), the makespan
        deciding between equals; or "makespan".

    Warm-up: as many forwards as the limit lets in. Memory: the limit.
    Span bubble at F = I = W = 1 a chunk, limit k from p (p+1 where p is odd) to 2p, m >= 2p,
    p = 4..8: max(0, 3p-1-3k + max(3p, p-1+2(1+ceil(k/2)))). Below that it grows with m, as ranks
    wait for memory.
    Source: Qi et al., Controllable Memory, 2024.

    Raises
    ------
    ScheduleError
        If the pipeline lacks I and W, or the limit is below 2.
    """
    most = 2 * placement.ranks if limit is None else limit
    return _searched("v_schedule", placement, microbatches, pipeline, most, objective)


def v_half(
    placement: Placement, microbatches: int, *, pipeline: Pipeline, objective: str = "span"
) -> Schedule:
    """Return V-Half: half the memory of 1F1B, p chunks a rank.

    As `v_schedule` with a limit of p, p+1 where p is odd, and 4 on two ranks: with less, ranks
    wait for memory all the time. Span bubble at F = I = W = 1 a chunk, p >= 3, m >= 2p: at most
    3p-1, half of that of 1F1B. Source: Qi et al., Controllable Memory, 2024.
    """
    ranks = placement.ranks
    most = 4 if ranks == 2 else ranks + ranks % 2
    return _searched("v_half", placement, microbatches, pipeline, most, objective)


def v_min(
    placement: Placement, microbatches: int, *, pipeline: Pipeline, objective: str = "span"
) -> Schedule:
    """Return V-Min: about a third of the memory of 1F1B, 2 floor((p+4)/3) chunks a rank.

    As `v_schedule` with that limit. Span bubble at F = I = W = 1 a chunk, m >= 2p: about 4p.
    Source: Qi et al., Controllable Memory, 2024.
    """
    most = 2 * ((placement.ranks + 4) // 3)
    return _searched("v_min", placement, microbatches, pipeline, most, objective)


def _searched(
    name: str,
    placement: Placement,
    microbatches: int,
    pipe: Pipeline,
    limit: int,
    objective: str,
) -> Schedule:
    check_objective(name, objective)
    if check_count("limit", limit) < 2:
        raise ScheduleError(
            f"{name}: limit = {limit}, but rank 0 holds both chunks of a micro-batch at a time: "
            "give at least 2"
        )
    times = split_backward_times(name, pipe, placement, microbatches)
    found = v_orders(*times, microbatches, limit, objective)
    orders = [columns((stage, Kind[kind], n) for kind, stage, n in order) for order in found]
    return Schedule.from_rank_ops(name, placement, microbatches, orders)


FAMILIES = {
    "v_schedule": Family(
        build=v_schedule,
        summary="the best order found on a V within a memory limit",
        placement="v_shape",
        chunks=2,
        backward="I, W",
        warm_up="by cost",
        peak="the limit k, chunks",
        bubble_note="span 0 to 3p-1 slots, k=2p to p",
        source="Qi et al. 2024, Controllable Memory",
        by_cost=True,
    ),
    "v_half": Family(
        build=v_half,
        summary="the same in half the memory of 1F1B",
        placement="v_shape",
        chunks=2,
        backward="I, W",
        warm_up="by cost",
        peak="p chunks, p+1 if p is odd, 4 if p = 2",
        bubble_note="span 3p-1 slots at F=I=W",
        source="Qi et al. 2024, Controllable Memory",
        by_cost=True,
    ),
    "v_min": Family(
        build=v_min,
        summary="the same in about a third of it",
        placement="v_shape",
        chunks=2,
        backward="I, W",
        warm_up="by cost",
        peak="2 floor((p+4)/3) chunks",
        bubble_note="span about 4p slots at F=I=W",
        source="Qi et al. 2024, Controllable Memory",
        by_cost=True,
    ),
}
