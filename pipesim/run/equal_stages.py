"""What unequal stages are measured against: equal ones of the same mean cost."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pipesim.base.ops import Kind
from pipesim.base.types import FloatArray
from pipesim.pipeline.components import COST_FIELDS
from pipesim.pipeline.cost_tables import cost_table, device_rates
from pipesim.pipeline.costs import on_device, pair_cost
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.variants import CostVariants, bases
from pipesim.schedules.order.schedule import Schedule


def equal_stages(schedule: Schedule, pipelines: Sequence[Pipeline]) -> Sequence[Pipeline]:
    """Return equal stages with the mean costs of K pipelines, on equal devices without transfers.

    Every op takes the mean of what its kind takes over all stages and micro-batches.
    """
    if isinstance(pipelines, CostVariants) and not _in_costs_alone(pipelines.base):
        pipelines = list(pipelines)
    shared = bases(pipelines)
    one_cost = all(pipe.microbatches is None for pipe in shared)
    # A column for each micro-batch, or for each direction that stands for so many of them.
    if one_cost:
        rank_of = schedule.placement.table.T
        counts = np.bincount(schedule.directions, minlength=schedule.placement.directions)
    else:
        rank_of, counts = schedule.rank_table, np.ones(schedule.microbatches, dtype=np.int64)
    share = counts / counts.sum()
    speed, overhead = (rates[:, rank_of] for rates in device_rates(pipelines))
    rebuilt = schedule.separate_recompute  # or else the backward has the time to rebuild in it
    mean: dict[Kind, FloatArray] = {}
    for kind in (Kind.F, Kind.I, Kind.W, Kind.B, *([Kind.R] if rebuilt else [])):
        if kind == Kind.B and Kind.I in mean:
            continue  # a pipeline gives the backward whole or in parts
        table = cost_table(
            pipelines, kind, 1 if one_cost else schedule.microbatches, rebuilt=rebuilt
        )
        if table is not None:
            mean[kind] = _mean(on_device(table, speed), share)
    overheads = _mean(overhead, share)
    overlaps = [
        _mean_overlap(pipe, speed[row], share, {kind: times[row] for kind, times in mean.items()})
        for row, pipe in enumerate(shared)
    ]

    def equal(row: int) -> Pipeline:
        pipe, costs = shared[row], {kind: float(times[row]) for kind, times in mean.items()}
        return Pipeline.from_costs(
            forward=costs[Kind.F],
            backward=costs.get(Kind.B),
            input_grad=costs.get(Kind.I),
            weight_grad=costs.get(Kind.W),
            recompute_ms=costs.get(Kind.R, 0.0),
            stages=schedule.stages,
            placement=schedule.placement,
            overhead_ms=float(overheads[row]),
            overlap_ms=overlaps[row],
            overlap_factor=pipe.overlap_factor,
            stash_bytes=round(np.mean([stage.stash_bytes for stage in pipe.stages])),
            rebuilt_bytes=round(np.mean([stage.rebuilt_bytes for stage in pipe.stages])),
            input_grad_frees_bytes=round(np.mean([s.input_grad_frees_bytes for s in pipe.stages])),
        )

    if not isinstance(pipelines, CostVariants):
        return [equal(row) for row in range(len(pipelines))]
    shape = (len(pipelines), schedule.stages)
    costs = {
        COST_FIELDS[k]: np.broadcast_to(times[:, np.newaxis], shape) for k, times in mean.items()
    }
    return CostVariants(equal(0), costs)


def _in_costs_alone(base: Pipeline) -> bool:
    """Say whether equal stages of variants differ in nothing but their costs, too."""
    return base.microbatches is None and all(stage.overlap_ms is None for stage in base.stages)


def _mean(times: FloatArray, share: npt.NDArray[np.float64]) -> FloatArray:
    """Return the mean of times, array (K, stages, columns), over stages and weighted columns.

    Differences from the first are averaged, so that the mean of equal times is that time.
    """
    times = np.ascontiguousarray(times)
    first = times[:, :1, :1]
    weighted = np.ascontiguousarray((times - first) * share)
    sums = np.cumsum(weighted.reshape(len(times), -1), axis=1)[:, -1]
    return np.asarray(first[:, 0, 0] + sums / times.shape[1], dtype=np.float64)


def _mean_overlap(
    pipe: Pipeline, speed: FloatArray, share: FloatArray, mean: dict[Kind, FloatArray]
) -> float | None:
    """Return the mean time of an overlapped pair [ms]; None if no stage says how long one takes."""
    if all(stage.overlap_ms is None for stage in pipe.stages):
        return None
    backward = mean.get(Kind.B, mean.get(Kind.I, 0.0) + mean.get(Kind.W, 0.0))
    own = np.array([np.nan if s.overlap_ms is None else s.overlap_ms for s in pipe.stages])
    own = on_device(own[:, np.newaxis], speed)
    pairs = pair_cost(own, pipe.overlap_factor, np.asarray(mean[Kind.F] + backward))
    return float(_mean(pairs[np.newaxis], share)[0])
