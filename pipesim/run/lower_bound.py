"""Lower bounds of the makespan that hold for every order of the same ops on the same ranks.

Each adds up what must come one after the other: the way of a micro-batch to a rank, all the
work of that rank, and the way on from it. Where a rank holds several stages, its way is that of
its nearest stage. Compare with a relative tolerance of 1e-12: sums in another order round
differently.

All times are arrays (stages, micro-batches); hops, the time of a transfer over each stage
boundary, arrays (stages - 1,) or (stages - 1, micro-batches); `rank_of` names the rank of every
stage, or of every stage and micro-batch, by default the stage's own.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pipesim.base.ops import Kind
from pipesim.base.types import FloatArray
from pipesim.engine.op_costs import all_alike, duration_table, message_tables, pair_durations
from pipesim.pipeline.pipeline import Pipeline
from pipesim.run.many_costs import device_tables, hop_tables, is_uniform, stage_costs
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
    head = _before_each(f, there)
    through = f.sum(axis=1) + there.sum(axis=1)
    if schedule.kinds == {Kind.F}:
        behind = _before_each(f[:, ::-1], there[:, ::-1])[:, ::-1]
        alone: FloatArray = np.maximum(_longest_rank_each(rank_of, head, m * f, behind), through)
        return alone
    i = times[Kind.I] if Kind.I in times else times[Kind.B]
    w = times.get(Kind.W, np.zeros_like(i))
    way_back = _before_each(i[:, ::-1], back[:, ::-1])[:, ::-1] + i
    path = (through[:, np.newaxis] + way_back + w).max(axis=1)
    ways = [
        _longest_rank_each(rank_of, head, m * (f + i + w), np.zeros_like(i)),
        _longest_rank_each(rank_of, head, m * (f + i), _before_each(i, back)),
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


def _before_each(times: FloatArray, hop: FloatArray) -> FloatArray:
    """Return the time through the stages before s, transfers included, array (K, stages)."""
    before = np.zeros_like(times)
    np.cumsum(times[:, :-1] + hop, axis=1, out=before[:, 1:])
    return before


def _longest_rank_each(
    rank_of: npt.NDArray[np.int32], head: FloatArray, work: FloatArray, tail: FloatArray
) -> FloatArray:
    """Return the largest, over ranks, of least head + all work + least tail."""
    longest = np.zeros(len(head))
    for rank in range(int(rank_of.max()) + 1):
        on = rank_of == rank
        total = head[:, on].min(axis=1) + work[:, on].sum(axis=1) + tail[:, on].min(axis=1)
        longest = np.maximum(longest, total)
    return longest


def forward_lower_bound(
    forward: npt.ArrayLike,
    forward_hop: npt.ArrayLike,
    rank_of: npt.ArrayLike | None = None,
    alike: int = 1,
) -> float:
    """Return a lower bound for any order of forwards.

    A rank cannot start before a micro-batch has come through the stages before it, and after
    its last F a micro-batch has to go through those behind it. Each column stands for so many
    micro-batches that are `alike`.

    Examples
    --------
    >>> forward_lower_bound([[1, 1], [2, 2]], [0.5])
    5.5
    """
    f, hop = _array(forward), _array(forward_hop)
    head, tail = _before(f, hop), _before(f[::-1], hop[::-1])[::-1]
    path = (f.sum(axis=0) + _total(hop)).max()
    return float(max(_longest_rank(head, alike * f, tail, rank_of), path))


def fused_lower_bound(
    forward: npt.ArrayLike,
    backward: npt.ArrayLike,
    forward_hop: npt.ArrayLike,
    backward_hop: npt.ArrayLike,
    rank_of: npt.ArrayLike | None = None,
) -> float:
    """Return a lower bound for any order with whole backwards.

    With one stage a rank, max over s of head_s + m t_s + tail_s, where head_s and tail_s are the
    way of the fastest micro-batch to stage s and back; and the longest way of one micro-batch.

    Examples
    --------
    >>> fused_lower_bound([[1, 1], [2, 2]], [[2, 2], [4, 4]], [0.5], [0.5])
    16.0
    """
    nothing = np.zeros_like(_array(backward))
    return split_lower_bound(forward, backward, nothing, forward_hop, backward_hop, rank_of)


def split_lower_bound(
    forward: npt.ArrayLike,
    input_grad: npt.ArrayLike,
    weight_grad: npt.ArrayLike,
    forward_hop: npt.ArrayLike,
    backward_hop: npt.ArrayLike,
    rank_of: npt.ArrayLike | None = None,
    saved: npt.ArrayLike = 0.0,
    rebuild: npt.ArrayLike = 0.0,
    alike: int = 1,
) -> float:
    """Return a lower bound for any order with split backwards, or with some split and some whole.

    The largest of: the way to a rank and all its work; the way to it, all its F and I, and the
    way back; the longest way of a micro-batch up to I on a stage, and its W there. A whole
    backward counts as an I without a W. What overlapped pairs save of their two ops' times is
    taken off the work. What R takes to `rebuild` is work, too, and on the last stage no micro-batch
    gets round it. Each column stands for so many micro-batches that are `alike`.

    Examples
    --------
    >>> split_lower_bound([[1], [2]], [[1], [2]], [[1], [2]], [0.5], [0.5])
    8.0
    """
    f, i, w = _array(forward), _array(input_grad), _array(weight_grad)
    once = _array(saved)
    r = np.broadcast_to(_array(rebuild), f.shape)
    there, back = _array(forward_hop), _array(backward_hop)
    head, tail = _before(f, there), _before(i, back)
    way_back = _before(i[::-1], back[::-1])[::-1] + i  # from the last stage down to I of s
    path = (f.sum(axis=0) + _total(there) + r[-1] + way_back + w).max()
    return float(
        max(
            _longest_rank(head, alike * (f + r + i + w - once), np.zeros_like(tail), rank_of),
            _longest_rank(head, alike * (f + r + i - once), tail, rank_of),
            path,
        )
    )


def _longest_rank(
    head: FloatArray, work: FloatArray, tail: FloatArray, rank_of: npt.ArrayLike | None
) -> float:
    """Return the largest, over ranks, of least head + all work + least tail."""
    ranks = np.arange(len(head)) if rank_of is None else np.asarray(rank_of)
    if ranks.ndim == 1:
        ranks = ranks[:, np.newaxis]
    where = np.broadcast_to(ranks, head.shape).ravel()
    totals = np.bincount(where, weights=work.ravel())
    for way in (head, tail):
        least = np.full(len(totals), np.inf)
        np.minimum.at(least, where, way.ravel())
        totals = totals + least
    return float(totals.max())


def _before(times: FloatArray, hop: FloatArray) -> FloatArray:
    """Return each micro-batch's time through the stages before s, transfers included."""
    steps = times[:-1] + (hop if hop.ndim == 2 else hop[:, np.newaxis])
    return np.concatenate([np.zeros((1, times.shape[1])), np.cumsum(steps, axis=0)])


def _total(hop: FloatArray) -> FloatArray:
    return np.asarray(hop.sum(axis=0), dtype=np.float64)


def _array(values: npt.ArrayLike) -> FloatArray:
    return np.asarray(values, dtype=np.float64)
