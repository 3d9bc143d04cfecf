"""Compiled loops that turn an event graph into a list of steps, and run it for many cost sets.

A step is one line of arithmetic on numbered values, and the steps of a plan stand in topological
order:

    value[out] = max(value[a], value[b] + cost[w]) + cost[c]

Value 0 and cost 0 are 0. An op is one step: a is the end of the rank's op before it, b the end of
the op that feeds it, w the latency in between, c its duration. A node that waits for more takes
more steps, a message with time on the wire one of its own. These are the sums and maxima of the
event graph in the same association; adding 0 and taking the maximum with 0 change no time.
"""

import numpy as np
from numba import njit

from pipesim.base.types import BoolArray, FloatArray, Int8Array, Int32Array, IntArray
from pipesim.engine.graph.marks import DURATION, MIDDLE, START, TRANSFER


@njit(cache=True)
def make_steps(
    order: Int32Array,
    first: IntArray,
    awaited: Int32Array,
    cost_kind: Int8Array,
    cost_index: Int32Array,
    duration: Int32Array,
    wire: Int32Array,
    latency: Int32Array,
    starts_wanted: BoolArray,
) -> tuple[Int32Array, Int32Array, Int32Array, Int32Array, Int32Array, Int32Array]:
    """Return the steps a, b, w, c, and the numbers of the values of every node's start and end.

    `duration`, `wire` and `latency` number the cost of each op and message, 0 for none. Values
    are numbered by the step that makes them, from 1 on. That of a start is -1 if it is not
    wanted and no other node waits for it.
    """
    nodes = len(first) - 1
    needs_start = starts_wanted.copy()
    for edge in awaited:
        if edge % 3 == START:
            needs_start[edge // 3] = True
    most = nodes + len(awaited) + 1
    a, b = np.empty(most, np.int32), np.empty(most, np.int32)
    w, c = np.empty(most, np.int32), np.empty(most, np.int32)
    start = np.full(nodes, -1, np.int32)
    middle = np.zeros(nodes, np.int32)
    end = np.zeros(nodes, np.int32)
    late = np.zeros(nodes, np.int32)  # the cost that the end of a transfer adds to its value
    steps = 0
    for node in order:
        cost = 0
        if cost_kind[node] == DURATION:
            cost = duration[cost_index[node]]
        elif cost_kind[node] == TRANSFER:
            cost = wire[cost_index[node]]
        # The times waited for fold into one value x and at most one more, y plus a cost.
        x, y, more = 0, 0, 0
        for place in range(first[node], first[node + 1]):
            other, time = awaited[place] // 3, awaited[place] % 3
            value, extra = end[other], late[other]
            if time == START:
                value, extra = start[other], 0
            elif time == MIDDLE:
                value, extra = middle[other], 0
            if value == 0 and extra == 0:
                continue
            if x == 0 and extra == 0:
                x = value
            elif y == 0 and more == 0:
                y, more = value, extra
            else:
                a[steps], b[steps], w[steps], c[steps] = x, y, more, 0
                steps += 1
                x, y, more = steps, value, extra
        both = y != 0 or more != 0
        if needs_start[node]:
            if both:
                a[steps], b[steps], w[steps], c[steps] = x, y, more, 0
                steps += 1
                x, y, more, both = steps, 0, 0, False
            start[node] = x
        if both or cost != 0:
            a[steps], b[steps], w[steps], c[steps] = x, y, more, cost
            steps += 1
            x = steps
        middle[node] = end[node] = x
        if cost_kind[node] == TRANSFER:
            late[node] = latency[cost_index[node]]
    return a[:steps].copy(), b[:steps].copy(), w[:steps].copy(), c[:steps].copy(), start, end


@njit(cache=True)
def share_cells(
    a: Int32Array, b: Int32Array, kept: Int32Array
) -> tuple[Int32Array, Int32Array, Int32Array, Int32Array, int]:
    """Return the cells of a, b and out of every step and of kept values, and the cells' number.

    Values after their last use give their cells to later ones, so that a run of many cost sets at
    once works in little memory. Cell 0 is value 0; kept values keep their own cells.
    """
    steps = len(a)
    last = np.zeros(steps + 1, np.int32)
    for i in range(steps):
        last[a[i]] = last[b[i]] = i + 1
    for value in kept:
        last[value] = steps + 1
    cell = np.zeros(steps + 1, np.int32)
    free = np.empty(steps + 1, np.int32)
    spare, used = 0, 1
    from_a, from_b = np.empty(steps, np.int32), np.empty(steps, np.int32)
    out = np.empty(steps, np.int32)
    for i in range(steps):
        from_a[i], from_b[i] = cell[a[i]], cell[b[i]]
        if a[i] and last[a[i]] == i + 1:
            free[spare] = cell[a[i]]
            spare += 1
        if b[i] and b[i] != a[i] and last[b[i]] == i + 1:
            free[spare] = cell[b[i]]
            spare += 1
        if spare:
            spare -= 1
            cell[i + 1] = free[spare]
        else:
            cell[i + 1] = used
            used += 1
        out[i] = cell[i + 1]
        if last[i + 1] == 0:  # no step uses it
            free[spare] = cell[i + 1]
            spare += 1
    return from_a, from_b, out, cell[kept], used


@njit(cache=True)
def run_once(
    a: Int32Array,
    b: Int32Array,
    w: Int32Array,
    c: Int32Array,
    cost: FloatArray,
    value: FloatArray,
) -> None:
    """Write all values of a plan for one cost set into `value`, array (steps + 1,)."""
    value[0] = 0.0
    for i in range(len(a)):
        x = value[a[i]]
        y = value[b[i]] + cost[w[i]]
        value[i + 1] = (x if x > y else y) + cost[c[i]]


@njit(cache=True)
def run_block(
    a: Int32Array,
    b: Int32Array,
    w: Int32Array,
    c: Int32Array,
    out: Int32Array,
    cost: FloatArray,
    value: FloatArray,
) -> None:
    """Run a plan for the cost sets in the columns of `cost`, with `value` as its cells.

    Arrays (costs, K) and (cells, K), contiguous over the cost sets.
    """
    sets = value.shape[1]
    value[0] = 0.0
    for i in range(len(a)):
        from_a, from_b, later = value[a[i]], value[b[i]], cost[w[i]]
        duration, result = cost[c[i]], value[out[i]]
        for k in range(sets):
            x, y = from_a[k], from_b[k] + later[k]
            result[k] = (x if x > y else y) + duration[k]
