"""Compiled loops of `criticality` and `sensitivity`: passes over the edges of an event graph.

Plain loops over arrays, each linear in nodes + edges, compiled by numba when they are first
called and cached on disk. A moment is the number of a node's time, 3 x node + START, MIDDLE or
END, as in the edges of an event graph. Two times tie if they differ by no more than `tie` [ms].
"""

import numpy as np
from numba import njit

from pipesim.base.types import BoolArray, FloatArray, Int32Array, IntArray
from pipesim.engine.graph.marks import END, MIDDLE, START


@njit(cache=True)
def slack_of_moments(
    order: IntArray,
    offsets: IntArray,
    awaited: IntArray,
    times: FloatArray,
    counts: BoolArray,
    makespan: float,
    tie: float,
) -> FloatArray:
    """Return the slack of every moment without moving the makespan [ms], array (moments,).

    `counts` says which nodes must end within the makespan. The gap between two floats is 0 only
    if they are equal, and gaps only add up: the slack is 0 exactly on the longest paths.
    """
    slack = np.full(len(times), np.inf)
    for place in range(len(order) - 1, -1, -1):
        node = order[place]
        start, middle, end = 3 * node + START, 3 * node + MIDDLE, 3 * node + END
        if counts[node]:
            gap = makespan - times[end]
            slack[end] = min(slack[end], gap if gap > tie else 0.0)
        slack[middle] = min(slack[middle], slack[end])
        slack[start] = min(slack[start], slack[middle])
        for edge in range(offsets[node], offsets[node + 1]):
            moment = awaited[edge]
            gap = times[start] - times[moment]
            slack[moment] = min(slack[moment], (gap if gap > tie else 0.0) + slack[start])
    return slack


@njit(cache=True)
def walk_back(
    node: int,
    offsets: IntArray,
    awaited: IntArray,
    times: FloatArray,
    home: Int32Array,
    tie: float,
) -> tuple[IntArray, IntArray]:
    """Return the moments of one longest path to the end of a node, latest first, and ties at each.

    Among the moments that a node waited for until it started, one of the node's own rank (`home`)
    comes first, then the lowest. The ties are the others.
    """
    path = np.empty(len(home), np.int64)
    ties = np.zeros(len(home), np.int64)
    moment, length = 3 * node + END, 0
    while moment >= 0:
        node = moment // 3
        path[length] = moment
        best, best_is_own, tight = -1, False, 0
        for edge in range(offsets[node], offsets[node + 1]):
            other = awaited[edge]
            if times[3 * node] - times[other] > tie:
                continue
            tight += 1
            own = home[other // 3] == home[node]
            if best < 0 or (own and not best_is_own) or (own == best_is_own and other < best):
                best, best_is_own = other, own
        ties[length] = max(tight - 1, 0)
        length += 1
        moment = best
    return path[:length], ties[:length]


@njit(cache=True)
def tight_edges(
    nodes: IntArray, offsets: IntArray, awaited: IntArray, times: FloatArray, tie: float
) -> tuple[IntArray, IntArray]:
    """Return the tight edges of `nodes`, which they wait on until they start: offsets, awaited.

    Nodes are numbered by their place in `nodes`, which are in topological order and include
    every source of a tight edge.
    """
    place = np.full(len(offsets) - 1, -1, np.int64)
    place[nodes] = np.arange(len(nodes))
    first = np.zeros(len(nodes) + 1, np.int64)
    kept = np.empty(len(awaited), np.int64)
    count = 0
    for i in range(len(nodes)):
        node = nodes[i]
        for edge in range(offsets[node], offsets[node + 1]):
            moment = awaited[edge]
            if times[3 * node] - times[moment] <= tie:
                kept[count] = 3 * place[moment // 3] + moment % 3
                count += 1
        first[i + 1] = count
    return first, kept[:count]


@njit(cache=True)
def least_and_most(
    offsets: IntArray,
    awaited: IntArray,
    ends: BoolArray,
    first: IntArray,
    node: IntArray,
    amount: FloatArray,
) -> FloatArray:
    """Return the least and the largest sum of each quantity on any path, array (quantities, 2).

    Paths go along the edges from nodes that wait for none to the nodes in `ends`. A path that
    leaves a node at its end adds the amounts there: `amount[i]` of quantity k at `node[i]`, for
    i from first[k] up to first[k + 1]. One quantity at a time, to need little memory.
    """
    nodes, quantities = len(offsets) - 1, len(first) - 1
    found = np.empty((quantities, 2))
    here = np.zeros(nodes)
    least, most = np.empty(nodes), np.empty(nodes)
    for k in range(quantities):
        for i in range(first[k], first[k + 1]):
            here[node[i]] += amount[i]
        low, high = np.inf, -np.inf
        for n in range(nodes):
            least[n] = most[n] = 0.0
            for edge in range(offsets[n], offsets[n + 1]):
                source = awaited[edge] // 3
                met = here[source] if awaited[edge] % 3 == END else 0.0
                if edge == offsets[n]:
                    least[n], most[n] = least[source] + met, most[source] + met
                else:
                    least[n] = min(least[n], least[source] + met)
                    most[n] = max(most[n], most[source] + met)
            if ends[n]:
                low, high = min(low, least[n] + here[n]), max(high, most[n] + here[n])
        found[k, 0], found[k, 1] = low, high
        for i in range(first[k], first[k + 1]):
            here[node[i]] = 0.0
    return found
