"""Lower bounds of the makespan that hold for every order of the ops on the same stages.

Each adds up what must come one after the other: the way of a micro-batch to a stage, all the
work of that stage, and the way back from it. Compare with a relative tolerance of 1e-12: sums
in another order round differently. One stage a rank; where ranks hold several, they still hold.
"""

import numpy as np
import numpy.typing as npt

from pipesim.arrays import FloatArray


def forward_lower_bound(forward: npt.ArrayLike, forward_hop: npt.ArrayLike) -> float:
    """Return a lower bound for the makespan of any order of forwards, one stage a rank.

    Stage s cannot start before a micro-batch has come through the stages before it, and after
    its last F a micro-batch has to go through those behind it.

    Parameters
    ----------
    forward
        Time of F, array (stages, micro-batches).
    forward_hop
        Time of a transfer over each stage boundary, array (stages - 1,).
    """
    f = np.asarray(forward, dtype=np.float64)
    hop = np.asarray(forward_hop, dtype=np.float64)
    head = _before(f, hop).min(axis=1)
    tail = _before(f[::-1], hop[::-1])[::-1].min(axis=1)
    path = f.sum(axis=0).max() + hop.sum()
    return float(max((head + f.sum(axis=1) + tail).max(), path))


def fused_lower_bound(
    forward: npt.ArrayLike,
    backward: npt.ArrayLike,
    forward_hop: npt.ArrayLike,
    backward_hop: npt.ArrayLike,
) -> float:
    """Return a lower bound for any order with whole backwards, one stage a rank.

    max over s of head_s + m t_s + tail_s, where head_s and tail_s are the way of the fastest
    micro-batch to stage s and back; and the longest way of one micro-batch.

    Parameters
    ----------
    forward, backward
        Time of F and B, arrays (stages, micro-batches).
    forward_hop, backward_hop
        Time of a transfer over each stage boundary in either direction, arrays (stages - 1,).

    Examples
    --------
    >>> fused_lower_bound([[1, 1], [2, 2]], [[2, 2], [4, 4]], [0.5], [0.5])
    16.0
    """
    f, b = np.asarray(forward, dtype=np.float64), np.asarray(backward, dtype=np.float64)
    there = np.asarray(forward_hop, dtype=np.float64)
    back = np.asarray(backward_hop, dtype=np.float64)
    head, tail = _before(f, there).min(axis=1), _before(b, back).min(axis=1)
    path = (f + b).sum(axis=0).max() + there.sum() + back.sum()
    return float(max((head + (f + b).sum(axis=1) + tail).max(), path))


def split_lower_bound(
    forward: npt.ArrayLike,
    input_grad: npt.ArrayLike,
    weight_grad: npt.ArrayLike,
    forward_hop: npt.ArrayLike,
    backward_hop: npt.ArrayLike,
) -> float:
    """Return a lower bound for any order with split backwards, one stage a rank.

    The largest, over s, of: the way to stage s and all its work; the way to it, all its F and
    I, and the way back; the longest way of a micro-batch up to I on stage s, and its W.

    Parameters
    ----------
    forward, input_grad, weight_grad
        Time of F, I and W, arrays (stages, micro-batches).
    forward_hop, backward_hop
        Time of a transfer over each stage boundary in either direction, arrays (stages - 1,).
    """
    f, i, w = (np.asarray(x, dtype=np.float64) for x in (forward, input_grad, weight_grad))
    there = np.asarray(forward_hop, dtype=np.float64)
    back = np.asarray(backward_hop, dtype=np.float64)
    head, tail = _before(f, there).min(axis=1), _before(i, back).min(axis=1)
    all_work = head + (f + i + w).sum(axis=1)
    to_input_grad = head + (f + i).sum(axis=1) + tail
    way_back = _before(i[::-1], back[::-1])[::-1] + i  # from the last stage down to I of s
    path = (f.sum(axis=0) + there.sum() + way_back + w).max()
    return float(max(all_work.max(), to_input_grad.max(), path))


def _before(times: FloatArray, hop: FloatArray) -> FloatArray:
    """Return each micro-batch's time through the stages before s, transfers included."""
    steps = times[:-1] + hop[:, np.newaxis]
    return np.concatenate([np.zeros((1, times.shape[1])), np.cumsum(steps, axis=0)])
