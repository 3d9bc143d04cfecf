"""Plans for two chunks a rank in a V: what the search of `v_search.py` tries.

A plan lists for every rank the order of its passes as codes: F0, F1, I1, I0 (the digit is the
chunk) are 0, 1, 2, 3, and 4 is a W. Each code runs through the micro-batches in order. Most plans
leave out the W, for which nobody waits.
"""

import math
from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import count, product
from random import Random
from typing import NamedTuple, TypeAlias

import numpy as np

from pipesim.base.ops import Kind
from pipesim.base.types import IntArray
from pipesim.schedules.families.zb_v import zb_v_turns

F0, F1, I1, I0, W = range(5)
Plan: TypeAlias = list[list[int]]  # codes of every rank
Steps: TypeAlias = tuple[int, int, int, int]

SLOTS = 6  # passes of one micro-batch on one rank: the shortest period of a block of unit slots
# Equal steps in both directions of travel keep the gaps between the passes of a rank in one
# residue class, so that they do not collide.
UNIFORM: list[Steps] = [(a, b, a, b) for a in range(1, 6) for b in range(1, 6)]
STEPS: list[Steps] = [
    *(s for s in UNIFORM if s[0] + s[1] <= 6),
    *((1, 1, 2, 2), (1, 1, 4, 2), (1, 2, 2, 1), (2, 2, 1, 1), (1, 3, 2, 4), (3, 3, 1, 3)),
    *((2, 3, 2, 2), (2, 1, 4, 2), (2, 1, 4, 4), (1, 2, 3, 2), (1, 3, 4, 4)),
]


class Block(NamedTuple):
    """One micro-batch in unit slots; each next one runs the same a period later.

    Parameters
    ----------
    period
        Slots from one micro-batch to the next.
    turns
        Slots from F0 to F1 on the last rank, from F1 to I1 on the first, from I1 to I0 on the last.
    steps
        For each boundary of ranks r and r+1 the slots that F0, F1, I1 and I0 take over it.
    """

    period: int
    turns: tuple[int, ...]
    steps: tuple[Steps, ...]


def zb_v_plan(ranks: int, microbatches: int) -> Plan:
    """Return the handcrafted ZB-V, with the W where it has them."""
    codes = {(Kind.F, 0): F0, (Kind.F, 1): F1, (Kind.I, 1): I1, (Kind.I, 0): I0}
    return [
        [codes.get(turn, W) for turn in zb_v_turns(ranks, rank, microbatches)]
        for rank in range(ranks)
    ]


def lead_plans(ranks: int, limit: int) -> list["partial[Plan]"]:
    """Return makers of plans shaped like ZB-V, functions of m.

    Rank r starts with a times F0, b pairs F1 F0 and c pairs F1 I1, then takes all four in turn.
    ZB-V has a + 2b + 1 = 2p, b = r and c = p - r; under a lower limit a shrinks, and b and c grow
    more slowly along the ranks.
    """
    grid = product(
        (min(limit, 2 * ranks), min(limit, 3 * ranks)),
        *((0, -0.5, -1), (1, 0.75, 0.6), (1, 1.5), (1, 0.9, 0.8, 0.6), (0, 1)),
    )
    found = set()
    for held, b0, b1, c0, c1, spare in grid:
        pairs = [max(0, math.floor(b0 + b1 * rank)) for rank in range(ranks)]
        found.add(
            tuple(
                (
                    max(1, math.floor(held - 1 - 2 * b - spare)),
                    b,
                    math.floor(c0 + c1 * (ranks - 1 - rank)),
                )
                for rank, b in enumerate(pairs)
            )
        )
    return [partial(_lead_plan, leads) for leads in sorted(found)]


def _lead_plan(leads: tuple[tuple[int, int, int], ...], microbatches: int) -> Plan:
    plan = []
    for a, b, c in leads:
        codes = [F0] * a + [F1, F0] * b + [F1, I1] * c
        codes += [F0, I0, F1, I1] * microbatches + [I0] * microbatches
        seen = [count() for _ in range(4)]
        plan.append([code for code in codes if next(seen[code]) < microbatches])
    return plan


def block_plan(ranks: int, block: Block, microbatches: int) -> Plan:
    """Return the plan of a block that is repeated."""
    times = _starts(ranks, block)[:, :, np.newaxis] + block.period * np.arange(microbatches)
    orders = (np.argsort(times[:, rank].ravel(), kind="stable") for rank in range(ranks))
    return [(order // microbatches).tolist() for order in orders]


def uniform_blocks(ranks: int, limit: int) -> Iterator[Block]:
    """Yield blocks with equal steps over all boundaries that hold at most one chunk too many.

    One too many, because an order whose W are moved often holds less than its block.
    """
    # A micro-batch is under way for at least 4p + 2 slots, so a low limit enforces longer periods.
    least = max(SLOTS, math.ceil((4 * ranks + 2) / limit))
    for period in range(least, least + 3) if limit < ranks else (SLOTS,):
        steps = UNIFORM if period == SLOTS else UNIFORM[:1]
        for step, turns in product(steps, product(range(1, 6), repeat=3)):
            block = Block(period, turns, (step,) * (ranks - 1))
            if fits(ranks, block, limit + 1):
                yield block


def altered(random: Random, block: Block, ranks: int) -> Block:
    """Return the block with other turns, or other steps at one boundary, up to it or from it on."""
    turns, steps = list(block.turns), list(block.steps)
    for _ in range(random.choice((1, 1, 2, 3))):
        if random.random() < 0.2:
            turns[random.randrange(3)] = random.randint(1, 5)
        else:
            at = random.randrange(ranks - 1)
            low, high = random.choice(((at, at + 1), (0, at + 1), (at, ranks - 1)))
            steps[low:high] = [random.choice(STEPS)] * (high - low)
    return Block(block.period, tuple(turns), tuple(steps))


def fits(ranks: int, block: Block, limit: int) -> bool:
    """Return whether no two passes of a block collide and no rank holds more than the limit."""
    starts = _starts(ranks, block)
    each = (starts - starts[0]).T.tolist()
    return all(_peak(tuple(rank), block.period) <= limit for rank in each)


def _starts(ranks: int, block: Block) -> IntArray:
    """Return the slots in which the first micro-batch starts, array (4 codes, ranks)."""
    turns = block.turns
    f0, f1, i1, i0 = np.cumsum([(0, 0, 0, 0), *block.steps], axis=0).T
    f1 = f0[-1] + turns[0] + f1[-1] - f1
    i1 = f1[0] + turns[1] + i1
    return np.array([f0, f1, i1, i1[-1] + turns[2] + i0[-1] - i0])


@lru_cache(maxsize=1 << 16)
def _peak(starts: tuple[int, ...], period: int) -> float:
    """Return what a rank with these start slots holds in the long run; infinite if they collide.

    Each W takes the next free slot after its I.
    """
    used, ends = {start % period for start in starts}, [0] * 4
    if len(used) < 4:
        return math.inf
    for code in (I1, I0):
        slot = next(x for x in count(starts[code] + 1) if x % period not in used)
        used.add(slot % period)
        ends[code] = slot + 1
    lives = (starts[F0], ends[I0]), (starts[F1], ends[I1])
    return max(sum((t - a) // period - (t - b) // period for a, b in lives) for t in range(period))
