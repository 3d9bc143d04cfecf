"""Greedy list scheduling with equal costs: how some static orders come about.

Ops become ready one after the other; whenever a rank is free it takes the most urgent of its
ready ops for which there is room. The order in which it took them is the schedule, and is legal
whatever the real costs are.
"""

import heapq
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from pipesim.base.ops import Kind, Op

Outcome: TypeAlias = tuple[int, list[list[Op]]]  # makespan in slots, and the order of every rank
HALVES = {Kind.F: 1, Kind.B: 2}  # orders are made for B = 2F; they are legal for any costs


def list_schedule(
    ranks: int,
    first: Iterable[Op],
    *,
    rank_of: Callable[[Op], int],
    after: Callable[[Op], Op | None],
    slots: Callable[[Op], int],
    fits: Callable[[int, Op], bool],
    take: Callable[[int, Op], None],
    urgency: Callable[[Op], Any],
) -> Outcome | None:
    """Return makespan and orders of a greedy run, or None if it blocks for lack of room.

    Parameters
    ----------
    ranks
        Number of ranks.
    first
        The ops that are ready from the start.
    rank_of, after, slots
        Functions of an op: its rank, the op that becomes ready when it ends (or None), its length.
    fits, take
        Whether a rank has room for an op now; and the account of an op that it takes.
    urgency
        The least goes first.
    """
    orders: list[list[Op]] = [[] for _ in range(ranks)]
    ready: list[list[tuple[int, Op]]] = [[] for _ in range(ranks)]
    for op in first:
        ready[rank_of(op)].append((0, op))
    free, ends, now = [0] * ranks, [0], 0
    while ends:
        now = heapq.heappop(ends)
        for rank in range(ranks):
            if free[rank] > now:
                continue
            fitting = [item for item in ready[rank] if item[0] <= now and fits(rank, item[1])]
            if not fitting:
                continue
            chosen = min(fitting, key=lambda item: urgency(item[1]))
            ready[rank].remove(chosen)
            op = chosen[1]
            orders[rank].append(op)
            take(rank, op)
            free[rank] = now + slots(op)
            heapq.heappush(ends, free[rank])
            follower = after(op)
            if follower is not None:
                ready[rank_of(follower)].append((free[rank], follower))
    return None if any(ready) else (max(free), orders)


def best_of(outcomes: Iterable[Outcome | None]) -> list[list[Op]]:
    """Return the orders of the quickest of some runs, the first of equals."""
    finished = [outcome for outcome in outcomes if outcome is not None]
    return min(finished, key=lambda outcome: outcome[0])[1]


def turning_at(last: int) -> Callable[[Op], Op | None]:
    """Return what follows an op: F of the next stage, at the last one B, then B down to stage 0."""

    def after(op: Op) -> Op | None:
        if op.kind == Kind.F:
            turn = op.stage == last
            return op._replace(kind=Kind.B) if turn else op._replace(stage=op.stage + 1)
        return op._replace(stage=op.stage - 1) if op.stage else None

    return after
