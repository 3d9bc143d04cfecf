"""A schedule bound to the costs of a pipeline: all numbers of a run, fixed before it starts."""

from dataclasses import dataclass

import numpy as np

from pipesim.arrays import FloatArray, Int32Array
from pipesim.components import COST_FIELDS
from pipesim.errors import ScheduleError
from pipesim.ops import Kind
from pipesim.pipeline import Pipeline
from pipesim.schedule import Schedule


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """What an engine runs; all arrays are (ops,).

    Parameters
    ----------
    duration
        Of the op: cost/speed + overhead [ms].
    producer, consumer
        Number of the op on a neighbouring stage whose output this op takes, and of the one that
        takes its own; -1 for none.
    local_input
        Number of the op of the same stage that must come before it; -1 for none.
    target
        Rank of the consumer; -1 where there is none or it is on the same rank.
    wire, latency
        Of the message to that rank: time on the wire, then until it is there [ms].
    """

    duration: FloatArray
    producer: Int32Array
    consumer: Int32Array
    local_input: Int32Array
    target: Int32Array
    wire: FloatArray
    latency: FloatArray


def bind(schedule: Schedule, pipe: Pipeline) -> Workload:
    """Return the workload of a schedule on a pipeline.

    Raises
    ------
    ScheduleError
        If the pipeline has other stages, ranks or micro-batches, or lacks a cost.
    """
    _check_fit(schedule, pipe)
    consumer = schedule.consumers()
    rank = schedule.rank
    crosses = (consumer >= 0) & (rank[consumer] != rank)
    wire, latency = message_tables(schedule, pipe)
    direction = (schedule.kind != Kind.F).astype(np.intp)
    return Workload(
        duration=op_durations(schedule, pipe),
        producer=schedule.producers(),
        consumer=consumer,
        local_input=schedule.local_inputs(),
        target=np.where(crosses, rank[consumer], np.int32(-1)),
        wire=wire[direction, schedule.stage],
        latency=latency[direction, schedule.stage],
    )


def op_durations(schedule: Schedule, pipe: Pipeline) -> FloatArray:
    """Return how long every op takes [ms], array (ops,)."""
    duration = np.empty(len(schedule))
    for kind in sorted(schedule.kinds):
        ops = schedule.kind == kind
        table = duration_table(schedule, pipe, kind)
        duration[ops] = table[schedule.stage[ops], schedule.microbatch[ops]]
    return duration


def duration_table(schedule: Schedule, pipe: Pipeline, kind: Kind) -> FloatArray:
    """Return how long ops of one kind take [ms], array (stages, micro-batches).

    An op takes cost/speed + overhead, the last two those of the stage's device.

    Raises
    ------
    ScheduleError
        If the pipeline lacks the cost.
    """
    cost = pipe.cost_table(kind, schedule.microbatches)
    if cost is None:
        raise ScheduleError(_missing_cost(schedule.name, kind))
    devices = [pipe.devices[rank] for rank in schedule.placement.rank_of]
    speed = np.array([[device.speed] for device in devices])
    overhead = np.array([[device.overhead_ms] for device in devices])
    duration: FloatArray = cost / speed + overhead
    return duration


def message_tables(schedule: Schedule, pipe: Pipeline) -> tuple[FloatArray, FloatArray]:
    """Return wire time and latency [ms] of what each stage sends, arrays (2, stages).

    Row 0 is the activation to the next stage, row 1 the gradient to the stage before; 0 where
    both stages are on one rank. An activation leaves stage s with its output_bytes; the
    gradient that comes back over the same boundary is as large.
    """
    rank_of = schedule.placement.rank_of
    wire = np.zeros((2, schedule.stages))
    latency = np.zeros((2, schedule.stages))
    for stage in range(schedule.stages - 1):
        near, far = rank_of[stage], rank_of[stage + 1]
        if near == far:
            continue
        size = pipe.stages[stage].output_bytes
        there, back = pipe.link(near, far), pipe.link(far, near)
        wire[0, stage], latency[0, stage] = there.wire_ms(size), there.latency_ms
        wire[1, stage + 1], latency[1, stage + 1] = back.wire_ms(size), back.latency_ms
    return wire, latency


def _check_fit(schedule: Schedule, pipe: Pipeline) -> None:
    if schedule.stages != len(pipe.stages) or schedule.ranks != pipe.ranks:
        raise ScheduleError(
            f"{schedule.name} is for {schedule.stages} stages on {schedule.ranks} ranks, "
            f"the pipeline has {len(pipe.stages)} on {pipe.ranks}"
        )
    if pipe.microbatches not in (None, schedule.microbatches):
        raise ScheduleError(
            f"{schedule.name} has {schedule.microbatches} micro-batches, "
            f"the costs are given for {pipe.microbatches}"
        )


def _missing_cost(name: str, kind: Kind) -> str:
    if kind in (Kind.I, Kind.W):
        return f"{name} splits the backward: give input_grad_ms and weight_grad_ms of every stage"
    if kind == Kind.B:
        return (
            f"{name} runs backwards: give backward_ms, or input_grad_ms and weight_grad_ms, "
            "of every stage"
        )
    return f"{name} needs {COST_FIELDS[kind]} of every stage"
