"""The lower bound of a schedule on a pipeline: no order of its ops on its ranks is faster."""

import numpy as np

from pipesim.base.ops import Kind
from pipesim.base.types import FloatArray
from pipesim.bounds import forward_lower_bound, split_lower_bound
from pipesim.engine.op_costs import all_alike, duration_table, message_tables, pair_durations
from pipesim.pipeline.pipeline import Pipeline
from pipesim.schedules.order.dataflow import has_pairs, second_of_pair
from pipesim.schedules.order.schedule import Schedule


def makespan_bound(schedule: Schedule, pipe: Pipeline) -> float:
    """Return a makespan [ms] that no order of these ops on these ranks can go below.

    Micro-batches, or their slices where there are any, stay whole or split and overlapped as
    they are in this schedule.
    """
    alike = all_alike(schedule, pipe) and not _differs(schedule)
    times = {kind: duration_table(schedule, pipe, kind, one=alike) for kind in schedule.kinds}
    slices = schedule.slices
    there, back = _hops(schedule, pipe, alike)
    if alike:
        rank_of, count = schedule.placement.table[:1].T, schedule.microbatches
    else:
        rank_of, count = np.repeat(schedule.rank_table, slices, axis=1), 1
    if Kind.B not in times and Kind.I not in times:
        return forward_lower_bound(times[Kind.F], there, rank_of, alike=count)
    first, rest = times.get(Kind.I), times.get(Kind.W)
    if first is None or rest is None:
        first, rest = times[Kind.B], np.zeros_like(times[Kind.B])
    elif Kind.B in times:
        whole = schedule.numbers()[Kind.B] >= 0
        first, rest = np.where(whole, times[Kind.B], first), np.where(whole, 0.0, rest)
    rebuild = np.zeros_like(first)
    if Kind.R in times:
        rebuild = np.where(schedule.numbers()[Kind.R] >= 0, times[Kind.R], 0.0)
    forward, first, saved = _overlapped(schedule, pipe, times[Kind.F], first)
    return split_lower_bound(
        forward, first, rest, there, back, rank_of, saved, rebuild, alike=count
    )


def _differs(schedule: Schedule) -> bool:
    """Say whether micro-batches may have other ops: in pairs, whole or split, rebuilt or not."""
    kinds = schedule.kinds
    return has_pairs(schedule) or {Kind.B, Kind.I} <= kinds or Kind.R in kinds


def _hops(schedule: Schedule, pipe: Pipeline, one: bool) -> tuple[FloatArray, FloatArray]:
    """Return the time of a message over each boundary, there and back, (stages - 1, units)."""
    wire, latency = message_tables(schedule, pipe, one=one)
    message = np.repeat(wire + latency, schedule.slices, axis=2)
    return message[0, :-1], message[1, 1:]


def _overlapped(
    schedule: Schedule, pipe: Pipeline, forward: FloatArray, first: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the times with those of overlapped pairs put in, and what pairs count twice.

    Both ops of a pair take its time, from the start of the one to the end of the other; on the
    rank it counts once.
    """
    saved = np.zeros_like(forward)
    second = np.flatnonzero(second_of_pair(schedule)).astype(np.int32)
    if not second.size:
        return forward, first, saved
    forward, first = forward.copy(), first.copy()
    together = pair_durations(schedule, pipe, second)
    for ops in (second - 1, second):
        place = schedule.stage[ops], schedule.unit[ops]
        is_forward = schedule.kind[ops] == Kind.F
        for table, chosen in ((forward, is_forward), (first, ~is_forward)):
            table[place[0][chosen], place[1][chosen]] = together[chosen]
        saved[place[0][is_forward], place[1][is_forward]] = together[is_forward]
    return forward, first, saved
