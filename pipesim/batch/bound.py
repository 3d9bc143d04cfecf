"""The lower bound of `lower_bound.py` for K pipelines at once."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pipesim.base.ops import Kind
from pipesim.base.types import FloatArray
from pipesim.batch.tables import device_tables, hop_tables, is_uniform, stage_costs
from pipesim.lower_bound import makespan_bound
from pipesim.pipeline.pipeline import Pipeline
from pipesim.schedules.order.schedule import Schedule


def makespan_bounds(schedule: Schedule, pipelines: Sequence[Pipeline]) -> FloatArray:
    """Return makespans [ms] that no order of these ops on these ranks can go below, array (K,).

    Those of `makespan_bound`, but for the rounding of sums in another order.
    """
    if not _is_simple(schedule, pipelines):
        return np.array([makespan_bound(schedule, pipe) for pipe in pipelines])
    rank_of, m = schedule.placement.table[0], schedule.microbatches
    speed, overhead = (x[:, rank_of] for x in device_tables(pipelines))
    times = {
        kind: stage_costs(schedule, pipelines, kind) / speed + overhead for kind in schedule.kinds
    }
    there, back = hop_tables(schedule, pipelines)
    f = times[Kind.F]
    head = _before(f, there)
    through = f.sum(axis=1) + there.sum(axis=1)
    if schedule.kinds == {Kind.F}:
        behind = _before(f[:, ::-1], there[:, ::-1])[:, ::-1]
        alone: FloatArray = np.maximum(_longest_rank(rank_of, head, m * f, behind), through)
        return alone
    i = times[Kind.I] if Kind.I in times else times[Kind.B]
    w = times.get(Kind.W, np.zeros_like(i))
    way_back = _before(i[:, ::-1], back[:, ::-1])[:, ::-1] + i
    path = (through[:, np.newaxis] + way_back + w).max(axis=1)
    ways = [
        _longest_rank(rank_of, head, m * (f + i + w), np.zeros_like(i)),
        _longest_rank(rank_of, head, m * (f + i), _before(i, back)),
        path,
    ]
    bound: FloatArray = np.maximum.reduce(ways)
    return bound


def _is_simple(schedule: Schedule, pipelines: Sequence[Pipeline]) -> bool:
    """Say whether every micro-batch goes one and the same way and takes the same times."""
    return (
        schedule.slices == 1
        and schedule.placement.directions == 1
        and schedule.kinds in ({Kind.F}, {Kind.F, Kind.B}, {Kind.F, Kind.I, Kind.W})
        and is_uniform(schedule, pipelines)
    )


def _before(times: FloatArray, hop: FloatArray) -> FloatArray:
    """Return the time through the stages before s, transfers included, array (K, stages)."""
    before = np.zeros_like(times)
    np.cumsum(times[:, :-1] + hop, axis=1, out=before[:, 1:])
    return before


def _longest_rank(
    rank_of: npt.NDArray[np.int32], head: FloatArray, work: FloatArray, tail: FloatArray
) -> FloatArray:
    """Return the largest, over ranks, of least head + all work + least tail."""
    longest = np.zeros(len(head))
    for rank in range(int(rank_of.max()) + 1):
        on = rank_of == rank
        total = head[:, on].min(axis=1) + work[:, on].sum(axis=1) + tail[:, on].min(axis=1)
        longest = np.maximum(longest, total)
    return longest
