"""The best order found on a V placement within a memory limit, for any costs.

Plans (see `v_plans.py`) are run in simulated time, and each rank departs from its plan a little
where it would idle otherwise. Blocks that do well are altered at random, with a fixed seed. The
shape of the blocks follows Qi et al., Pipeline Parallelism with Controllable Memory, 2024.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count, product
from random import Random
from typing import NamedTuple, TypeAlias

from pipesim.base.types import FloatArray
from pipesim.schedules.families.v_plans import (
    F0,
    F1,
    I0,
    I1,
    SLOTS,
    Block,
    Plan,
    W,
    altered,
    block_plan,
    fits,
    lead_plans,
    uniform_blocks,
    zb_v_plan,
)

Pass: TypeAlias = tuple[str, int, int]  # kind, stage, micro-batch
Outcome: TypeAlias = tuple[tuple[float, float], list[list[Pass]]]  # score, order of every rank
Maker: TypeAlias = Callable[[int], Plan]  # of the number of micro-batches

KEPT, FINALISTS, ALTERED, TRIES = 20, 5, 300, 12_000  # sizes of the search


class Mode(NamedTuple):
    """How far ahead in its plan a rank may look for work while it would idle, and for what."""

    reach: float
    extras: tuple[int, ...]


NEAR, NEAR_I = Mode(2, (F1, F0, W)), Mode(2, (I1, I0, F1, F0, W))
NEAR_W, FAR = Mode(2, (W, F1, F0)), Mode(math.inf, (I1, I0, F1, F0, W))


class SearchProblem(NamedTuple):
    """Times of F, I and W by stage, of a hop by boundary, and what a rank may hold [chunks]."""

    forward: list[float]
    input_grad: list[float]
    weight_grad: list[float]
    hop: list[float]
    limit: int
    objective: str


def v_orders(
    forward: FloatArray,
    input_grad: FloatArray,
    weight_grad: FloatArray,
    hop: FloatArray,
    microbatches: int,
    limit: int,
    objective: str,
) -> list[list[Pass]]:
    """Return for every rank the best order found of ('F' | 'I' | 'W', stage, micro-batch).

    Parameters
    ----------
    forward, input_grad, weight_grad
        Durations, arrays (2p, m); their means over the micro-batches count.
    hop
        Time of a transfer over each stage boundary, either way; array (2p-1,).
    microbatches
        Number of micro-batches m.
    limit
        Chunks that a rank may hold, each from its F to its W; at least 2.
    objective
        "span", the longest time of a rank from its first op to its last one, where the makespan
        breaks ties; or "makespan".

    Examples
    --------
    >>> import numpy as np
    >>> ones = np.ones((2, 1))
    >>> v_orders(ones, ones, ones, np.zeros(1), 1, 2, "span")[0][:4]
    [('F', 0, 0), ('F', 1, 0), ('I', 1, 0), ('I', 0, 0)]
    """
    f, i, w = (times.mean(axis=1).tolist() for times in (forward, input_grad, weight_grad))
    problem = SearchProblem(f, i, w, hop.tolist(), limit, objective)
    ranks = len(forward) // 2

    # The ramps decide the ranking and are complete after 2p micro-batches: comparing candidates on
    # so few keeps long runs cheap. Only the finalists run at full length.
    short = min(microbatches, 2 * ranks)
    finalists: list[Maker] = [partial(zb_v_plan, ranks)]
    for mode in (NEAR, NEAR_I):
        finalists += _best_plans(partial(_dispatch, problem, short, mode), ranks, short, limit)
    best = _dispatch(problem, microbatches, FAR, [[]] * ranks, math.inf)  # no plan at all: greedy
    assert best is not None  # in this mode nothing gets stuck
    for make, mode in product(finalists, (NEAR, NEAR_I, NEAR_W, FAR)):
        found = _dispatch(problem, microbatches, mode, make(microbatches), best[0][0])
        if found and found[0] < best[0]:
            best = found
    return best[1]


def _best_plans(
    run: Callable[[Plan, float], Outcome | None], ranks: int, microbatches: int, limit: int
) -> list[Maker]:
    """Return makers of the best plans of both families and of random changes to the best blocks."""
    pool: list[tuple[tuple[float, float], int, Maker, Block | None]] = []  # best first
    serial = count()

    def consider(make: Maker, block: Block | None = None) -> None:
        found = run(make(microbatches), pool[-1][0][0] if len(pool) == KEPT else math.inf)
        if found:
            pool.append((found[0], next(serial), make, block))
            pool.sort(key=lambda entry: entry[:2])
            del pool[KEPT:]

    for make in lead_plans(ranks, limit):
        consider(make)
    for block in uniform_blocks(ranks, limit):
        consider(partial(block_plan, ranks, block), block)
    random, seen, parents = Random(0), set[Block](), list[Block]()
    for _ in range(TRIES if ranks > 1 else 0):
        parents = [entry[3] for entry in pool if entry[3]] or parents
        if not parents or len(seen) == ALTERED:
            break
        block = altered(random, random.choice(parents), ranks)
        if block not in seen and fits(ranks, block, limit + 1):
            seen.add(block)
            consider(partial(block_plan, ranks, block), block)
    return [entry[2] for entry in pool[:FINALISTS]]


def _dispatch(
    problem: SearchProblem, microbatches: int, mode: Mode, plan: Plan, bound: float
) -> Outcome | None:
    """Run a plan in simulated time; None if it gets stuck or must score above the bound.

    A rank whose next planned pass cannot start yet does the first of the mode's extras that is
    over in time and at most `reach` places ahead in the plan. In mode FAR no plan gets stuck: F0
    whose F1 is still to come stay below the limit, so that the oldest micro-batch always finds
    room to return.
    """
    m, limit, hop = microbatches, problem.limit, problem.hop
    by_kind = {"F": problem.forward, "I": problem.input_grad, "W": problem.weight_grad}
    last, ranks = len(hop), len(plan)
    work = [m * sum(c[r] + c[last - r] for c in by_kind.values()) for r in range(ranks)]
    soon = 1e-9 * max(work) / m  # ties despite rounding
    idle, allowed = [0.0] * ranks, [bound - x + m * soon for x in work]
    came: list[list[list[float]]] = [[[] for _ in range(5)] for _ in plan]  # times, by code
    came[0][F0].extend([0.0] * m)
    places = [_places(codes, m) for codes in plan]
    at, held, done = [0] * ranks, [0] * ranks, [[0] * 5 for _ in plan]
    waiting: list[list[Pass]] = [[] for _ in plan]  # W whose I is done
    orders: list[list[Pass]] = [[] for _ in plan]
    free, events = [0.0] * ranks, [(0.0, r) for r in range(ranks)]

    def next_pass(r: int, code: int) -> Pass:
        if code == W:
            return waiting[r][done[r][W]]
        return "FFII"[code], r if code in (F0, I0) else last - r, done[r][code]

    def choose(r: int, now: float) -> int | None:
        planned, place, counts = plan[r], places[r], done[r]
        while at[r] < len(planned) and place[planned[at[r]]][counts[planned[at[r]]]] > at[r]:
            at[r] += 1  # was done ahead of its turn
        want = planned[at[r]] if at[r] < len(planned) else None
        full = held[r] >= limit
        times = [t[n] if n < len(t) else math.inf for t, n in zip(came[r], counts, strict=True)]
        if full or counts[F0] - counts[F1] >= limit - 1:
            times[F0] = math.inf
        if full:
            times[F1] = math.inf
        arrival = math.inf if want is None else times[want]
        if arrival <= now:
            return want
        if full and want in (F0, F1) and times[W] <= now:
            return W
        for code in mode.extras:
            near = want is None or place[code][counts[code]] - at[r] <= mode.reach
            if code != want and times[code] <= now and near:
                kind, stage, _ = next_pass(r, code)
                if now + by_kind[kind][stage] <= arrival + soon:
                    return code
        return None

    while events:
        now, r = heappop(events)
        if now < free[r]:
            continue
        code = choose(r, now)
        if code is None:
            continue  # until something arrives
        if orders[r] or problem.objective == "makespan":
            idle[r] += now - free[r]
        if idle[r] > allowed[r]:
            return None
        kind, stage, number = next_pass(r, code)
        orders[r].append((kind, stage, number))
        done[r][code] += 1
        held[r] += (kind == "F") - (kind == "W")
        end = free[r] = now + by_kind[kind][stage]
        heappush(events, (end, r))
        if kind == "I":
            came[r][W].append(end)
            waiting[r].append(("W", stage, number))
        target = {"F": stage + 1, "I": stage - 1, "W": -1}[kind]
        if target > last:
            came[r][I1].append(end)  # the last stage turns around
        elif target >= 0:
            there, arrives = min(target, last - target), end + hop[min(stage, target)]
            second = target >= ranks
            code = (F1 if second else F0) if kind == "F" else (I1 if second else I0)
            came[there][code].append(arrives)
            heappush(events, (arrives, there))
    if min(map(len, orders)) < SLOTS * m:
        return None
    # The longest span, or where what comes before it counts as idle, the makespan.
    return (max(map(sum, zip(work, idle, strict=True))), max(free)), orders


def _places(codes: list[int], microbatches: int) -> list[Sequence[float]]:
    """Return by code its places in a plan; where that leaves out W, they are in reach at once."""
    where: list[list[float]] = [[] for _ in range(5)]
    for place, code in enumerate(codes):
        where[code].append(place)
    return [(found or [0] * 2 * microbatches) + [math.inf] for found in where]
