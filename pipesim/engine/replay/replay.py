"""The replay engine: the event graph of a program evaluated by compiled code.

    program -> event graph -> steps          value = max(value, value + cost) + cost
                                             for one cost set, or for blocks of 64 at once

It takes the same sums and maxima of the same floats as the SimPy engine, so that both give the
same times to the last bit; a deadlock is a cycle of the graph, known before anything runs.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from pipesim.base.types import FloatArray, Int32Array, Progress
from pipesim.engine.graph.deadlock import deadlock_error
from pipesim.engine.graph.event_graph import EventGraph, cached_graph
from pipesim.engine.graph.marks import END, START
from pipesim.engine.replay.cost_index import CostIndex
from pipesim.engine.trace import Spans
from pipesim.engine.workload import Workload
from pipesim.schedules.program.program import Program
from pipesim.schedules.program.text import COMPUTE

BLOCK = 64  # cost sets that a plan runs at a time


def run_replay(
    program: Program,
    workload: Workload,
    *,
    queue_capacity: int | None = None,
    progress: Progress | None = None,
) -> Spans:
    """Return the times of every op of a program; parameters and errors as for `run_simpy`."""
    wires = bool(workload.wire.any())
    graph = partial(
        cached_graph,
        program,
        queue_capacity=queue_capacity,
        meets=workload.meets,
        wires=wires,
    )
    if program.listed or queue_capacity is not None:
        spans = _spans(graph(), workload)
    else:
        spans = _walked(program, workload, wires)
    hangs = np.isnan(spans.end).any()
    if hangs or (program.listed and np.isnan(spans.leave[~program.computes]).any()):
        raise deadlock_error(graph())
    if progress is not None:
        progress(len(program.order), len(program.order))
    return spans


def _walked(program: Program, workload: Workload, wires: bool) -> Spans:
    """Return the times of a program whose messages leave by themselves."""
    from pipesim.engine.graph.build_kernels import ahead_on_link
    from pipesim.engine.graph.time_kernels import walk

    schedule, ahead = program.order, np.zeros(0, dtype=np.int32)
    if wires:
        items = program.item_offsets, program.action, program.number
        ahead = ahead_on_link(program.offsets, *items, program.target, COMPUTE)
    times = walk(
        schedule.offsets,
        workload.second,
        workload.producer,
        workload.local_input,
        program.source >= 0,
        ahead,
        workload.duration,
        workload.wire,
        workload.latency,
    )
    return Spans(*times, np.zeros(0), np.zeros(0))


def _spans(graph: EventGraph, workload: Workload) -> Spans:
    """Return the times of a program, from its event graph."""
    program = graph.program
    times = graph.times(*graph.costs(workload.duration, workload.wire, workload.latency))
    ops = graph.enter[program.instruction_of_op]
    end = times[ops, END]
    sent = np.flatnonzero(program.source >= 0)
    departure, arrival = np.full(len(end), np.nan), np.full(len(end), np.nan)
    departure[sent] = times[graph.transfer[sent], START]
    arrival[sent] = times[graph.transfer[sent], END]
    there = np.where(np.isnan(arrival), end, arrival)  # when the output is where it is taken
    ready = np.where(workload.producer >= 0, there[workload.producer], 0.0)
    ready = np.maximum(ready, np.where(workload.local_input >= 0, end[workload.local_input], 0.0))
    second = np.flatnonzero(workload.second)
    ready[second] = ready[second - 1] = np.maximum(ready[second], ready[second - 1])
    enter, leave = np.zeros(0), np.zeros(0)
    if program.listed:
        computes = program.computes
        enter = np.where(computes, np.nan, times[graph.enter, START])
        leave = np.where(computes, np.nan, times[graph.leave, END])
    return Spans(ready, times[ops, START], end, departure, arrival, enter, leave)


@dataclass(frozen=True, slots=True, eq=False)
class ManyTimes:
    """Makespan, first start and last end of runs of one program with several cost sets.

    Parameters
    ----------
    makespan
        Last end minus first start of compute [ms], array (runs,).
    first_start, last_end
        First start and last end of every rank [ms], arrays (ranks, runs).
    """

    makespan: FloatArray
    first_start: FloatArray
    last_end: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The steps of a program, for any cost set; made by `make_plan`.

    Parameters
    ----------
    index
        Places of the costs of ops and messages in a cost set.
    a, b, w, c
        The steps: value = max(value a, value b + cost w) + cost c; arrays (steps,).
    cells
        The cells of a and b and of the value of each step, in a small piece of memory.
    cell_count
        Number of cells.
    first_start, last_end
        The cells of the start of each rank's first op and the end of its last, arrays (ranks,).
    op_end
        The number, from 1 on, of the value that is the end of every op, array (ops,).
    """

    index: CostIndex
    a: Int32Array
    b: Int32Array
    w: Int32Array
    c: Int32Array
    cells: tuple[Int32Array, Int32Array, Int32Array]
    cell_count: int
    first_start: Int32Array
    last_end: Int32Array
    op_end: Int32Array

    def __len__(self) -> int:
        return len(self.a)

    def op_times(self, costs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return start and end of every op under one cost set [ms], arrays (ops,)."""
        from pipesim.engine.replay.plan_kernels import run_once

        value = np.empty(len(self) + 1)
        run_once(self.a, self.b, self.w, self.c, costs, value)
        last = self.op_end - 1  # the step that adds the duration, to the start
        a, b, w = self.a[last], self.b[last], self.w[last]
        return np.maximum(value[a], value[b] + costs[w]), value[self.op_end]

    def run(self, costs: FloatArray) -> ManyTimes:
        """Return the times of the cost sets in the columns of `costs`, array (costs, runs)."""
        from pipesim.engine.replay.plan_kernels import run_block

        runs = costs.shape[1]
        first_start = np.empty((len(self.first_start), runs))
        last_end = np.empty((len(self.last_end), runs))
        for begin in range(0, runs, BLOCK):
            block = np.ascontiguousarray(costs[:, begin : begin + BLOCK])
            value = np.empty((self.cell_count, block.shape[1]))
            a, b, out = self.cells
            run_block(a, b, self.w, self.c, out, block, value)
            first_start[:, begin : begin + BLOCK] = value[self.first_start]
            last_end[:, begin : begin + BLOCK] = value[self.last_end]
        makespan = last_end.max(axis=0) - first_start.min(axis=0)
        return ManyTimes(makespan, first_start, last_end)


def make_plan(graph: EventGraph, index: CostIndex) -> Plan:
    """Return the plan of a program's graph.

    Raises
    ------
    DeadlockError
        If the program hangs.
    """
    from pipesim.engine.replay.plan_kernels import make_steps, share_cells

    program, order = graph.program, graph.topological_order()
    if len(order) < len(graph):
        raise deadlock_error(graph)
    computing = np.flatnonzero(program.computes)
    rank = program.rank[computing]
    _, first = np.unique(rank, return_index=True)
    last = np.append(first[1:], len(computing)) - 1
    wanted = np.zeros(len(graph), dtype=bool)
    wanted[graph.enter[computing[first]]] = True
    a, b, w, c, start, end = make_steps(
        order,
        graph.offsets,
        graph.awaited,
        graph.cost_kind,
        graph.cost_index,
        index.duration,
        index.wire,
        index.latency,
        wanted,
    )
    kept = np.concatenate([start[graph.enter[computing[first]]], end[graph.leave[computing[last]]]])
    from_a, from_b, out, cells, count = share_cells(a, b, kept)
    first_start, last_end = np.split(cells, 2)
    op_end = end[graph.leave[program.instruction_of_op]]
    return Plan(index, a, b, w, c, (from_a, from_b, out), count, first_start, last_end, op_end)
