"""A schedule bound to the costs of a pipeline: all numbers of a run, fixed before it starts."""

from dataclasses import dataclass

import numpy as np

from pipesim.base.ops import Kind
from pipesim.base.types import BoolArray, FloatArray, Int32Array
from pipesim.engine.op_costs import check_fit, message_tables, op_times
from pipesim.pipeline.pipeline import Pipeline
from pipesim.schedules.order.dataflow import local_inputs, producers, second_of_pair
from pipesim.schedules.program.program import Program


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """What an engine runs; all arrays but `busy` are (ops,).

    Parameters
    ----------
    duration
        Duration of the op [ms]; of an overlapped pair the same for both.
    second
        Whether the op runs together with the one right before it.
    producer
        Number of the op on a neighbouring stage whose output this op takes; -1 for none.
    local_input
        Number of the op of the same stage that must come before it; -1 for none.
    wire, latency
        Times of the message with its output to another rank: on the wire, then until it is
        there [ms].
    meets
        Whether the message, where sends and receives are instructions, waits for its receiver:
        those above the eager limit do.
    busy
        How long each rank computes [ms], array (ranks,).
    """

    duration: FloatArray
    second: BoolArray
    producer: Int32Array
    local_input: Int32Array
    wire: FloatArray
    latency: FloatArray
    meets: BoolArray
    busy: FloatArray


def bind(program: Program, pipe: Pipeline, eager_limit_bytes: int | None = None) -> Workload:
    """Return the workload of a program, made from a schedule, on a pipeline.

    Parameters
    ----------
    program, pipe
        The ops, and what they cost.
    eager_limit_bytes
        Messages up to this size never wait for their receivers; None: all do.

    Raises
    ------
    ScheduleError
        If the pipeline has other stages, ranks or micro-batches, or lacks a cost.
    """
    schedule = program.order
    check_fit(schedule, pipe)
    crosses = program.source >= 0
    one_way = schedule.placement.directions == 1  # one micro-batch stands for all
    wire, latency = (table[0] for table in message_tables(schedule, [pipe], one=one_way))
    times = op_times(schedule, [pipe])
    gradient = (schedule.kind != Kind.F).astype(np.int8)
    which = gradient, schedule.stage, np.int32(0) if one_way else schedule.microbatch
    return Workload(
        duration=times.duration[0, times.entry],
        second=second_of_pair(schedule),
        producer=producers(schedule),
        local_input=local_inputs(schedule),
        wire=np.where(crosses, wire[which], 0.0) if wire.any() else np.zeros(len(schedule)),
        latency=np.where(crosses, latency[which], 0.0),
        meets=meeting(program, pipe, eager_limit_bytes),
        busy=times.busy(schedule.ranks)[0],
    )


def meeting(program: Program, pipe: Pipeline, limit: int | None) -> BoolArray:
    """Return whether the message of each op waits for its receiver, array (ops,).

    Those above the limit [bytes] do, or all where there is none.
    """
    schedule = program.order
    if limit is None:
        return np.ones(len(schedule), dtype=bool)
    output = np.array([stage.output_bytes for stage in pipe.stages]) / schedule.slices
    # A gradient is as large as the activation that went over the same boundary.
    boundary = np.minimum(schedule.stage, schedule.stage[program.consumer])
    large: BoolArray = output[boundary] > limit
    return large
