"""The event graph of a program: what must come before what, whatever the costs.

    rank 0   [0F0] ------------> [0F1]           a node: compute, a transfer, or the moment at
               |                                 which a rank enters or leaves an instruction;
               +-> (transfer) -+                 an edge: who waits for it
                               |
    rank 1                     +-> [1F0] -> ...

A node starts at the latest of what it waits for, and its end follows from its costs:

    start = max(times it waits for);  middle = start + first cost;  end = middle + second cost

so that all times of a run follow in one pass, in topological order. A compute has its duration
as first cost; a transfer its time on the wire and then its latency. An edge tells which of the
three times it waits for: another message may follow when the wire is free, a place in a bounded
queue is free when the consumer starts. What lies on a cycle, or behind one, never starts: that is
a deadlock, and it is known before anything runs.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipesim.base.types import BoolArray, FloatArray, Int8Array, Int32Array, IntArray
from pipesim.engine.graph.marks import DURATION, TRANSFER
from pipesim.schedules.order.dataflow import local_inputs, producers
from pipesim.schedules.program.program import Program
from pipesim.schedules.program.text import COMPUTE, SEND

NONE = np.zeros(0, dtype=np.int32)
MOST_NODES = 4_000_000  # nodes of all graphs that are kept for programs that run again


@dataclass(frozen=True, slots=True, eq=False)
class EventGraph:
    """The nodes and edges of a program's event graph.

    Parameters
    ----------
    program
        The program that it was made from.
    cost_kind
        NO_COST, DURATION or TRANSFER, array (nodes,).
    cost_index
        The op whose duration, or the message whose transfer it is, array (nodes,); -1 for a node
        without cost.
    instruction
        The instruction of each node, array (nodes,); -1 for a transfer.
    enter, leave
        The node at which each instruction starts and the one at which its rank goes on, arrays
        (instructions,); the two differ only for transfers that block.
    transfer
        The node of each message, array (messages,); -1 where there is no message.
    offsets
        Array (nodes + 1,): node n waits for `awaited` from offsets[n] up to offsets[n + 1].
    awaited
        The times waited for, as 3 x node + START, MIDDLE or END; array (edges,).
    rules
        Keyword arguments that it was made with: queue_capacity, meets and wires.
    """

    program: Program
    cost_kind: Int8Array
    cost_index: Int32Array
    instruction: Int32Array
    enter: Int32Array
    leave: Int32Array
    transfer: Int32Array
    offsets: IntArray
    awaited: Int32Array
    rules: dict[str, Any]

    def __len__(self) -> int:
        return len(self.cost_kind)

    def topological_order(self) -> Int32Array:
        """Return the nodes in topological order, each after all that it waits for.

        Nodes on a cycle, or behind one, are left out: the order is shorter than the graph if and
        only if the program hangs.
        """
        from pipesim.engine.graph.time_kernels import order_nodes

        return order_nodes(self.offsets, self.awaited)

    def costs(
        self, duration: FloatArray, wire: FloatArray, latency: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return the first and the second cost of every node, arrays (nodes,).

        Parameters
        ----------
        duration
            Duration of every op, array (ops,).
        wire, latency
            Time on the wire and latency of every message, arrays (messages,).
        """
        first, second = np.zeros(len(self)), np.zeros(len(self))
        computes, transfers = self.cost_kind == DURATION, self.cost_kind == TRANSFER
        first[computes] = duration[self.cost_index[computes]]
        first[transfers] = wire[self.cost_index[transfers]]
        second[transfers] = latency[self.cost_index[transfers]]
        return first, second

    def times(self, first: FloatArray, second: FloatArray) -> FloatArray:
        """Return start, middle and end of every node [ms], array (nodes, 3); NaN if it is stuck."""
        from pipesim.engine.graph.time_kernels import evaluate

        order = self.topological_order()
        return evaluate(order, self.offsets, self.awaited, first, second).reshape(-1, 3)

    def stuck(self) -> BoolArray:
        """Return whether each node is stuck and never starts, array (nodes,)."""
        never = np.ones(len(self), dtype=bool)
        never[self.topological_order()] = False
        return never


def event_graph(
    program: Program,
    *,
    queue_capacity: int | None = None,
    meets: BoolArray | None = None,
    wires: bool = True,
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
        default all that have a receive as an instruction.
    wires
        Whether messages take time on the wire. If none does, and they leave by themselves, none
        has to wait for the one before it on its link, and the graph is smaller.
    """
    from pipesim.engine.graph.build_kernels import (
        ahead_on_link,
        connect,
        find_ends,
        makers_of_room,
        number_nodes,
    )

    items = program.item_offsets, program.action, program.number
    messages = len(program.source)
    kind, index, instruction, enter, leave, transfer = number_nodes(
        program.computes, program.blocking, program.number[items[0][:-1]], program.source
    )
    if program.schedule is None:
        inputs, ops = (NONE, NONE), int(np.count_nonzero(program.action == COMPUTE))
    else:
        inputs = producers(program.schedule), local_inputs(program.schedule)
        ops = messages
    ahead = maker = NONE
    if messages and (wires or program.listed):
        sending = SEND if program.listed else COMPUTE
        ahead = ahead_on_link(program.offsets, *items, program.target, sending)
    if queue_capacity is not None:
        maker = makers_of_room(*items, inputs[0], _queues(program), queue_capacity)
    offsets, awaited = connect(
        program.offsets,
        *items,
        program.blocking,
        enter,
        leave,
        transfer,
        find_ends(*items, ops, messages),
        inputs,
        ahead,
        maker,
        np.ones(messages, dtype=bool) if meets is None else meets,
    )
    rules = {"queue_capacity": queue_capacity, "meets": meets, "wires": wires}
    return EventGraph(
        program, kind, index, instruction, enter, leave, transfer, offsets, awaited, rules
    )


def _queues(program: Program) -> Int32Array:
    """Return the queue of every message, one for each boundary, way and direction; -1: none."""
    schedule = program.order
    forward = schedule.stage[program.consumer] > schedule.stage
    direction = schedule.directions[schedule.microbatch].astype(np.int32)
    queue: Int32Array = (schedule.stage * np.int32(2) + forward) * np.int32(2) + direction
    return np.where(program.source >= 0, queue, np.int32(-1)).astype(np.int32)


_kept: OrderedDict[tuple[object, ...], EventGraph] = OrderedDict()  # of the last programs


def cached_graph(
    program: Program, *, queue_capacity: int | None, meets: BoolArray, wires: bool
) -> EventGraph:
    """Return `event_graph` of a program, kept from last time if nothing is different.

    A program is known by its schedule and its protocol: lowering the same one again gives the
    same instructions.
    """
    meeting = None if meets.all() else meets.tobytes()
    key = (id(program.schedule), program.protocol, queue_capacity, meeting, wires)
    graph = _kept.get(key)
    # The kept graph holds its schedule, so that no other can have got the same id.
    if graph is not None and graph.program.schedule is program.schedule:
        _kept.move_to_end(key)
        return graph
    graph = event_graph(program, queue_capacity=queue_capacity, meets=meets, wires=wires)
    _kept[key] = graph
    while sum(map(len, _kept.values())) > MOST_NODES and len(_kept) > 1:
        _kept.popitem(last=False)
    if len(graph) > MOST_NODES:
        del _kept[key]
    return graph
