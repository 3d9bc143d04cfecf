"""Cost-aware zero-bubble orders of forwards (F), input gradients (I) and weight gradients (W).

One stage a rank. A greedy rule is simulated under several settings and the best order is kept,
handmade ones included; then the settings of single stages are tuned. Nothing is random, and the
effort is linear in the number of ops.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import product
from math import inf
from typing import NamedTuple

from pipesim.base.types import FloatArray

PASSES = "FIW"
F, I, W = range(len(PASSES))  # places in durations and counts: no codes of `Kind`
Orders = list[list[tuple[str, int]]]
Score = tuple[float, float, float]
Setting = tuple[tuple[float, float, float], int]  # (gap, first_wait, wait), in_flight: _simulate

# gap, first_wait, wait. Which are best depends on the memory: with little of it, a W in a gap that
# is too short holds up an I on which all earlier stages wait. With much of it idle time never
# pays, but for the first I: a little of it on every stage brings that I to stage 0 in time.
PATIENCE = (
    *((0.0, 0.0, 0.0), (0.3, 0.0, 0.0), (0.6, 0.0, 0.0), (1.0, 0.0, 0.0)),
    *((0.0, 0.1, 0.1), (0.0, 0.2, 0.2), (0.0, 0.5, 0.0), (0.0, 1.0, 0.0)),
)
IN_FLIGHT = (inf, 2.0, 1.5, 1.0)  # micro-batches, in shares of the stages from s on
TUNING_RUNS = 300
TUNING_OPS = 250_000  # at most, so that large problems are tuned less


class _Problem(NamedTuple):
    """Durations [stage][micro-batch], hops [boundary], and the memory of each stage."""

    durations: tuple[list[list[float]], ...]  # of F, I and W
    hop: list[float]
    limit: list[float]
    freed: list[float]


class _Run(NamedTuple):
    """Orders, and when each rank starts its first op and ends its last one."""

    orders: Orders
    first: list[float]
    last: list[float]


def zero_bubble_orders(
    forward: FloatArray,
    input_grad: FloatArray,
    weight_grad: FloatArray,
    hop: FloatArray,
    microbatches: int,
    limit: FloatArray,
    freed: FloatArray,
    objective: str = "makespan",
) -> Orders:
    """Return for each stage an order of ('F' | 'I' | 'W', micro-batch) within the memory limit.

    Parameters
    ----------
    forward, input_grad, weight_grad
        Durations, arrays (p, m).
    hop
        Time of a transfer over each stage boundary, either way; array (p-1,).
    microbatches
        Number of micro-batches m.
    limit, freed
        Stage s may hold `limit[s]` >= 1: F adds 1, I frees `freed[s]` of it and W the rest.
    objective
        "makespan", from the first op of all to the last one; or "span", the longest time of a
        rank from its first op to its last one. The other of the two breaks ties.

    Examples
    --------
    >>> import numpy as np
    >>> ones, two = np.ones((2, 2)), np.array([2.0, 2.0])
    >>> zero_bubble_orders(ones, ones, ones, np.zeros(1), 2, limit=two, freed=0 * two)[1]
    [('F', 0), ('I', 0), ('F', 1), ('I', 1), ('W', 0), ('W', 1)]
    """
    p, m = len(forward), microbatches
    durations = tuple(times.tolist() for times in (forward, input_grad, weight_grad))
    problem = _Problem(durations, hop.tolist(), limit.tolist(), freed.tolist())

    def score(run: _Run) -> Score:
        ends = sum(run.last)  # shows tuning the way where the two times do not move
        span = max(end - start for start, end in zip(run.first, run.last, strict=True))
        return (span, max(run.last), ends) if objective == "span" else (max(run.last), span, ends)

    tried = ((_simulate(problem, setting), setting) for setting in _settings(p, m))
    best, setting = min(tried, key=lambda pair: score(pair[0]))
    best = _tuned(problem, best, setting, score)
    handmade = (_simulate(problem, setting, _handmade_orders(p, m, delay)) for delay in (2, 1, 0))
    return min((best, *handmade), key=score).orders


def _settings(stages: int, microbatches: int) -> Iterator[list[Setting]]:
    """Yield settings to try, all stages equally patient.

    To be busy all the time the last stage needs one micro-batch in flight and stage 0 needs p, or
    2p - 1 to have forwards to run until the first I is back.
    """
    for share, patience in product(IN_FLIGHT, PATIENCE):
        yield [(patience, int(min(microbatches, share * k))) for k in range(stages, 0, -1)]


def _simulate(problem: _Problem, setting: list[Setting], given: Orders | None = None) -> _Run:
    """Simulate ranks that take the next I, else the next F, else a W.

    Each stage has its settings. A W fills a gap if at least the share `gap` of it fits; it runs in
    any case if an F waits for memory. An F gives way to an I that will arrive before the share
    `wait` of the F is done; to the first I, `first_wait`. At most `in_flight` micro-batches are
    between F and I. Ranks know of an arrival as soon as its op has started. This never gets stuck:
    a full rank waits for an I of the next one, and the last rank waits for none.

    Ranks follow `given` orders, if any, until one of them needs more memory than there is.
    """
    durations, hop, limit, freed = problem
    p, m = len(limit), len(durations[0][0])
    soon = 1e-9 * max(max(map(max, times)) for times in durations)  # ties despite rounding
    most = [at_most + 1e-9 for at_most in limit]
    orders: Orders = [[] for _ in range(p)]
    f_at = [[0.0] * m] + [[] for _ in range(p - 1)]  # arrivals, as far as known
    i_at: list[list[float]] = [[] for _ in range(p)]
    done = [[0, 0, 0] for _ in range(p)]  # F, I and W of each stage
    held, first, free = [0.0] * p, [inf] * p, [0.0] * p
    events = [(0.0, 0)]  # when to look at a stage
    while events:
        now, s = heappop(events)
        if now < free[s]:
            continue
        k, j, w = done[s]
        (gap, first_wait, wait), in_flight = setting[s]
        f_due = f_at[s][k] if k < len(f_at[s]) and (given or k - j < in_flight) else inf
        i_due = i_at[s][j] if j < len(i_at[s]) else inf
        if given:
            kind = PASSES.index(given[s][k + j + w][0]) if w < m else W
            due = (f_due, i_due, now if w < m else inf)[kind]
            if kind == F and held[s] + 1 > most[s]:
                given = None
                for rank in range(p):  # those that waited may have something else to do now
                    heappush(events, (now, rank))
                continue
        elif i_due <= now + soon:
            kind, due = I, i_due
        else:
            ready, fits = f_due <= now + soon, held[s] + 1 <= most[s]
            until = i_due if ready else min(i_due, f_due)
            share = wait if j else first_wait
            if ready and fits and i_due >= now + share * durations[F][s][k]:
                kind, due = F, f_due
            elif w < j and ((ready and not fits) or until >= now + gap * durations[W][s][w]):
                kind, due = W, now
            else:
                continue  # until something arrives
        if due > now + soon:
            continue  # until what is given arrives
        start = max(now, due)
        free[s] = end = start + durations[kind][s][done[s][kind]]
        heappush(events, (end, s))
        orders[s].append((PASSES[kind], done[s][kind]))
        done[s][kind] += 1
        first[s] = min(first[s], start)
        held[s] += (1, -freed[s], freed[s] - 1)[kind]
        if kind == F and s == p - 1:
            i_at[s].append(end)
        elif kind == F:
            f_at[s + 1].append(end + hop[s])
            heappush(events, (end + hop[s], s + 1))
        elif kind == I and s > 0:
            i_at[s - 1].append(end + hop[s - 1])
            heappush(events, (end + hop[s - 1], s - 1))
    return _Run(orders, first, free)


def _tuned(
    problem: _Problem, best: _Run, setting: list[Setting], score: Callable[[_Run], Score]
) -> _Run:
    """Change one stage's setting at a time as long as that makes the run better."""
    p, m = len(problem.limit), len(problem.durations[0][0])
    left, least = min(TUNING_RUNS, TUNING_OPS // (3 * p * m)), score(best)
    moves = [(s, move) for s in range(p) for move in (-1, 1, *PATIENCE)]
    at = since = 0
    while left > 0 and since < len(moves):
        s, move = moves[at]
        at, since = (at + 1) % len(moves), since + 1
        patience, in_flight = setting[s]
        new = (move, in_flight) if isinstance(move, tuple) else (patience, in_flight + move)
        if new != setting[s] and 1 <= new[1] <= m:
            trial = [*setting[:s], new, *setting[s + 1 :]]
            run, left = _simulate(problem, trial), left - 1
            if score(run) < least:
                best, least, setting, since = run, score(run), trial, 0
    return best


def _handmade_orders(stages: int, microbatches: int, delay: int) -> Orders:
    """Return 1F1B with each W `delay` s micro-batches after its I: 1 is ZB-H1, 0 plain 1F1B.

    With 2 it is ZB-H2, whose warm-up is longer.
    """
    orders: Orders = []
    for s in range(stages):
        ahead = 2 * (stages - s) - 1 if delay == 2 else stages - s - 1
        warm, lag = min(microbatches, ahead), delay * s
        order = [("F", j) for j in range(warm)]
        for j in range(microbatches):
            forward = [("F", warm + j)] if warm + j < microbatches else []
            backward = [("I", j), ("W", j - lag)] if j >= lag else [("I", j)]
            order += backward + forward if delay == 2 else forward + backward
        orders.append(order + [("W", j) for j in range(max(0, microbatches - lag), microbatches)])
    return orders
