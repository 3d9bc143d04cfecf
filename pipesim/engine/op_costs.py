"""What the ops and messages of a schedule take on K pipelines, one row a pipeline.

Most ops of a schedule take the same time as others: those of one kind on one stage, in one
direction, of one slice. Each such class is an entry, and durations have one column an entry.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pipesim.base.errors import ScheduleError
from pipesim.base.ops import COMPUTE_KINDS, Kind
from pipesim.base.types import FloatArray, Int32Array, IntArray
from pipesim.pipeline.cost_tables import cost_table, device_rates, needed_costs
from pipesim.pipeline.costs import op_ms, pair_cost
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.variants import CostVariants, bases
from pipesim.schedules.order.dataflow import has_pairs, second_of_pair
from pipesim.schedules.order.schedule import Schedule
from pipesim.schedules.program.program import Program


@dataclass(frozen=True, slots=True, eq=False)
class OpTimes:
    """Duration of every op on each of K pipelines.

    Parameters
    ----------
    entry
        The column of each op, array (ops,).
    duration
        Duration of the ops of each entry [ms], array (K, entries).
    rank, count
        The rank of each entry, and how many times it takes that rank's time, arrays (entries,):
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
    return all(pipe.microbatches is None for pipe in bases(pipelines))


def op_times(schedule: Schedule, pipelines: Sequence[Pipeline]) -> OpTimes:
    """Return the duration of every op of a schedule on each of some pipelines.

    Raises
    ------
    ScheduleError
        If a pipeline lacks a cost.
    """
    if not is_uniform(schedule, pipelines):
        return OpTimes(
            entry=np.arange(len(schedule)),
            duration=_each_op(schedule, pipelines),
            rank=schedule.rank.astype(np.int64),
            count=(~second_of_pair(schedule)).astype(np.int64),
        )
    placed = schedule.placement.table  # (directions, stages)
    shape = (len(COMPUTE_KINDS), *placed.shape, schedule.slices)
    duration = np.zeros((len(pipelines), *shape))
    speed, overhead = (rates[:, placed, np.newaxis] for rates in device_rates(pipelines))
    rebuilt = schedule.separate_recompute
    for kind in sorted(schedule.kinds):
        cost = needed_costs(schedule.name, pipelines, kind, rebuilt=rebuilt)[:, np.newaxis]
        if schedule.slices > 1:
            cost = cost * np.asarray(schedule.fractions)
        duration[:, kind] = op_ms(kind, cost, speed, overhead)
    entry = schedule.kind.astype(np.intp)
    direction = schedule.directions[schedule.microbatch] if placed.shape[0] > 1 else 0
    for place, length in zip((direction, schedule.stage, schedule.slice), shape[1:], strict=True):
        if length > 1:
            entry *= length
            entry += place
    return OpTimes(
        entry=entry,
        duration=duration.reshape(len(pipelines), -1),
        rank=np.broadcast_to(placed[:, :, np.newaxis], shape).reshape(-1).astype(np.int64),
        count=np.bincount(entry, minlength=int(np.prod(shape))),
    )


def _each_op(schedule: Schedule, pipelines: Sequence[Pipeline]) -> FloatArray:
    """Return how long every op takes [ms], array (K, ops); a pair takes its own cost."""
    duration, unit = np.zeros((len(pipelines), len(schedule))), schedule.unit
    for kind in sorted(schedule.kinds):  # one table at a time: each is as large as the result
        chosen = np.flatnonzero(schedule.kind == kind)
        table = duration_table(schedule, pipelines, kind)
        duration[:, chosen] = table[:, schedule.stage[chosen], unit[chosen]]
    second = np.flatnonzero(second_of_pair(schedule)).astype(np.int32)
    if second.size:
        together = pair_durations(schedule, pipelines, second)
        duration[:, second] = duration[:, second - 1] = together
    return duration


def duration_table(
    schedule: Schedule, pipelines: Sequence[Pipeline], kind: Kind, *, one: bool = False
) -> FloatArray:
    """Return how long ops of one kind take by themselves [ms], array (K, stages, units).

    Or for `one` micro-batch that stands for all, array (K, stages, 1).

    Raises
    ------
    ScheduleError
        If a pipeline lacks the cost.
    """
    m, rebuilt = 1 if one else schedule.microbatches, schedule.separate_recompute
    cost = needed_costs(schedule.name, pipelines, kind, m, rebuilt=rebuilt)
    # Where each stage runs each micro-batch.
    rank = schedule.placement.table[:1].T if one else schedule.rank_table
    speed, overhead = (rates[:, rank] for rates in device_rates(pipelines))
    if schedule.slices > 1:
        cost = np.repeat(cost, schedule.slices, axis=2)
        cost = cost * np.tile(schedule.fractions, m)
        speed, overhead = (np.repeat(x, schedule.slices, axis=2) for x in (speed, overhead))
    return op_ms(kind, cost, speed, overhead)


def pair_durations(
    schedule: Schedule, pipelines: Sequence[Pipeline], second: Int32Array
) -> FloatArray:
    """Return how long overlapped pairs take [ms], array (K, pairs).

    `second` are the numbers of their second ops. The rule is that of `pipeline/costs.py`.
    """
    rank, both = schedule.rank[second], np.zeros((len(pipelines), len(second)))
    for kind in sorted(schedule.kinds):
        table = cost_table(
            pipelines, kind, schedule.microbatches, rebuilt=schedule.separate_recompute
        )
        for ops in (second - 1, second):
            of_kind = schedule.kind[ops] == kind
            chosen = ops[of_kind]
            if table is not None and chosen.size:
                both[:, of_kind] += table[:, schedule.stage[chosen], schedule.microbatch[chosen]]
    forward = np.where(schedule.kind[second] == Kind.F, second, second - 1)
    speed, overhead = (rates[:, rank] for rates in device_rates(pipelines))
    cost = np.empty_like(both)
    shared = bases(pipelines)
    for row in range(len(pipelines)):
        pipe = shared[row % len(shared)]
        overlap = [np.nan if s.overlap_ms is None else s.overlap_ms for s in pipe.stages]
        own = np.asarray(overlap)[schedule.stage[forward]]
        cost[row] = pair_cost(own, pipe.overlap_factor, both[row])
    return op_ms(Kind.F, cost, speed, overhead)


def stage_ms(schedule: Schedule, pipe: Pipeline) -> list[float]:
    """Return what one micro-batch takes on every stage, on its device [ms].

    All its ops on the stage one after the other, none overlapped, overheads included: the mean
    over micro-batches, where they differ.
    """
    numbers, total = schedule.numbers(), np.zeros(schedule.stages)
    for kind in sorted(schedule.kinds):
        total += np.where(numbers[kind] >= 0, duration_table(schedule, [pipe], kind)[0], 0.0).sum(1)
    return [float(time) for time in total / schedule.microbatches]


def message_tables(
    schedule: Schedule, pipelines: Sequence[Pipeline], *, one: bool = False
) -> tuple[FloatArray, FloatArray]:
    """Return wire time and latency [ms] of messages, arrays (K, 2, stages, micro-batches).

    Or for `one` micro-batch that stands for all, arrays (K, 2, stages, 1).

    Row 0 is the activation to the next stage, row 1 the gradient to the stage before; 0 where
    both stages are on one rank. An activation leaves stage s with its output_bytes, a slice with
    an equal part of them; the gradient that comes back over the same boundary is as large.
    """
    directions = schedule.directions[:1] if one else schedule.directions
    shared = bases(pipelines)
    wire, latency = np.zeros((2, len(shared), 2, schedule.stages, len(directions)))
    for number, pipe in enumerate(shared):
        if not pipe.links:
            continue
        for direction, rank_of in enumerate(schedule.placement.table.tolist()):
            flowing = directions == direction
            for stage, (near, far) in enumerate(pairwise(rank_of)):
                if near == far:
                    continue
                size = pipe.stages[stage].output_bytes / schedule.slices
                there, back = pipe.link(near, far), pipe.link(far, near)
                wire[number, 0, stage, flowing] = there.wire_ms(size)
                latency[number, 0, stage, flowing] = there.latency_ms
                wire[number, 1, stage + 1, flowing] = back.wire_ms(size)
                latency[number, 1, stage + 1, flowing] = back.latency_ms
    return _of_all(pipelines, wire), _of_all(pipelines, latency)


def messages_of(
    program: Program, pipelines: Sequence[Pipeline], ops: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return wire time and latency [ms] of the messages that some ops make, arrays (K, ops)."""
    shared = bases(pipelines)
    wire, latency = np.zeros((2, len(shared), len(ops)))
    if not any(pipe.links for pipe in shared):
        return _of_all(pipelines, wire), _of_all(pipelines, latency)
    schedule = program.order
    boundary = np.minimum(schedule.stage[ops], schedule.stage[program.consumer[ops]])
    columns = program.source[ops], program.target[ops], boundary
    messages = list(zip(*map(np.ndarray.tolist, columns), strict=True))
    for number, pipe in enumerate(shared):
        for place, (source, target, stage) in enumerate(messages):
            link = pipe.link(source, target)
            wire[number, place] = link.wire_ms(pipe.stages[stage].output_bytes / schedule.slices)
            latency[number, place] = link.latency_ms
    return _of_all(pipelines, wire), _of_all(pipelines, latency)


def check_fit(schedule: Schedule, pipe: Pipeline) -> None:
    """Check that a schedule and a pipeline have the same stages, ranks and micro-batches.

    Raises
    ------
    ScheduleError
        If they have not.
    """
    if schedule.stages != len(pipe.stages) or schedule.ranks != pipe.ranks:
        raise ScheduleError(
            f"{schedule.name} is for {schedule.stages} stages on {schedule.ranks} ranks, "
            f"the pipeline has {len(pipe.stages)} on {pipe.ranks}"
        )
    pipe.check_microbatches(schedule.name, schedule.microbatches)


def _of_all(pipelines: Sequence[Pipeline], table: FloatArray) -> FloatArray:
    """Return the row of what variants have in common for each of them."""
    if not isinstance(pipelines, CostVariants):
        return table
    return np.broadcast_to(table, (len(pipelines), *table.shape[1:]))
