"""The costs of K pipelines as arrays with a leading axis of pipelines; K = 1 is one pipeline.

Several pipelines are a sequence, or `CostVariants`, whose arrays are taken as they are. Every row
is worked out by itself: a pipeline has the same bits alone and among any others.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pipesim.base.errors import ScheduleError
from pipesim.base.ops import Kind
from pipesim.base.types import FloatArray
from pipesim.pipeline.components import COST_FIELDS, missing_cost
from pipesim.pipeline.costs import kind_cost, op_ms
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.placement import Placement
from pipesim.pipeline.variants import CostVariants


class StageTimes(NamedTuple):
    """Durations of ops and messages [ms].

    Parameters
    ----------
    forward, input_grad, weight_grad
        Durations of F, I and W, overhead included: arrays (stages, micro-batches).
    hop
        Time of a message over each stage boundary, the slower of the two ways; array (stages-1,).
    """

    forward: FloatArray
    input_grad: FloatArray
    weight_grad: FloatArray
    hop: FloatArray


def cost_table(
    pipelines: Sequence[Pipeline], kind: Kind, microbatches: int = 1, *, rebuilt: bool = False
) -> FloatArray | None:
    """Return the costs of one kind of op [ms], array (K, stages, micro-batches).

    None if a stage does not have that cost.

    Parameters
    ----------
    pipelines
        With the same number of stages.
    kind
        F, B, I, W or R.
    microbatches
        The number m of columns; 1 where costs hold for all micro-batches.
    rebuilt
        Whether R rebuilds what F has not kept: then B and I take no time for that.
    """

    def given(of: Kind) -> FloatArray | None:
        return _field_table(pipelines, COST_FIELDS[of], microbatches)

    return kind_cost(kind, given, rebuilt=rebuilt)


def needed_costs(
    name: str,
    pipelines: Sequence[Pipeline],
    kind: Kind,
    microbatches: int = 1,
    *,
    rebuilt: bool = False,
) -> FloatArray:
    """Return the costs of one kind of op that a schedule by this name runs: see `cost_table`.

    Raises
    ------
    ScheduleError
        If a pipeline lacks the cost.
    """
    table = cost_table(pipelines, kind, microbatches, rebuilt=rebuilt)
    if table is None:
        raise ScheduleError(missing_cost(name, kind))
    return table


def device_rates(pipelines: Sequence[Pipeline]) -> tuple[FloatArray, FloatArray]:
    """Return the speed and the overhead [ms] of every rank's device, arrays (K, ranks)."""
    if isinstance(pipelines, CostVariants):
        speed, overhead = device_rates([pipelines.base])
        shape = (len(pipelines), speed.shape[1])
        return np.broadcast_to(speed, shape), np.broadcast_to(overhead, shape)
    return np.array([p.speeds for p in pipelines]), np.array([p.overheads for p in pipelines])


def split_backward_times(
    name: str, pipe: Pipeline, placement: Placement, microbatches: int
) -> StageTimes:
    """Return the durations of F, I and W on the stages of a pipeline under a placement.

    Raises
    ------
    ScheduleError
        If the pipeline lacks I and W, or has costs for another number of micro-batches.
    """
    pipe.check_microbatches(name, microbatches)
    ranks = placement.table[0]
    speed, overhead = (rates[0, ranks, np.newaxis] for rates in device_rates([pipe]))
    forward, input_grad, weight_grad = (
        op_ms(kind, needed_costs(name, [pipe], kind, microbatches)[0], speed, overhead)
        for kind in (Kind.F, Kind.I, Kind.W)
    )
    hops = []
    for stage, (near, far) in zip(pipe.stages, pairwise(ranks.tolist()), strict=False):
        ways = [] if near == far else [pipe.link(near, far), pipe.link(far, near)]
        hops.append(max((way.message_ms(stage.output_bytes) for way in ways), default=0.0))
    return StageTimes(forward, input_grad, weight_grad, np.array(hops, dtype=np.float64))


def _field_table(pipelines: Sequence[Pipeline], name: str, microbatches: int) -> FloatArray | None:
    """Return a cost of every stage [ms], array (K, stages, micro-batches); None if one lacks it."""
    if isinstance(pipelines, CostVariants) and pipelines.base.microbatches is None:
        values = pipelines.field(name)
        rows = None if values is None else values[:, :, np.newaxis]
    else:
        given = [[getattr(stage, name) for stage in pipe.stages] for pipe in pipelines]
        if any(value is None for row in given for value in row):
            return None
        if any(isinstance(value, tuple) for row in given for value in row):
            rows = np.array(
                [[np.broadcast_to(value, microbatches) for value in row] for row in given],
                dtype=np.float64,
            )
        else:
            rows = np.array(given, dtype=np.float64)[:, :, np.newaxis]
    if rows is None:
        return None
    # Sums go by the layout of an array: the same one for every number of pipelines.
    shape = (*rows.shape[:2], microbatches)
    return np.ascontiguousarray(rows if rows.shape == shape else np.broadcast_to(rows, shape))
