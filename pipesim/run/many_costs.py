"""What the ops of K pipelines cost under one schedule, as arrays with one row a pipeline.

Most ops of a schedule take the same time as others: those of one kind on one stage, in one
direction, of one slice. Each such class is an entry, and `durations` has one column an entry.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipesim.base.errors import ScheduleError
from pipesim.base.ops import Kind
from pipesim.base.types import FloatArray, IntArray
from pipesim.engine.op_costs import message_tables, messages_of, op_durations
from pipesim.pipeline.components import COST_FIELDS, missing_cost
from pipesim.pipeline.costs import cost_table, with_overhead
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.variants import CostVariants
from pipesim.schedules.order.dataflow import has_pairs, second_of_pair
from pipesim.schedules.order.schedule import Schedule
from pipesim.schedules.program.program import Program


@dataclass(frozen=True, slots=True, eq=False)
class OpTimes:
    """How long every op takes on each of K pipelines.

    Parameters
    ----------
    entry
        The column of each op, array (ops,).
    duration
        Of the ops of each entry [ms], array (K, entries).
    rank, count
        Of each entry the rank, and how many times it takes that rank's time, arrays (entries,):
        of an overlapped pair the second op does not.
    """

    entry: IntArray
    duration: FloatArray
    rank: IntArray
    count: IntArray

    def busy(self, ranks: int) -> FloatArray:
        """Return how long each rank computes [ms], array (K, ranks)."""
        weights = self.duration * self.count
        # Each row by itself: the same pipeline gives the same bits among any others.
        return np.array([np.bincount(self.rank, row, minlength=ranks) for row in weights])


def is_uniform(schedule: Schedule, pipelines: Sequence[Pipeline]) -> bool:
    """Say whether costs hold for all micro-batches and no ops overlap: where entries are few."""
    if has_pairs(schedule):
        return False
    if isinstance(pipelines, CostVariants):
        return pipelines.base.microbatches is None
    return all(pipe.microbatches is None for pipe in pipelines)


def op_times(schedule: Schedule, pipelines: Sequence[Pipeline]) -> OpTimes:
    """Return how long every op of a schedule takes on each of some pipelines.

    The same bits as `engine.workload.bind` gives for each of them.

    Raises
    ------
    ScheduleError
        If a pipeline lacks a cost.
    """
    if not is_uniform(schedule, pipelines):
        return OpTimes(
            entry=np.arange(len(schedule)),
            duration=np.array([op_durations(schedule, pipe) for pipe in pipelines]),
            rank=schedule.rank.astype(np.int64),
            count=(~second_of_pair(schedule)).astype(np.int64),
        )
    placed = schedule.placement.table  # (directions, stages)
    shape = (len(Kind), *placed.shape, schedule.slices)
    duration = np.zeros((len(pipelines), *shape))
    for kind in sorted(schedule.kinds):
        cost = stage_costs(schedule, pipelines, kind)[:, np.newaxis, :, np.newaxis]
        if schedule.slices > 1:
            cost = cost * np.asarray(schedule.fractions)
        speed, overhead = (x[:, placed, np.newaxis] for x in device_tables(pipelines))
        duration[:, kind] = with_overhead(kind, cost, speed, overhead)
    direction = schedule.directions[schedule.microbatch]
    place = schedule.kind, direction, schedule.stage, schedule.slice
    entry = np.ravel_multi_index(tuple(np.asarray(x, dtype=np.intp) for x in place), shape)
    return OpTimes(
        entry=entry,
        duration=duration.reshape(len(pipelines), -1),
        rank=np.broadcast_to(placed[:, :, np.newaxis], shape).reshape(-1).astype(np.int64),
        count=np.bincount(entry, minlength=int(np.prod(shape))),
    )


def stage_costs(schedule: Schedule, pipelines: Sequence[Pipeline], kind: Kind) -> FloatArray:
    """Return what one kind of op costs [ms] where all micro-batches cost the same, (K, stages).

    Raises
    ------
    ScheduleError
        If a pipeline lacks the cost.
    """
    rebuilt = schedule.separate_recompute
    if isinstance(pipelines, CostVariants):
        if kind == Kind.B and pipelines.field("input_grad_ms") is not None:
            first, rest = (stage_costs(schedule, pipelines, part) for part in (Kind.I, Kind.W))
            return first + rest  # the first has the time to rebuild
        cost = pipelines.field(COST_FIELDS[kind])
        if cost is None:
            raise ScheduleError(missing_cost(schedule.name, kind))
        rebuilding = pipelines.field(COST_FIELDS[Kind.R])
        assert rebuilding is not None  # every stage has it, 0 by default
        return cost + rebuilding if kind in (Kind.B, Kind.I) and not rebuilt else cost
    tables = [cost_table(pipe, kind, 1, rebuilt=rebuilt) for pipe in pipelines]
    if any(table is None for table in tables):
        raise ScheduleError(missing_cost(schedule.name, kind))
    return np.array(tables)[:, :, 0]


def device_tables(pipelines: Sequence[Pipeline]) -> tuple[FloatArray, FloatArray]:
    """Return the speed and the overhead [ms] of every rank's device, arrays (K, ranks)."""
    if isinstance(pipelines, CostVariants):
        speed, overhead = device_tables([pipelines.base])
        shape = (len(pipelines), speed.shape[1])
        return np.broadcast_to(speed, shape), np.broadcast_to(overhead, shape)
    return np.array([p.speeds for p in pipelines]), np.array([p.overheads for p in pipelines])


def hop_tables(schedule: Schedule, pipelines: Sequence[Pipeline]) -> tuple[FloatArray, FloatArray]:
    """Return the time of the first micro-batch's messages over each boundary, there and back.

    Arrays (K, stages - 1) [ms]; where all flow in one direction those of any micro-batch.
    """
    if isinstance(pipelines, CostVariants):
        shape = (len(pipelines), schedule.stages - 1)
        there, back = hop_tables(schedule, [pipelines.base])
        return np.broadcast_to(there, shape), np.broadcast_to(back, shape)
    hops = np.array([np.add(*message_tables(schedule, pipe))[:, :, 0] for pipe in pipelines])
    return hops[:, 0, :-1], hops[:, 1, 1:]


def message_times(
    program: Program, pipelines: Sequence[Pipeline], ops: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return wire time and latency [ms] of the messages that some ops make, arrays (K, ops)."""
    if isinstance(pipelines, CostVariants):
        shape = (len(pipelines), len(ops))
        wire, latency = messages_of(program, pipelines.base, ops)
        return np.broadcast_to(wire, shape), np.broadcast_to(latency, shape)
    both = np.array([messages_of(program, pipe, ops) for pipe in pipelines])
    return both[:, 0], both[:, 1]
