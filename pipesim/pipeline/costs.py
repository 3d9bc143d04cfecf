"""What a schedule that goes by the costs sees of a pipeline."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pipesim.base.errors import ScheduleError
from pipesim.base.ops import Kind
from pipesim.base.types import FloatArray
from pipesim.pipeline.components import missing_cost
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.placement import Placement


class StageTimes(NamedTuple):
    """How long things take [ms].

    Parameters
    ----------
    forward, input_grad, weight_grad
        Of an op, overhead included: arrays (stages, micro-batches).
    hop
        Of a message over each stage boundary, the slower of the two ways; array (stages-1,).
    """

    forward: FloatArray
    input_grad: FloatArray
    weight_grad: FloatArray
    hop: FloatArray


def cost_table(
    pipe: Pipeline, kind: Kind, microbatches: int, *, rebuilt: bool = False
) -> FloatArray | None:
    """Return the costs of one kind of op [ms], array (stages, micro-batches).

    None if a stage does not have that cost. Where it is `rebuilt` by R what F has not kept,
    B and I take no time for that.
    """
    costs = [stage.cost(kind, rebuilt=rebuilt) for stage in pipe.stages]
    if any(cost is None for cost in costs):
        return None
    return np.stack(
        [np.broadcast_to(np.asarray(cost, dtype=np.float64), microbatches) for cost in costs]
    )


def split_backward_times(
    name: str, pipe: Pipeline, placement: Placement, microbatches: int
) -> StageTimes:
    """Return the times of F, I and W on the stages of a pipeline under a placement.

    Raises
    ------
    ScheduleError
        If the pipeline lacks I and W, or has costs for another number of micro-batches.
    """
    pipe.check_microbatches(name, microbatches)
    ranks = placement.table[0]
    speed = pipe.speeds[ranks][:, np.newaxis]
    overhead = pipe.overheads[ranks][:, np.newaxis]
    tables = []
    for kind in (Kind.F, Kind.I, Kind.W):
        cost = cost_table(pipe, kind, microbatches)
        if cost is None:
            raise ScheduleError(missing_cost(name, kind))
        tables.append(cost / speed + overhead)
    hops = []
    for stage, (near, far) in zip(pipe.stages, pairwise(ranks.tolist()), strict=False):
        ways = [] if near == far else [pipe.link(near, far), pipe.link(far, near)]
        hops.append(max((w.wire_ms(stage.output_bytes) + w.latency_ms for w in ways), default=0.0))
    forward, input_grad, weight_grad = tables
    return StageTimes(forward, input_grad, weight_grad, np.array(hops, dtype=np.float64))


def with_overhead(
    kind: Kind, cost: FloatArray, speed: FloatArray, overhead: FloatArray
) -> FloatArray:
    """Return the durations of ops of a kind: cost/speed + overhead; 0 of R without a cost."""
    if kind == Kind.R:
        overhead = np.where(cost > 0, overhead, 0.0)
    duration: FloatArray = cost / speed + overhead
    return duration
