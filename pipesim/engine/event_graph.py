"""A program as a graph of events: what must come before what, whatever the costs.

    rank 0   [0F0] ------------> [0F1]           a node: compute, a transfer, or the moment at
               |                                 which a rank enters or leaves an instruction;
               +-> (transfer) -+                 an edge: who waits for it
                               |
    rank 1                     +-> [1F0] -> ...

A node starts at the latest of what it waits for, and its end follows from its costs:

    start = max(times it waits for);  middle = start + first cost;  end = middle + second cost

so that all times of a run follow in one pass, in topological order. A compute has its duration
as first cost; a transfer its time on the wire and then its latency. An edge tells which of the
three times it waits for: another message may follow when the wire is free, a slot of a bounded
queue is free when the consumer starts. What lies on a cycle, or behind one, never starts: that is
a deadlock, and it is known before anything runs.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipesim.arrays import BoolArray, FloatArray, Int8Array, Int32Array, IntArray
from pipesim.dataflow import local_inputs, producers
from pipesim.program import Program
from pipesim.program_text import RECV, SEND

START, MIDDLE, END = 0, 1, 2  # the times of a node
NO_COST, DURATION, TRANSFER = 0, 1, 2  # what a node's costs are


@dataclass(frozen=True, slots=True, eq=False)
class EventGraph:
    """The nodes and edges of a program.

    Parameters
    ----------
    program
        What it was made from.
    cost_kind
        NO_COST, DURATION or TRANSFER, array (nodes,).
    cost_index
        The op whose duration, or the message whose transfer it is, array (nodes,); -1 of a node
        without cost.
    instruction
        The instruction of each node, array (nodes,); -1 of a transfer.
    enter, leave
        The node at which each instruction starts and the one at which its rank goes on, arrays
        (instructions,); the same but for transfers that block.
    transfer
        The node of each message, array (messages,); -1 where there is no message.
    offsets
        Array (nodes + 1,): what node n waits for stands from offsets[n] up to offsets[n + 1].
    awaited
        What is waited for, 3 x node + START, MIDDLE or END; array (edges,).
    rules
        What it was made with besides: queue_capacity and meets.
    """

    program: Program
    cost_kind: Int8Array
    cost_index: Int32Array
    instruction: Int32Array
    enter: Int32Array
    leave: Int32Array
    transfer: Int32Array
    offsets: IntArray
    awaited: IntArray
    rules: dict[str, Any]

    def __len__(self) -> int:
        return len(self.cost_kind)

    def topological_order(self) -> IntArray:
        """Return the nodes such that each stands behind all that it waits for.

        Nodes on a cycle, or behind one, are left out: the order is shorter than the graph exactly
        if the program hangs.
        """
        source, sink = self.awaited // 3, np.repeat(np.arange(len(self)), np.diff(self.offsets))
        by_source = np.argsort(source, kind="stable")
        followers: list[int] = sink[by_source].tolist()
        first: list[int] = np.searchsorted(source[by_source], np.arange(len(self) + 1)).tolist()
        missing: list[int] = np.diff(self.offsets).tolist()
        order = [node for node, count in enumerate(missing) if not count]
        for node in order:  # it grows on the way
            for follower in followers[first[node] : first[node + 1]]:
                missing[follower] -= 1
                if not missing[follower]:
                    order.append(follower)
        return np.array(order, dtype=np.int64)

    def costs(
        self, duration: FloatArray, wire: FloatArray, latency: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the first and the second cost of every node, arrays (nodes,).

        Parameters
        ----------
        duration
            Of every op, array (ops,).
        wire, latency
            Of every message, arrays (messages,).
        """
        first, second = np.zeros(len(self)), np.zeros(len(self))
        computes, transfers = self.cost_kind == DURATION, self.cost_kind == TRANSFER
        first[computes] = duration[self.cost_index[computes]]
        first[transfers] = wire[self.cost_index[transfers]]
        second[transfers] = latency[self.cost_index[transfers]]
        return first, second

    def times(self, first: FloatArray, second: FloatArray) -> FloatArray:
        """Return the start, middle and end of every node, array (nodes, 3); NaN if it is stuck."""
        times = [np.nan] * (3 * len(self))
        offsets, awaited = self.offsets.tolist(), self.awaited.tolist()
        costs = list(zip(first.tolist(), second.tolist(), strict=True))
        for node in self.topological_order().tolist():
            edges = awaited[offsets[node] : offsets[node + 1]]
            start = max([times[edge] for edge in edges], default=0.0)
            middle = start + costs[node][0]
            times[3 * node : 3 * node + 3] = start, middle, middle + costs[node][1]
        return np.array(times).reshape(-1, 3)

    def stuck(self) -> BoolArray:
        """Return which nodes never start, array (nodes,)."""
        never = np.ones(len(self), dtype=bool)
        never[self.topological_order()] = False
        return never


def event_graph(
    program: Program, *, queue_capacity: int | None = None, meets: BoolArray | None = None
) -> EventGraph:
    """Return the event graph of a program, built in linear time.

    Parameters
    ----------
    program
        Instructions of every rank.
    queue_capacity
        Messages that fit between two stages on different ranks, in each direction; None: any.
    meets
        Whether the transfer of each message waits for its receiver, array (messages,); by
        default all do whose receives are instructions.
    """
    computes = program.computes
    waits = program.blocking & ~computes
    first_node = np.arange(len(program)) + np.cumsum(waits) - waits
    enter = first_node.astype(np.int32)
    leave = (first_node + waits).astype(np.int32)
    marks = len(program) + int(waits.sum())
    there = np.flatnonzero(program.source >= 0)
    transfer = np.full(len(program.source), -1, dtype=np.int32)
    transfer[there] = marks + np.arange(len(there))
    cost_kind = np.full(marks + len(there), NO_COST, dtype=np.int8)
    cost_kind[enter[computes]] = DURATION
    cost_kind[marks:] = TRANSFER
    cost_index = np.full(len(cost_kind), -1, dtype=np.int32)
    instruction = np.full(len(cost_kind), -1, dtype=np.int32)
    instruction[enter] = instruction[leave] = np.arange(len(program))
    cost_index[enter[computes]] = program.number[program.item_offsets[:-1][computes]]
    cost_index[marks:] = there

    edges = _Edges()
    edges.add(enter[waits], leave[waits])
    _rank_order(edges, program, enter, leave)
    _transfers(edges, program, enter, leave, transfer, meets)
    if program.schedule is not None:
        _inputs(edges, program, enter, leave, transfer)
        if queue_capacity is not None:
            _queues(edges, program, enter, queue_capacity)
    offsets, awaited = edges.by_sink(len(cost_kind))
    return EventGraph(
        program,
        cost_kind,
        cost_index,
        instruction,
        enter,
        leave,
        transfer,
        offsets,
        awaited,
        {"queue_capacity": queue_capacity, "meets": meets},
    )


class _Edges:
    """Edges as they are found."""

    def __init__(self) -> None:
        self.sources: list[IntArray] = []
        self.sinks: list[IntArray] = []

    def add(self, source: Int32Array, sink: Int32Array, time: int = END) -> None:
        """Let each sink wait for a time of its source."""
        self.sources.append(3 * source.astype(np.int64) + time)
        self.sinks.append(sink.astype(np.int64))

    def by_sink(self, nodes: int) -> tuple[IntArray, IntArray]:
        """Return all edges sorted by the node that waits: offsets, and what is waited for."""
        source, sink = np.concatenate(self.sources), np.concatenate(self.sinks)
        order = np.argsort(sink, kind="stable")
        offsets = np.zeros(nodes + 1, dtype=np.int64)
        np.cumsum(np.bincount(sink, minlength=nodes), out=offsets[1:])
        return offsets, source[order]


def _rank_order(edges: _Edges, program: Program, enter: Int32Array, leave: Int32Array) -> None:
    """Let an instruction wait for the one before it on its rank."""
    later = np.ones(len(program), dtype=bool)
    later[program.offsets[:-1][np.diff(program.offsets) > 0]] = False
    instruction = np.flatnonzero(later)
    edges.add(leave[instruction - 1], enter[instruction])


def _transfers(
    edges: _Edges,
    program: Program,
    enter: Int32Array,
    leave: Int32Array,
    transfer: Int32Array,
    meets: BoolArray | None,
) -> None:
    """Let a message leave when it is sent, its receiver is there, and the wire is free."""
    instruction, message = program.instruction_of_item, program.number
    sending = program.action == SEND if program.listed else _carried(program)
    receiving = program.action == RECV
    send_item, recv_item = np.flatnonzero(sending), np.flatnonzero(receiving)
    from_node = enter if program.listed else leave
    edges.add(from_node[instruction[send_item]], transfer[message[send_item]])
    met = np.ones(len(transfer), dtype=bool) if meets is None else meets
    meeting = recv_item[met[message[recv_item]]]
    edges.add(enter[instruction[meeting]], transfer[message[meeting]])

    if program.listed and program.schedule is not None:  # an op comes before its send
        made = program.instruction_of_op[message[send_item]]
        late = made >= instruction[send_item]
        edges.add(leave[made[late]], enter[instruction[send_item][late]])

    sent = message[send_item]  # in the order in which ranks send
    link = program.source[sent].astype(np.int64) * program.ranks + program.target[sent]
    by_link = np.argsort(link, kind="stable")
    same = link[by_link][1:] == link[by_link][:-1]
    queued = sent[by_link]
    edges.add(transfer[queued[:-1][same]], transfer[queued[1:][same]], MIDDLE)

    for item, done in ((recv_item, slice(None)), (send_item, met[message[send_item]])):
        chosen = item[done]
        chosen = chosen[program.blocking[instruction[chosen]]]
        edges.add(transfer[message[chosen]], leave[instruction[chosen]])


def _carried(program: Program) -> BoolArray:
    """Return which items compute an op whose output goes to another rank."""
    carried: BoolArray = program.source[program.number] >= 0
    return carried


def _inputs(
    edges: _Edges, program: Program, enter: Int32Array, leave: Int32Array, transfer: Int32Array
) -> None:
    """Let an op wait for its message, or for the ops on its own rank that must come before it.

    Where these stand before it anyhow, the rank's order says so already.
    """
    schedule, instruction = program.order, program.instruction_of_op
    crossing = np.flatnonzero(transfer >= 0)
    edges.add(transfer[crossing], enter[instruction[program.consumer[crossing]]])
    feeder, earlier = producers(schedule), local_inputs(schedule)
    for source, at_hand in ((feeder, transfer[feeder] < 0), (earlier, True)):
        late = np.flatnonzero((source >= 0) & at_hand & (instruction[source] >= instruction))
        edges.add(leave[instruction[source[late]]], enter[instruction[late]])


def _queues(edges: _Edges, program: Program, enter: Int32Array, capacity: int) -> None:
    """Let an op wait for the start of the one that takes the message `capacity` places before."""
    schedule, instruction = program.order, program.instruction_of_op
    sent = np.flatnonzero(program.source >= 0)
    taken = program.consumer[sent]
    # One queue a boundary, way over it and direction of the micro-batch.
    forward = schedule.stage[taken] > schedule.stage[sent]
    direction = schedule.directions[schedule.microbatch[sent]].astype(np.int64)
    queue = (schedule.stage[sent] * np.int64(2) + forward) * 2 + direction
    # Both ends of a queue are on one rank each: its messages enter and leave in their orders.
    by_sender = np.lexsort((instruction[sent], queue))
    by_taker = np.lexsort((instruction[taken], queue))
    same = queue[by_sender][capacity:] == queue[by_sender][:-capacity]
    waiting = sent[by_sender][capacity:][same]
    giving = taken[by_taker][:-capacity][same]
    edges.add(enter[instruction[giving]], enter[instruction[waiting]], START)
