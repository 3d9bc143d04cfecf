"""What the ops and messages of a schedule take on a pipeline, as arrays."""

from itertools import pairwise

import numpy as np

from pipesim.base.errors import ScheduleError
from pipesim.base.ops import COMPUTE_KINDS, Kind
from pipesim.base.types import FloatArray, Int32Array, IntArray
from pipesim.pipeline.components import missing_cost
from pipesim.pipeline.costs import cost_table, with_overhead
from pipesim.pipeline.pipeline import Pipeline
from pipesim.schedules.order.dataflow import second_of_pair
from pipesim.schedules.order.schedule import Schedule
from pipesim.schedules.program.program import Program


def op_durations(schedule: Schedule, pipe: Pipeline) -> FloatArray:
    """Return how long every op takes [ms], array (ops,); an overlapped pair takes its own cost."""
    same = all_alike(schedule, pipe)
    units = 1 if same else schedule.microbatches * schedule.slices
    tables = np.zeros((len(COMPUTE_KINDS), schedule.stages, units))
    for kind in sorted(schedule.kinds):
        tables[kind] = duration_table(schedule, pipe, kind, one=same)
    unit = np.int32(0) if same else schedule.unit
    duration: FloatArray = tables[schedule.kind, schedule.stage, unit]
    second = np.flatnonzero(second_of_pair(schedule)).astype(np.int32)
    if second.size:
        together = pair_durations(schedule, pipe, second)
        duration[second] = duration[second - 1] = together
    return duration


def messages_of(program: Program, pipe: Pipeline, ops: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return wire time and latency [ms] of the messages that a few ops make, arrays (ops,)."""
    wire, latency = np.zeros(len(ops)), np.zeros(len(ops))
    if not pipe.links:
        return wire, latency
    schedule = program.order
    boundary = np.minimum(schedule.stage[ops], schedule.stage[program.consumer[ops]])
    columns = program.source[ops], program.target[ops], boundary
    for place, (source, target, stage) in enumerate(
        zip(*map(np.ndarray.tolist, columns), strict=True)
    ):
        link = pipe.link(source, target)
        wire[place] = link.wire_ms(pipe.stages[stage].output_bytes / schedule.slices)
        latency[place] = link.latency_ms
    return wire, latency


def all_alike(schedule: Schedule, pipe: Pipeline) -> bool:
    """Say whether all micro-batches go the same way and take the same times, pairs aside."""
    return pipe.microbatches is None and schedule.slices == schedule.placement.directions == 1


def duration_table(
    schedule: Schedule, pipe: Pipeline, kind: Kind, *, one: bool = False
) -> FloatArray:
    """Return how long ops of one kind take by themselves [ms], array (stages, units).

    Or for `one` micro-batch that stands for all, array (stages, 1).

    An op takes cost/speed + overhead, the last two those of the rank; a slice its fraction of
    the cost. An R with nothing to rebuild takes no time at all.

    Raises
    ------
    ScheduleError
        If the pipeline lacks the cost.
    """
    rebuilt = schedule.separate_recompute
    cost = cost_table(pipe, kind, 1 if one else schedule.microbatches, rebuilt=rebuilt)
    if cost is None:
        raise ScheduleError(missing_cost(schedule.name, kind))
    # Where each stage runs each micro-batch.
    rank = schedule.placement.table[:1].T if one else schedule.rank_table
    speed, overhead = pipe.speeds[rank], pipe.overheads[rank]
    if schedule.slices > 1:
        cost = np.repeat(cost, schedule.slices, axis=1)
        cost = cost * np.tile(schedule.fractions, schedule.microbatches)
        speed, overhead = (np.repeat(x, schedule.slices, axis=1) for x in (speed, overhead))
    return with_overhead(kind, cost, speed, overhead)


def pair_durations(schedule: Schedule, pipe: Pipeline, second: Int32Array) -> FloatArray:
    """Return how long overlapped pairs take [ms], given the numbers of their second ops.

    A pair takes the `overlap_ms` of its forward's stage, or else the pipeline's overlap_factor
    times what its two ops cost; then speed and overhead as any op.
    """
    rank, alone = schedule.rank[second], np.zeros(len(second))
    rebuilt = schedule.separate_recompute
    for ops in (second - 1, second):
        for kind in sorted(schedule.kinds):
            table = cost_table(pipe, kind, schedule.microbatches, rebuilt=rebuilt)
            of_kind = schedule.kind[ops] == kind
            chosen = ops[of_kind]
            if table is not None and chosen.size:
                alone[of_kind] += table[schedule.stage[chosen], schedule.microbatch[chosen]]
    forward = np.where(schedule.kind[second] == Kind.F, second, second - 1)
    overlap = [np.nan if s.overlap_ms is None else s.overlap_ms for s in pipe.stages]
    own = np.asarray(overlap)[schedule.stage[forward]]
    cost = np.where(np.isnan(own), pipe.overlap_factor * alone, own)
    duration: FloatArray = cost / pipe.speeds[rank] + pipe.overheads[rank]
    return duration


def message_tables(
    schedule: Schedule, pipe: Pipeline, *, one: bool = False
) -> tuple[FloatArray, FloatArray]:
    """Return wire time and latency [ms] of messages, arrays (2, stages, micro-batches).

    Or for `one` micro-batch that stands for all, arrays (2, stages, 1).

    Row 0 is the activation to the next stage, row 1 the gradient to the stage before; 0 where
    both stages are on one rank. An activation leaves stage s with its output_bytes, a slice with
    an equal part of them; the gradient that comes back over the same boundary is as large.
    """
    directions = schedule.directions[:1] if one else schedule.directions
    shape = (2, schedule.stages, len(directions))
    wire, latency = np.zeros(shape), np.zeros(shape)
    if not pipe.links:
        return wire, latency
    for direction, rank_of in enumerate(schedule.placement.table.tolist()):
        flowing = directions == direction
        for stage, (near, far) in enumerate(pairwise(rank_of)):
            if near == far:
                continue
            size = pipe.stages[stage].output_bytes / schedule.slices
            there, back = pipe.link(near, far), pipe.link(far, near)
            wire[0, stage, flowing] = there.wire_ms(size)
            latency[0, stage, flowing] = there.latency_ms
            wire[1, stage + 1, flowing] = back.wire_ms(size)
            latency[1, stage + 1, flowing] = back.latency_ms
    return wire, latency


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
