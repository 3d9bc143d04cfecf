"""What unequal stages are measured against: equal ones of the same mean cost."""

from collections.abc import Mapping

import numpy as np

from pipesim.base.ops import Kind
from pipesim.base.types import FloatArray
from pipesim.pipeline.costs import cost_table
from pipesim.pipeline.pipeline import Pipeline
from pipesim.schedules.order.schedule import Schedule


def equalised(schedule: Schedule, pipe: Pipeline) -> Pipeline:
    """Return equal stages with a pipeline's mean costs, on equal devices without transfers.

    Every op takes the mean of what its kind takes over all stages and micro-batches.
    """
    speed = pipe.speeds[schedule.rank_table]
    rebuilt = schedule.separate_recompute  # or else the backward has the time to rebuild in it
    mean = {}
    for kind in (Kind.F, Kind.I, Kind.W, Kind.B, *([Kind.R] if rebuilt else [])):
        if kind == Kind.B and Kind.I in mean:
            continue  # a pipeline gives the backward whole or in parts
        table = cost_table(pipe, kind, schedule.microbatches, rebuilt=rebuilt)
        if table is not None:
            mean[kind] = float((table / speed).mean())
    return Pipeline.from_costs(
        forward=mean[Kind.F],
        backward=mean.get(Kind.B),
        input_grad=mean.get(Kind.I),
        weight_grad=mean.get(Kind.W),
        recompute_ms=mean.get(Kind.R, 0.0),
        stages=schedule.stages,
        placement=schedule.placement,
        overhead_ms=float(pipe.overheads[schedule.rank_table].mean()),
        overlap_ms=_mean_overlap(pipe, speed, mean),
        overlap_factor=pipe.overlap_factor,
        stash_bytes=round(np.mean([stage.stash_bytes for stage in pipe.stages])),
        rebuilt_bytes=round(np.mean([stage.rebuilt_bytes for stage in pipe.stages])),
        input_grad_frees_bytes=round(np.mean([s.input_grad_frees_bytes for s in pipe.stages])),
    )


def _mean_overlap(pipe: Pipeline, speed: FloatArray, mean: Mapping[Kind, float]) -> float | None:
    """Return the mean time of an overlapped pair; None if no stage says how long one takes."""
    if all(stage.overlap_ms is None for stage in pipe.stages):
        return None
    alone = mean[Kind.F] + mean.get(Kind.B, mean.get(Kind.I, 0.0) + mean.get(Kind.W, 0.0))
    by_factor = pipe.overlap_factor * alone
    own = np.array([np.nan if s.overlap_ms is None else s.overlap_ms for s in pipe.stages])
    return float(
        np.where(np.isnan(own)[:, np.newaxis], by_factor, own[:, np.newaxis] / speed).mean()
    )
