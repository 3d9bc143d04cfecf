"""Lower bounds of the makespan that hold for every order of the same ops on the same ranks.

Each adds up what must come one after the other: the way of a micro-batch to a rank, all the
work of that rank, and the way on from it. Where a rank holds several stages, its way is that of
its nearest stage. Compare with a relative tolerance of 1e-12: sums in another order round
differently.

All times are arrays (stages, micro-batches); hops, the time of a transfer over each stage
boundary, arrays (stages - 1,) or (stages - 1, micro-batches); `rank_of` names the rank of every
stage, or of every stage and micro-batch, by default the stage's own.
"""

import numpy as np
import numpy.typing as npt

from pipesim.base.types import FloatArray


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
