"""Lower bounds of the makespan that hold for every order of the same ops on the same ranks.

Each adds up what must come one after the other: the way of a micro-batch to a rank, all the
work of that rank, and the way on from it. Where a rank holds several stages, its way is that of
its nearest stage. Compare with a relative tolerance of 1e-12: sums in another order round
differently.

All times are arrays (..., stages, units), a unit being a micro-batch or a slice of it; the leading
axes are any number of pipelines, and a bound has one value for each. Hops are the times of a
message over each stage boundary, arrays (stages - 1,) or (..., stages - 1, units); `rank_of` is
the rank of every stage and unit, array (stages, units). A column stands for as many micro-batches
as are `alike`.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pipesim.base.ops import Kind
from pipesim.base.types import FloatArray
from pipesim.engine.op_costs import duration_table, is_uniform, message_tables, pair_durations
from pipesim.pipeline.pipeline import Pipeline
from pipesim.schedules.order.dataflow import second_of_pair
from pipesim.schedules.order.schedule import Schedule

MOST_TIMES = 2**22  # durations of a kind that are worked out together


def makespan_bounds(schedule: Schedule, pipelines: Sequence[Pipeline]) -> FloatArray:
    """Return makespans [ms] that no order of these ops on these ranks can go below, array (K,).

    Micro-batches, or their slices where there are any, stay whole or split and overlapped as
    they are in this schedule.
    """
    units = schedule.microbatches * schedule.slices
    together = max(1, MOST_TIMES // (schedule.stages * units))
    blocks = range(0, len(pipelines), together)
    return np.concatenate([_bounds(schedule, pipelines[b : b + together]) for b in blocks])


def _bounds(schedule: Schedule, pipelines: Sequence[Pipeline]) -> FloatArray:
    alike = _all_alike(schedule, pipelines)
    times = {kind: duration_table(schedule, pipelines, kind, one=alike) for kind in schedule.kinds}
    there, back = _hops(schedule, pipelines, alike)
    if alike:
        rank_of, count = schedule.placement.table[:1].T, schedule.microbatches
    else:
        rank_of, count = np.repeat(schedule.rank_table, schedule.slices, axis=1), 1
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
    forward, first, saved = _overlapped(schedule, pipelines, times[Kind.F], first)
    return split_lower_bound(
        forward, first, rest, there, back, rank_of, saved, rebuild, alike=count
    )


def forward_lower_bound(
    forward: npt.ArrayLike,
    forward_hop: npt.ArrayLike,
    rank_of: npt.ArrayLike | None = None,
    alike: int = 1,
) -> FloatArray:
    """Return a lower bound for any order of forwards.

    A rank cannot start before a micro-batch has come through the stages before it, and after
    its last F a micro-batch has to go through those behind it.

    Examples
    --------
    >>> float(forward_lower_bound([[1, 1], [2, 2]], [0.5]))
    5.5
    """
    f, hop = _array(forward), _hop(forward_hop)
    head, tail = _before(f, hop), _after(f, hop)
    path = (_total(f) + _total(hop)).max(axis=-1)
    bound: FloatArray = np.maximum(_longest_rank(head, alike * f, tail, rank_of), path)
    return bound


def fused_lower_bound(
    forward: npt.ArrayLike,
    backward: npt.ArrayLike,
    forward_hop: npt.ArrayLike,
    backward_hop: npt.ArrayLike,
    rank_of: npt.ArrayLike | None = None,
) -> FloatArray:
    """Return a lower bound for any order with whole backwards.

    With one stage a rank, max over s of head_s + m t_s + tail_s, where head_s and tail_s are the
    way of the fastest micro-batch to stage s and back; and the longest way of one micro-batch.

    Examples
    --------
    >>> float(fused_lower_bound([[1, 1], [2, 2]], [[2, 2], [4, 4]], [0.5], [0.5]))
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
) -> FloatArray:
    """Return a lower bound for any order with split backwards, or with some split and some whole.

    The largest of: the way to a rank and all its work; the way to it, all its F and I, and the
    way back; the longest way of a micro-batch up to I on a stage, and its W there. A whole
    backward counts as an I without a W. What overlapped pairs save of their two ops' times is
    taken off the work. What R takes to `rebuild` is work, too, and on the last stage no micro-batch
    gets round it.

    Examples
    --------
    >>> float(split_lower_bound([[1], [2]], [[1], [2]], [[1], [2]], [0.5], [0.5]))
    8.0
    """
    f, i, w = _array(forward), _array(input_grad), _array(weight_grad)
    once = _array(saved)
    r = np.broadcast_to(_array(rebuild), f.shape)
    there, back = _hop(forward_hop), _hop(backward_hop)
    head, tail = _before(f, there), _before(i, back)
    way_back = _after(i, back) + i  # from the last stage down to I of s
    way_there = (_total(f) + _total(there) + r[..., -1, :])[..., np.newaxis, :]
    path = (way_there + way_back + w).max(axis=(-2, -1))
    work = _longest_rank(head, alike * (f + r + i + w - once), np.zeros_like(tail), rank_of)
    way = _longest_rank(head, alike * (f + r + i - once), tail, rank_of)
    bound: FloatArray = np.maximum(np.maximum(work, way), path)
    return bound


def _all_alike(schedule: Schedule, pipelines: Sequence[Pipeline]) -> bool:
    """Say whether all micro-batches run the same ops, go the same way and take the same times."""
    kinds = schedule.kinds
    same_ops = not ({Kind.B, Kind.I} <= kinds or Kind.R in kinds)
    one_way = schedule.slices == schedule.placement.directions == 1
    return same_ops and one_way and is_uniform(schedule, pipelines)


def _hops(
    schedule: Schedule, pipelines: Sequence[Pipeline], one: bool
) -> tuple[FloatArray, FloatArray]:
    """Return the time of a message over each boundary, there and back, (K, stages - 1, units)."""
    wire, latency = message_tables(schedule, pipelines, one=one)
    message = np.repeat(wire + latency, schedule.slices, axis=3)
    return message[:, 0, :-1], message[:, 1, 1:]


def _overlapped(
    schedule: Schedule, pipelines: Sequence[Pipeline], forward: FloatArray, first: FloatArray
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
    together = pair_durations(schedule, pipelines, second)
    for ops in (second - 1, second):
        stage, unit = schedule.stage[ops], schedule.unit[ops]
        is_forward = schedule.kind[ops] == Kind.F
        for table, chosen in ((forward, is_forward), (first, ~is_forward)):
            table[:, stage[chosen], unit[chosen]] = together[:, chosen]
        saved[:, stage[is_forward], unit[is_forward]] = together[:, is_forward]
    return forward, first, saved


def _longest_rank(
    head: FloatArray, work: FloatArray, tail: FloatArray, rank_of: npt.ArrayLike | None
) -> FloatArray:
    """Return the largest, over ranks, of least head + all work + least tail."""
    shape = head.shape[-2:]
    ranks = np.arange(shape[0])[:, np.newaxis] if rank_of is None else np.asarray(rank_of)
    if ranks.ndim == 1:
        ranks = ranks[:, np.newaxis]
    where = np.broadcast_to(ranks, shape).ravel()
    order = np.argsort(where, kind="stable")
    starts = np.flatnonzero(np.diff(where[order], prepend=-1))

    def by_rank(times: FloatArray, add_up: np.ufunc) -> FloatArray:
        flat = times.reshape(*times.shape[:-2], -1)
        together: FloatArray = add_up.reduceat(np.take(flat, order, axis=-1), starts, axis=-1)
        return together

    whole = by_rank(head, np.minimum) + by_rank(work, np.add) + by_rank(tail, np.minimum)
    return np.asarray(whole.max(axis=-1), dtype=np.float64)


def _before(times: FloatArray, hop: FloatArray) -> FloatArray:
    """Return each micro-batch's time through the stages before s, transfers included."""
    before = np.zeros_like(times)
    np.cumsum(times[..., :-1, :] + hop, axis=-2, out=before[..., 1:, :])
    return before


def _after(times: FloatArray, hop: FloatArray) -> FloatArray:
    """Return each micro-batch's time through the stages behind s, transfers included."""
    return _before(times[..., ::-1, :], hop[..., ::-1, :])[..., ::-1, :]


def _total(times: FloatArray) -> FloatArray:
    """Return the sum over stages, added up in their order however many pipelines there are."""
    if not times.shape[-2]:
        return np.zeros((*times.shape[:-2], times.shape[-1]))
    return np.asarray(np.cumsum(times, axis=-2)[..., -1, :], dtype=np.float64)


def _array(values: npt.ArrayLike) -> FloatArray:
    return np.asarray(values, dtype=np.float64)


def _hop(values: npt.ArrayLike) -> FloatArray:
    hop = _array(values)
    return hop[:, np.newaxis] if hop.ndim == 1 else hop
