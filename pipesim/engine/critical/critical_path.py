"""The critical path of a run, and the slack of its ops: how much later each may end.

    rank 0   [0F0] 0F1                         0B0 [0B1]     [..] is on the critical path,
    rank 1         [1F0] [1B0 ] [1F1] [1B1 ]                 all else has slack

An edge is tight where a node starts at the very time it waits for, but for rounding; a critical
path is a chain of tight edges from time 0 to the last end of a compute. Transfers under
way when the last op ends do not count. A wait for a wire, a partner or a queue belongs to the op
or the transfer that it waits for.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipesim.base.ops import Kind, Op
from pipesim.base.types import BoolArray, FloatArray, Int32Array, IntArray
from pipesim.engine.graph.event_graph import EventGraph
from pipesim.engine.graph.marks import DURATION, END, START, TRANSFER
from pipesim.engine.trace import KINDS, RESOURCES
from pipesim.engine.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

ROUNDING = 1e-12  # of the makespan; sums of the same costs in another order differ by less


@dataclass(frozen=True, slots=True, eq=False)
class Criticality:
    """An event graph with its times and their slack.

    Parameters
    ----------
    graph
        Event graph of a program made from a schedule.
    order
        Its nodes in topological order: each after all that it waits for.
    times, slack
        Start, middle and end of every node, and how much later each may be without moving the
        makespan; arrays (nodes, 3) [ms]. The slack is infinite if nothing waits for the time.
    makespan
        The last end of a compute [ms].
    tie
        Times that differ by no more than this tie [ms].
    """

    graph: EventGraph
    order: IntArray
    times: FloatArray
    slack: FloatArray
    makespan: float
    tie: float

    @property
    def computes(self) -> BoolArray:
        """Whether each node computes, array (nodes,)."""
        found: BoolArray = self.graph.cost_kind == DURATION
        return found

    @property
    def ends(self) -> BoolArray:
        """Whether each node is a compute with which the step ends, array (nodes,)."""
        found: BoolArray = self.computes & (self.makespan - self.times[:, END] <= self.tie)
        return found

    @property
    def node_of_op(self) -> IntArray:
        """The node that computes each op, array (ops,)."""
        found: IntArray = self.graph.enter[self.graph.program.instruction_of_op].astype(np.int64)
        return found


def criticality(graph: EventGraph, workload: Workload, rounding: float = ROUNDING) -> Criticality:
    """Return the times and the slack of an event graph, in one pass over its edges each way.

    Parameters
    ----------
    graph
        Event graph of a program that does not hang.
    workload
        Costs of the program.
    rounding
        Times that differ by no more than this share of the makespan tie. At 0, paths of the same
        costs in another order, such as 0.1 + 0.2 + 0.3, would tie by luck only.
    """
    from pipesim.engine.critical.kernels import slack_of_moments

    order = graph.topological_order().astype(np.int64)
    times = graph.times(*graph.costs(workload.duration, workload.wire, workload.latency))
    computes = graph.cost_kind == DURATION
    makespan = float(times[computes, END].max())
    tie = rounding * makespan
    slack = slack_of_moments(
        order, graph.offsets, _awaited(graph), times.ravel(), computes, makespan, tie
    ).reshape(-1, 3)
    return Criticality(graph, order, times, slack, makespan, tie)


def critical_edges(critical: Criticality) -> tuple[IntArray, IntArray, IntArray]:
    """Return all critical paths as a graph: its nodes in topological order, offsets, awaited.

    The last two are like those of an event graph, with nodes numbered by place in the first.
    """
    from pipesim.engine.critical.kernels import tight_edges

    graph = critical.graph
    nodes = critical.order[critical.slack[critical.order, START] == 0]
    first, awaited = tight_edges(
        nodes, graph.offsets, _awaited(graph), critical.times.ravel(), critical.tie
    )
    return nodes, first, awaited


def critical_path(critical: Criticality) -> tuple[IntArray, IntArray, IntArray]:
    """Return one critical path, piece by piece: nodes, the time each is left at, and ties.

    It is found from its end. If several computes end last, the one of the lowest rank is taken.
    If a piece waited for several things equally long, what its own rank did before (for a
    transfer: the rank that sends) comes first, then the one with the lowest number: computes
    before transfers, and low ranks before high ones.

    A piece is an op, an overlapped pair, or a transfer that takes time. The path leaves it at its
    end or, if another transfer waits for its wire, at the time at which the wire is free. Ties
    count what else was as late: other paths, as long, branch off there. Those of the last piece
    count the other computes that end last, too.
    """
    from pipesim.engine.critical.kernels import walk_back

    graph, ends = critical.graph, np.flatnonzero(critical.ends)
    moments, ties = walk_back(
        int(ends[0]),
        graph.offsets,
        _awaited(graph),
        critical.times.ravel(),
        _homes(graph),
        critical.tie,
    )
    moments, ties = moments[::-1], ties[::-1].copy()
    ties[-1] += len(ends) - 1
    node, left = moments // 3, moments % 3
    took = critical.times[node, left] > critical.times[node, START]
    # A path that leaves an op at its start, which makes room in a queue, does not pass the op.
    ops = critical.computes[node] & (left == END)
    piece = ops | ((graph.cost_kind[node] == TRANSFER) & took)
    # Nodes that are no pieces add their ties to those of the piece that follows.
    so_far = np.cumsum(ties)[piece]
    return node[piece], left[piece], np.diff(so_far, prepend=0)


def critical_path_table(critical: Criticality) -> "pd.DataFrame":
    """Return the critical path as a table: one row a piece in time order."""
    import pandas as pd

    graph, order = critical.graph, critical.graph.program.order
    node, left, ties = critical_path(critical)
    op = graph.cost_index[node]
    transfers = graph.cost_kind[node] == TRANSFER
    sends = np.where(order.kind[op] == Kind.F, Kind.SEND_F, Kind.SEND_B)
    kind = np.where(transfers, sends, order.kind[op])
    start, end = critical.times[node, START], critical.times[node, left]
    return pd.DataFrame(
        {
            "op": _texts(graph, node, kind),
            "number": op,
            "rank": order.rank[op],
            "resource": pd.Categorical.from_codes(transfers.astype(np.int8), list(RESOURCES)),
            "kind": pd.Categorical.from_codes(kind, list(KINDS)),
            "stage": order.stage[op],
            "microbatch": order.microbatch[op],
            "slice": order.slice[op],
            "start": start,
            "end": end,
            "ms": end - start,
            "ties": ties,
        }
    )


def slack_table(critical: Criticality) -> "pd.DataFrame":
    """Return the slack of every op as a table: one row an op, in the order of the schedule."""
    import pandas as pd

    order, node = critical.graph.program.order, critical.node_of_op
    slack = critical.slack[node, END]
    return pd.DataFrame(
        {
            "rank": order.rank,
            "stage": order.stage,
            "kind": pd.Categorical.from_codes(order.kind, list(KINDS)),
            "microbatch": order.microbatch,
            "slice": order.slice,
            "start": critical.times[node, START],
            "end": critical.times[node, END],
            "slack": slack,
            "critical": slack == 0,
        }
    )


def _awaited(graph: EventGraph) -> IntArray:
    return graph.awaited.astype(np.int64)


def _homes(graph: EventGraph) -> Int32Array:
    """Return the rank of every node, for a transfer the one that sends; array (nodes,)."""
    program, transfers = graph.program, graph.cost_kind == TRANSFER
    home = program.rank[graph.instruction]
    home[transfers] = program.source[graph.cost_index[transfers]]
    return home


def _texts(graph: EventGraph, nodes: IntArray, kind: IntArray) -> list[str]:
    program, texts = graph.program, []
    for node, code in zip(nodes.tolist(), kind.tolist(), strict=True):
        if graph.cost_kind[node] == TRANSFER:
            op = program.order.op(int(graph.cost_index[node]))
            texts.append(str(Op(op.stage, Kind(code), op.microbatch, op.slice)))
        else:
            texts.append(program.text(int(graph.instruction[node])))
    return texts
