"""Compiled loops that build event graphs.

Plain loops over arrays, compiled by numba when they are first called and cached on disk.
"""

import numpy as np
from numba import njit

from pipesim.base.types import BoolArray, Int8Array, Int32Array, IntArray
from pipesim.engine.graph.marks import DURATION, END, MIDDLE, NO_COST, START, TRANSFER
from pipesim.schedules.program.text import COMPUTE, SEND


@njit(cache=True)
def number_nodes(
    computes: BoolArray, blocking: BoolArray, op: Int32Array, source: Int32Array
) -> tuple[Int8Array, Int32Array, Int32Array, Int32Array, Int32Array, Int32Array]:
    """Return cost kind, cost index and instruction of every node, then enter, leave, transfer.

    These are the arrays of an `EventGraph`. `op` is the op of every instruction that computes.
    Instructions come first, one node each, two if they block; then the messages.
    """
    instructions, messages = len(computes), len(source)
    enter = np.empty(instructions, np.int32)
    leave = np.empty(instructions, np.int32)
    transfer = np.full(messages, -1, np.int32)
    node = 0
    for i in range(instructions):
        enter[i] = node
        node += 1 if computes[i] or not blocking[i] else 2
        leave[i] = node - 1
    for m in range(messages):
        if source[m] >= 0:
            transfer[m] = node
            node += 1
    kind = np.full(node, NO_COST, np.int8)
    index = np.full(node, -1, np.int32)
    instruction = np.full(node, -1, np.int32)
    for i in range(instructions):
        instruction[enter[i]] = instruction[leave[i]] = i
        if computes[i]:
            kind[enter[i]] = DURATION
            index[enter[i]] = op[i]
    for m in range(messages):
        if transfer[m] >= 0:
            kind[transfer[m]] = TRANSFER
            index[transfer[m]] = m
    return kind, index, instruction, enter, leave, transfer


@njit(cache=True)
def find_ends(
    item_offsets: IntArray, action: Int8Array, number: Int32Array, ops: int, messages: int
) -> tuple[Int32Array, Int32Array, Int32Array]:
    """Return the instruction that computes each op, and those that send and receive each message.

    -1 where there is none.
    """
    made = np.full(ops, -1, np.int32)
    sent = np.full(messages, -1, np.int32)
    received = np.full(messages, -1, np.int32)
    for i in range(len(item_offsets) - 1):
        for item in range(item_offsets[i], item_offsets[i + 1]):
            if action[item] == COMPUTE:
                made[number[item]] = i
            elif action[item] == SEND:
                sent[number[item]] = i
            else:
                received[number[item]] = i
    return made, sent, received


@njit(cache=True)
def ahead_on_link(
    offsets: IntArray,
    item_offsets: IntArray,
    action: Int8Array,
    number: Int32Array,
    target: Int32Array,
    sending: int,
) -> Int32Array:
    """Return the message ahead of each one on its link, array (messages,); -1 for the first.

    `sending` is the action at which messages leave: SEND, or COMPUTE where they go by themselves.
    """
    ahead = np.full(len(target), -1, np.int32)
    ranks = len(offsets) - 1
    latest = np.empty(ranks, np.int32)
    of_rank = np.full(ranks, -1, np.int32)  # the rank to whose link `latest` belongs
    for rank in range(ranks):
        for item in range(item_offsets[offsets[rank]], item_offsets[offsets[rank + 1]]):
            message = number[item]
            if action[item] != sending or target[message] < 0:
                continue
            to = target[message]
            if of_rank[to] == rank:
                ahead[message] = latest[to]
            of_rank[to] = rank
            latest[to] = message
    return ahead


@njit(cache=True)
def makers_of_room(
    item_offsets: IntArray,
    action: Int8Array,
    number: Int32Array,
    feeder: Int32Array,
    queue: Int32Array,
    capacity: int,
) -> Int32Array:
    """Return the instruction whose start makes room for each op's output, array (ops,); -1: none.

    `queue` is the queue of each op's output, -1 for none. The n-th message into a queue waits for
    the start of the op that takes out the message `capacity` places before it.
    """
    queues = queue.max() + 1 if len(queue) else 0
    count = np.zeros(queues + 1, np.int64)
    for op in range(len(queue)):
        if queue[op] >= 0:
            count[queue[op] + 1] += 1
    first = np.cumsum(count)
    taken = np.zeros(queues, np.int64)
    sent = np.zeros(queues, np.int64)
    taker = np.empty(first[-1], np.int32)
    for i in range(len(item_offsets) - 1):
        for item in range(item_offsets[i], item_offsets[i + 1]):
            if action[item] != COMPUTE:
                continue
            source = feeder[number[item]]
            if source >= 0 and queue[source] >= 0:
                q = queue[source]
                taker[first[q] + taken[q]] = i
                taken[q] += 1
    maker = np.full(len(queue), -1, np.int32)
    for item in range(len(number)):
        if action[item] == COMPUTE and queue[number[item]] >= 0:
            q = queue[number[item]]
            if sent[q] >= capacity:
                maker[number[item]] = taker[first[q] + sent[q] - capacity]
            sent[q] += 1
    return maker


@njit(cache=True)
def connect(
    offsets: IntArray,
    item_offsets: IntArray,
    action: Int8Array,
    number: Int32Array,
    blocking: BoolArray,
    enter: Int32Array,
    leave: Int32Array,
    transfer: Int32Array,
    ends: tuple[Int32Array, Int32Array, Int32Array],
    inputs: tuple[Int32Array, Int32Array],
    ahead: Int32Array,
    maker: Int32Array,
    meets: BoolArray,
) -> tuple[IntArray, Int32Array]:
    """Return the edges, what each node waits for: offsets (nodes + 1,), 3 x node + time (edges,).

    `ends` are those of `find_ends`, `inputs` the op of another stage and the op of the same stage
    whose outputs each op takes. An input from the own rank is an edge only if it comes later in
    the rank's order; the rank then waits for itself.
    """
    made, sent, received = ends
    feeder, earlier = inputs
    instructions, messages, ops = len(blocking), len(transfer), len(feeder)
    crossing = 0
    for m in range(messages):
        crossing += transfer[m] >= 0
    nodes = crossing
    if instructions:
        nodes += leave[instructions - 1] + 1
    first = np.zeros(nodes + 1, np.int64)
    # Every node of a rank waits for the one before; an op for at most three more, a message for
    # its two ends and the one ahead, a blocking instruction for each of its messages.
    edges = np.empty(nodes + 3 * ops + 4 * crossing + len(number), np.int32)
    count = 0
    for rank in range(len(offsets) - 1):
        for i in range(offsets[rank], offsets[rank + 1]):
            if i > offsets[rank]:
                edges[count] = 3 * leave[i - 1] + END
                count += 1
            for item in range(item_offsets[i], item_offsets[i + 1]):
                n = number[item]
                if action[item] == COMPUTE:
                    if n >= ops:
                        continue  # a program written by hand has no ops
                    source = feeder[n]
                    if source >= 0 and transfer[source] >= 0:
                        edges[count] = 3 * transfer[source] + END
                        count += 1
                    elif source >= 0 and made[source] >= i:
                        edges[count] = 3 * leave[made[source]] + END
                        count += 1
                    if earlier[n] >= 0 and made[earlier[n]] >= i:
                        edges[count] = 3 * leave[made[earlier[n]]] + END
                        count += 1
                    if len(maker) and maker[n] >= 0:
                        edges[count] = 3 * enter[maker[n]] + START
                        count += 1
                elif action[item] == SEND and n < ops and made[n] >= i:
                    edges[count] = 3 * leave[made[n]] + END
                    count += 1
            first[enter[i] + 1] = count
            if leave[i] == enter[i]:
                continue
            edges[count] = 3 * enter[i] + END
            count += 1
            for item in range(item_offsets[i], item_offsets[i + 1]):
                if action[item] != SEND or meets[number[item]]:
                    edges[count] = 3 * transfer[number[item]] + END
                    count += 1
            first[leave[i] + 1] = count
    for m in range(messages):
        if transfer[m] < 0:
            continue
        edges[count] = 3 * (leave[made[m]] if sent[m] < 0 else enter[sent[m]]) + END
        count += 1
        if received[m] >= 0 and meets[m]:
            edges[count] = 3 * enter[received[m]] + END
            count += 1
        if len(ahead) and ahead[m] >= 0:
            edges[count] = 3 * transfer[ahead[m]] + MIDDLE
            count += 1
        first[transfer[m] + 1] = count
    return first, edges[:count]
