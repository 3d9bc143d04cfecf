"""One schedule on many pipelines at once: the numbers of `Run.summary`, one row a pipeline.

The pipelines have the same stages, ranks and links between ranks in common; what differs is what
things cost. Everything but the times of the ops themselves is array arithmetic over all of them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pipesim.arrays import FloatArray
from pipesim.batch.bound import makespan_bounds
from pipesim.batch.tables import is_uniform, op_times, stage_costs
from pipesim.batch.variants import CostVariants, cost_fields
from pipesim.components import COST_FIELDS
from pipesim.ops import Kind
from pipesim.pipeline import Pipeline
from pipesim.run import equalised, simulate
from pipesim.schedule import Schedule
from pipesim.schedules import closed_form_bubble

__all__ = ["METRICS", "CostVariants", "cost_fields", "simulate_many"]

METRICS = (
    "makespan_ms",
    "inflation",
    "bubble_fraction",
    "bubble_ratio",
    "span_bubble",
    "closed_form_bubble_fraction",
    "excess_bubble_fraction",
    "lower_bound_ms",
    "balance",
    "filling",
)
ROUNDING = 1e-12  # of the makespan; less idle time than this is rounding of sums


class Ends(NamedTuple):
    """When K runs began and ended [ms]: arrays (K,), and (K, ranks) twice."""

    makespan: FloatArray
    first_start: FloatArray
    last_end: FloatArray


def simulate_many(
    schedule: Schedule, pipelines: Sequence[Pipeline], **how: Any
) -> dict[str, FloatArray]:
    """Return the numbers of the runs of a schedule on each of some pipelines.

    One array (K,) for each of `METRICS`, named as in `Run.summary`; NaN where that has None.
    The makespan is the same to the bit, the others differ by the rounding of sums. The numbers
    of a pipeline do not depend on those that it comes with.

    Parameters
    ----------
    schedule
        The order to run. One that goes by the costs is taken as it is; so give it its pipeline
        alone.
    pipelines
        Each with the schedule's stages and ranks.
    how
        As for `simulate`: engine, protocol, queue_capacity, eager_limit_bytes.

    Raises
    ------
    ScheduleError
        If the schedule does not fit the pipelines.
    DeadlockError
        If a run cannot go on.

    Examples
    --------
    >>> from pipesim.schedules import build_schedule
    >>> slow = [Pipeline.from_costs([1, 1, 1, f], [2, 2, 2, 2 * f]) for f in (1, 2)]
    >>> numbers = simulate_many(build_schedule("1f1b", ranks=4, microbatches=8), slow)
    >>> numbers["makespan_ms"].tolist()
    [33.0, 57.0]
    """
    ends = _run_ends(schedule, pipelines, how)
    busy = op_times(schedule, pipelines).busy(schedule.ranks)
    even = _run_ends(schedule, _equalised(schedule, pipelines), {}, remake=True).makespan
    closed = closed_form_bubble(schedule)
    columns = _shares(ends, busy)
    columns["inflation"] = _ratio(ends.makespan, even, nothing=np.nan)
    columns["closed_form_bubble_fraction"] = np.full(
        len(pipelines), np.nan if closed is None else closed
    )
    columns["excess_bubble_fraction"] = (
        columns["bubble_fraction"] - columns["closed_form_bubble_fraction"]
    )
    columns["lower_bound_ms"] = makespan_bounds(schedule, pipelines)
    return {name: columns[name] for name in METRICS}


def _run_ends(
    schedule: Schedule, pipelines: Sequence[Pipeline], how: dict[str, Any], remake: bool = False
) -> Ends:
    """Run a schedule on each pipeline; anew for its costs, where it goes by them and may."""
    starts, ends = [], []
    first, last = schedule.offsets[:-1], schedule.offsets[1:] - 1
    for pipe in pipelines:
        order = schedule.made_for(pipe) if remake else schedule
        spans = simulate(pipe, order, **how).spans
        starts.append(spans.start[first])
        ends.append(spans.end[last])
    first_start, last_end = np.array(starts), np.array(ends)
    return Ends(last_end.max(axis=1) - first_start.min(axis=1), first_start, last_end)


def _equalised(schedule: Schedule, pipelines: Sequence[Pipeline]) -> Sequence[Pipeline]:
    """Return `equalised` of each pipeline."""
    if not (isinstance(pipelines, CostVariants) and is_uniform(schedule, pipelines)):
        return [equalised(schedule, pipe) for pipe in pipelines]
    base = equalised(schedule, pipelines.base)
    # The mean over micro-batches is one over directions: how often each stage is on which rank.
    share = np.bincount(schedule.directions, minlength=schedule.placement.directions)
    speed = pipelines.base.speeds[schedule.placement.table]
    weight = ((share / share.sum())[:, np.newaxis] / speed).sum(axis=0) / schedule.stages
    shape = (len(pipelines), schedule.stages)
    costs = {
        COST_FIELDS[kind]: np.broadcast_to(
            (stage_costs(schedule, pipelines, kind) * weight).sum(axis=1, keepdims=True), shape
        )
        for kind in (Kind.F, Kind.B, Kind.I, Kind.W)
        if COST_FIELDS[kind] in cost_fields(base)
    }
    return CostVariants(base, costs)


def _shares(ends: Ends, busy: FloatArray) -> dict[str, FloatArray]:
    """Return the numbers that follow from when the runs ended and how long ranks computed."""
    makespan, ranks = ends.makespan, busy.shape[1]
    whole = makespan[:, np.newaxis]
    idle = np.where(whole - busy > ROUNDING * whole, whole - busy, 0.0)
    total, most = busy.sum(axis=1), busy.max(axis=1)
    longest = (ends.last_end - ends.first_start).max(axis=1)
    runs = makespan > 0  # nothing is idle in no time
    return {
        "makespan_ms": makespan,
        "bubble_fraction": _ratio(idle, whole, nothing=0.0).sum(axis=1) / ranks,
        "bubble_ratio": np.where(runs, _ratio(idle.sum(axis=1), total, nothing=np.nan), 0.0),
        "span_bubble": np.where(runs, 1 - _ratio(total, ranks * longest, nothing=np.nan), 0.0),
        "balance": _ratio(total / ranks, most, nothing=1.0),
        "filling": _ratio(most, makespan, nothing=1.0),
    }


def _ratio(part: FloatArray, whole: FloatArray, nothing: float) -> FloatArray:
    """Return part / whole, and something else where the whole is 0."""
    part, whole = np.broadcast_arrays(part, whole)
    ratio = np.full(part.shape, nothing)
    np.divide(part, whole, out=ratio, where=whole > 0)
    return ratio
