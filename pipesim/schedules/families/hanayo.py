"""Hanayo: stages zig-zag over the ranks in waves, down and back up, with one copy of the model.

    rank 0 | F0 F1 .  .  .  .  .  f0 b0 =  f1 b1 =  .  .  .  .  .  .  .  .  .  B0 =  .  .  B1 =
    rank 1 | .  F0 F1 .  .  .  f0 .  f1 .  b0 =  .  b1 =  .  .  .  .  .  B0 =  .  .  B1 =  .  .
    rank 2 | .  .  F0 F1 .  f0 .  f1 .  .  .  .  b0 =  .  b1 =  .  B0 =  .  .  B1 =  .  .  .  .
    rank 3 | .  .  .  F0 f0 F1 f1 .  .  .  .  .  .  .  b0 =  B0 =  b1 =  B1 =  .  .  .  .  .  .

One wave, two micro-batches, B = 2F; small letters are the stages of the way up. For m = p the
makespan is 6pW + 4(p-1) stage forwards, and no order is faster: the last rank gets its first
backward after 2pW + 2(p-1), before which it has 2pW forwards to run, and 2(p-1) must follow its
last backward. So idle / total is (2p-2)/(3pW+2p-2). The paper prints (2p-2)/(3pW+p-1), which is
neither idle / total nor idle / ideal of any order: both would need a shorter step than that bound.
"""

from collections.abc import Callable
from typing import Any

from pipesim.base.ops import Kind, Op
from pipesim.pipeline.placement import Placement
from pipesim.schedules.closed_forms import ClosedForm, hanayo_bubble
from pipesim.schedules.families.facts import Family
from pipesim.schedules.families.list_scheduling import (
    HALVES,
    Outcome,
    best_of,
    list_schedule,
    turning_at,
)
from pipesim.schedules.families.rank_orders import columns
from pipesim.schedules.order.schedule import Schedule


def hanayo(placement: Placement, microbatches: int) -> Schedule:
    """Return Hanayo: waves of p micro-batches over 2W stages a rank.

    What it is for: the short fill of Chimera without a copy of the parameters.
    Warm-up: all that arrives while the first micro-batch is on its way to its last stage, from
    p+1 chunks on (W = 1). Memory: at most 2pW chunks on a
    rank, as much as p micro-batches. Bubble with equal stages, B = 2F, m = p: (2p-2)/(3pW+2p-2),
    the least there is. With m > p and W >= 2 the order can be some forwards above the optimum.
    Source: Liu et al., Hanayo, 2023 (whose formula differs, see above).
    """
    ranks, stages = placement.ranks, placement.stages
    if microbatches <= ranks:
        orders = _wave(placement, microbatches)
    else:
        # Forwards first keep the last rank supplied between groups of p micro-batches; the
        # deepest stage breaks ties, so that a micro-batch gets through. (p, p) never blocks.
        rules: list[Callable[[Op], Any]] = [
            lambda op: (op.kind == Kind.B, -op.stage, op.microbatch),
            lambda op: (op.kind == Kind.B, op.microbatch, -op.stage),
            lambda op: (op.kind == Kind.F, op.microbatch, -op.stage),
            lambda op: _due(op, ranks, stages),
        ]
        limits = [(microbatches, 2 * ranks), (microbatches, microbatches), (ranks, ranks)]
        orders = best_of(
            _run(placement, microbatches, rule, *limit) for rule in rules for limit in limits
        )
    return Schedule.from_rank_ops("hanayo", placement, microbatches, map(columns, orders))


def _wave(placement: Placement, microbatches: int) -> list[list[Op]]:
    """Return the orders of one wave of at most p micro-batches.

    Micro-batch k enters at slot 2k. The two stages of a rank in a wave differ by an odd number,
    so that micro-batches an even number of slots apart, less than 2p, never meet. The backwards
    go the same way at their own pace, and the forwards fill in around them.
    """
    stages, rank_of = placement.stages, placement.rank_of
    starts: list[list[tuple[int, Op]]] = [[] for _ in range(placement.ranks)]
    taken: list[set[int]] = [set() for _ in range(placement.ranks)]
    for microbatch in range(microbatches):
        slot = stages + 4 * microbatch
        for stage in reversed(range(stages)):
            starts[rank_of[stage]].append((slot, Op(stage, Kind.B, microbatch)))
            taken[rank_of[stage]] |= {slot, slot + 1}
            slot += 2
    for microbatch in range(microbatches):
        slot = 2 * microbatch
        for stage in range(stages):
            while slot in taken[rank_of[stage]]:
                slot += 1
            starts[rank_of[stage]].append((slot, Op(stage, Kind.F, microbatch)))
            taken[rank_of[stage]].add(slot)
            slot += 1
    return [[op for _, op in sorted(order)] for order in starts]


def _due(op: Op, ranks: int, stages: int) -> tuple[int, int]:
    """Return when an op would start if waves of p micro-batches followed one another."""
    unit, place = divmod(op.microbatch, ranks)
    at = op.stage if op.kind == Kind.F else stages + 2 * (stages - 1 - op.stage)
    return 3 * stages * unit + 2 * HALVES[op.kind] * place + at, op.microbatch


def _run(
    placement: Placement,
    microbatches: int,
    urgency: Callable[[Op], Any],
    entered: int,
    depth: int,
) -> Outcome | None:
    """Run a list scheduler under three limits.

    Parameters
    ----------
    placement, microbatches, urgency
        What to run, and what goes first.
    entered
        Most micro-batches between their first forward and their last backward.
    depth
        Most activations of one stage; never more than the stages that are left before it.
    """
    stages = placement.stages
    room = [min(stages - stage, depth) for stage in range(stages)]
    held = [0] * placement.ranks
    inside = 0

    def fits(rank: int, op: Op) -> bool:
        full = held[rank] >= stages or room[op.stage] <= 0 or (not op.stage and inside >= entered)
        return op.kind == Kind.B or not full

    def take(rank: int, op: Op) -> None:
        nonlocal inside
        step = 1 if op.kind == Kind.F else -1
        held[rank] += step
        room[op.stage] -= step
        inside += step * (op.stage == 0)

    return list_schedule(
        placement.ranks,
        [Op(0, Kind.F, number) for number in range(microbatches)],
        rank_of=lambda op: placement.rank_of[op.stage],
        after=turning_at(stages - 1),
        slots=lambda op: HALVES[op.kind],
        fits=fits,
        take=take,
        urgency=urgency,
    )


FAMILIES = {
    "hanayo": Family(
        build=hanayo,
        summary="zig-zag waves over one copy of the model",
        placement="wave",
        chunks=None,
        warm_up="varies",
        peak="min(m, p) v chunks",
        closed_form=ClosedForm(
            formula="x/(m v T+x), x = (p-min(m, p)) v T+2(min(m, p)-1)B",
            valid="B >= 2F, m <= p or v = 2",
            of_times=hanayo_bubble,
        ),
        source="Liu et al. 2023",
    ),
}
