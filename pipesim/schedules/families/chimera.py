"""Chimera: two pipelines over the same ranks in opposite directions.

    rank 0 | F0 F1 .  f2 b2 =  f3 b3 =  .  B0 =  .  .  B1 =     4 micro-batches, B = 2F
    rank 1 | .  F0 f2 F1 f3 .  b2 =  B0 =  b3 =  B1 =  .  .
    rank 2 | .  f2 F0 f3 F1 .  B0 =  b2 =  B1 =  b3 =  .  .
    rank 3 | f2 f3 .  F0 B0 =  F1 B1 =  .  b2 =  .  .  b3 =

Capitals flow down the ranks, small letters up; "=" is the second half of a backward. Every rank
holds a stage of each, so the weights exist twice; where one pipeline fills or drains, the other
has work. With equal stages, B >= F and m a multiple of p, the makespan is m(F+B) + (p-2)B, and no
order that holds at most p micro-batches a rank is faster: no backward reaches a middle rank before
p F + (p/2-1) B, of which at most p forwards are work, and after its last backward p/2-1 more must
follow. (With more memory 3m+3(p/2-1) can be reached at B = 2F.)
"""

from pipesim.base.ops import Kind, Op
from pipesim.pipeline.placement import Placement
from pipesim.schedules.closed_forms import ClosedForm, chimera_bubble
from pipesim.schedules.families.facts import Family
from pipesim.schedules.families.list_scheduling import (
    HALVES,
    Outcome,
    best_of,
    list_schedule,
    turning_at,
)
from pipesim.schedules.families.rank_orders import check_even, columns
from pipesim.schedules.order.schedule import Schedule


def chimera(placement: Placement, microbatches: int) -> Schedule:
    """Return Chimera: the first half of the micro-batches flows down the ranks, the other up.

    What it is for: half the fill of one pipeline, and memory that is even over the ranks.
    Needs an even p. Warm-up: p on every rank from m = 2p on, with m = p from p at the middle
    ranks down to p/2+1 at the ends. Memory: at most p micro-batches on a rank, and parameters
    twice. Bubble with equal stages, B >= F, m a multiple of p:
    (p-2)B / (m(F+B)+(p-2)B), that is (p-2)/(2m+p-2) at F = B and (p-2)/(3m/2+p-2) at B = 2F.
    Source: Li and Hoefler, Chimera, 2021.

    Raises
    ------
    ScheduleError
        If p is odd; with the nearest legal p.
    """
    ranks = placement.ranks
    check_even("chimera", ranks)
    down = (microbatches + 1) // 2
    directions = [0] * down + [1] * (microbatches - down)
    # Forwards first, under the depth of 1F1B and the limit p, keep the middle ranks supplied over
    # the join between groups of p. The narrow depths can never block, so that one always ends.
    deep = [ranks - stage for stage in range(ranks)]
    narrow = [min(ranks // 2, ranks - stage) for stage in range(ranks)]
    runs = [
        _run(placement, directions, depth, forwards_first)
        for depth in (deep, narrow)
        for forwards_first in (True, False)
    ]
    orders = [columns(order) for order in best_of(runs)]
    return Schedule.from_rank_ops("chimera", placement, microbatches, orders, directions=directions)


def _run(
    placement: Placement, directions: list[int], depth: list[int], forwards_first: bool
) -> Outcome | None:
    ranks, last = placement.ranks, placement.stages - 1
    live = [[0, 0] for _ in range(ranks)]  # micro-batches in flight, by direction
    # Of one kind the older micro-batch of either direction goes first.
    age = [directions[:number].count(way) for number, way in enumerate(directions)]
    table = placement.table.tolist()

    def fits(rank: int, op: Op) -> bool:
        way = directions[op.microbatch]
        return op.kind == Kind.B or (live[rank][way] < depth[op.stage] and sum(live[rank]) < ranks)

    def take(rank: int, op: Op) -> None:
        live[rank][directions[op.microbatch]] += 1 if op.kind == Kind.F else -1

    return list_schedule(
        ranks,
        [Op(0, Kind.F, number) for number in range(len(directions))],
        rank_of=lambda op: table[directions[op.microbatch]][op.stage],
        after=turning_at(last),
        slots=lambda op: HALVES[op.kind],
        fits=fits,
        take=take,
        urgency=lambda op: (
            (op.kind == Kind.B) == forwards_first,
            age[op.microbatch],
            directions[op.microbatch],
        ),
    )


FAMILIES = {
    "chimera": Family(
        build=chimera,
        summary="two pipelines in opposite directions",
        placement="bidirectional",
        warm_up="varies",
        peak="min(m, p), weights x 2",
        closed_form=ClosedForm(
            formula="x/(m T+x), x = (p-2)B", valid="B >= F, m = n p", of_times=chimera_bubble
        ),
        source="Li and Hoefler 2021",
    ),
}
