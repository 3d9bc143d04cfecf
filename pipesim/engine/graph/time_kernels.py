"""Compiled loops that order the nodes of event graphs and compute their times.

Plain loops over arrays, compiled by numba when they are first called and cached on disk. No
fast-math: every `max` and `+` is the one of IEEE floats, so that times agree to the last bit with
any other engine that takes the same ones.
"""

import numpy as np
from numba import njit

from pipesim.base.types import BoolArray, FloatArray, Int32Array, IntArray
from pipesim.engine.graph.marks import END, MIDDLE, START

# States of a node in a depth-first search; a doomed one is on the way, and waits for a cycle.
UNSEEN, ON_THE_WAY, DONE, STUCK, DOOMED = range(5)


@njit(cache=True)
def order_nodes(first: IntArray, awaited: Int32Array) -> Int32Array:
    """Return the nodes in topological order; those that never start are left out.

    A depth-first search: a node comes when all that it waits for has come, so that what belongs
    together stands together. The node before it on its rank, its first edge, is visited last, to
    stand as near as possible. An edge back to a node on the way closes a cycle.
    """
    nodes = len(first) - 1
    order = np.empty(nodes, np.int32)
    state = np.full(nodes, UNSEEN, np.int8)
    stack = np.empty(nodes, np.int32)
    at = np.empty(nodes, np.int64)  # the next edge of every node on the way
    done = 0
    for root in range(nodes):
        if state[root] != UNSEEN:
            continue
        depth = 0
        stack[0], at[0] = root, first[root + 1] - 1
        state[root] = ON_THE_WAY
        while depth >= 0:
            node = stack[depth]
            if at[depth] >= first[node]:
                other = awaited[at[depth]] // 3
                at[depth] -= 1
                if state[other] == UNSEEN:
                    state[other] = ON_THE_WAY
                    depth += 1
                    stack[depth], at[depth] = other, first[other + 1] - 1
                elif state[other] != DONE and state[node] == ON_THE_WAY:
                    state[node] = DOOMED
                continue
            if state[node] == ON_THE_WAY:
                state[node] = DONE
                order[done] = node
                done += 1
            else:
                state[node] = STUCK
            depth -= 1
            if depth >= 0 and state[node] == STUCK and state[stack[depth]] == ON_THE_WAY:
                state[stack[depth]] = DOOMED
    return order[:done]


@njit(cache=True)
def evaluate(
    order: Int32Array,
    first: IntArray,
    awaited: Int32Array,
    first_cost: FloatArray,
    second_cost: FloatArray,
) -> FloatArray:
    """Return start, middle and end of every node [ms], array (3 x nodes,); NaN if it is stuck."""
    times = np.full(3 * (len(first) - 1), np.nan)
    for node in order:
        start = 0.0
        for edge in range(first[node], first[node + 1]):
            start = max(start, times[awaited[edge]])
        middle = start + first_cost[node]
        times[3 * node + START] = start
        times[3 * node + MIDDLE] = middle
        times[3 * node + END] = middle + second_cost[node]
    return times


@njit(cache=True)
def walk(
    offsets: IntArray,
    second: BoolArray,
    feeder: Int32Array,
    earlier: Int32Array,
    crosses: BoolArray,
    ahead: Int32Array,
    duration: FloatArray,
    wire: FloatArray,
    latency: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return ready, start, end of every op, departure, arrival of its message [ms]; NaN if stuck.

    The event graph of a schedule whose messages leave by themselves, evaluated without being
    built: every rank walks its order, stops where an input is missing, and goes on when the op
    that makes it has run.
    """
    ops = len(duration)
    ready, start, end = np.full(ops, np.nan), np.full(ops, np.nan), np.full(ops, np.nan)
    departure, arrival = np.full(ops, np.nan), np.full(ops, np.nan)
    waiter = np.full(ops, -1, np.int32)  # the rank that waits for each op, -1 for none
    ranks = len(offsets) - 1
    going = np.empty(2 * ranks + 1, np.int32)
    following, clock = offsets[:-1].copy(), np.zeros(ranks)
    for rank in range(ranks):
        going[rank] = ranks - 1 - rank
    left = ranks
    while left:
        left -= 1
        rank = going[left]
        op, last = following[rank], offsets[rank + 1]
        while op < last:
            until = op + 2 if op + 1 < last and second[op + 1] else op + 1
            there, missing = 0.0, -1
            for one in range(op, until):
                source = feeder[one]
                if source >= 0:
                    if np.isnan(end[source]):
                        missing = source
                        break
                    there = max(there, arrival[source] if crosses[source] else end[source])
                if earlier[one] >= 0:
                    there = max(there, end[earlier[one]])
            if missing >= 0:
                waiter[missing] = rank
                break
            begin = max(clock[rank], there)
            clock[rank] = begin + duration[op]
            for one in range(op, until):
                ready[one], start[one], end[one] = there, begin, clock[rank]
                if crosses[one]:
                    leaves = clock[rank]
                    if len(ahead) and ahead[one] >= 0:
                        leaves = max(leaves, departure[ahead[one]] + wire[ahead[one]])
                    departure[one] = leaves
                    arrival[one] = (leaves + wire[one]) + latency[one]
                if waiter[one] >= 0:
                    going[left] = waiter[one]
                    left += 1
            op = until
        following[rank] = op
    return ready, start, end, departure, arrival
