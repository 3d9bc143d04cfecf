"""Closed forms of the bubble fraction, idle / (p x makespan), of equal stages without transfers.

Symbols: p ranks, m micro-batches, v chunks a rank, k slices; F, I, W, B = I + W the times of the
ops of one stage (a chunk where a rank has several), T = F + B, F&B an overlapped pair.

With counts alone, where all ops of a rank follow one another once the pipeline is filled:

    one stage a rank         (p-1)/(m+p-1)
    slices                   (p-1)/(m k+p-1)
    chunks in a loop         x/(m v+x),     x = p-1 + (v-1) max(p-m, 0)

With times, x the time that a rank is idle; each within the range that its function states:

    ZB-H1                    x/(m T+x),     x = (p-1)(F+I) - (min(m, p)-1) min(I, W)
    ZB-H2                    x/(m T+x),     x = (p-1)(F + max(I-2W, 0))
    ZB-V                     x/(2m T+x),    x = (p-1) max(I, 2(I-W))
    interleaved, I and W     x/(m v T+x),   x = (p-1)(F + max(I-W, 0))
    Chimera                  x/(m T+x),     x = (p-2) B
    Hanayo                   x/(m v T+x),   x = (p-min(m, p)) v T + 2(min(m, p)-1) B
    DualPipe, DualPipeV      see `dualpipe_bubble`

Those of zero bubble differ from the published times, (p-1)(F+I-W) for ZB-H1: these are idle time
within the span of a rank, while the last rank starts (p-1)F after the first, which counts here.
All were found, or confirmed, by simulation, and a property test goes on doing so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipesim.base.ops import Kind
from pipesim.base.types import BoolArray, FloatArray
from pipesim.pipeline.cost_tables import cost_table, device_rates
from pipesim.pipeline.costs import op_ms, pair_cost
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.variants import bases
from pipesim.schedules.order.schedule import Schedule
from pipesim.schedules.slot_table import bubble_formula

TOLERANCE = 1e-12  # relative, at the end of a range: mean costs are rounded


class EqualTimes(NamedTuple):
    """Durations of ops on equal stages of K pipelines [ms]: arrays (K,), NaN without the cost.

    `pair` is that of an overlapped forward and backward.
    """

    forward: FloatArray
    backward: FloatArray
    input_grad: FloatArray
    weight_grad: FloatArray
    pair: FloatArray

    @property
    def split(self) -> FloatArray:
        """F + I + W."""
        return self.forward + self.input_grad + self.weight_grad


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedForm:
    """A formula of the bubble fraction of equal stages, and where it holds.

    Parameters
    ----------
    formula
        As text, in the symbols of this module.
    valid
        The range in which it holds, as text; empty if that is everywhere.
    of_counts
        The bubble fraction of an order, None outside of the range.
    of_times
        Instead, that of an order and its times on each of K pipelines, array (K,); NaN outside.
    """

    formula: str
    valid: str = ""
    of_counts: Callable[[Schedule], float | None] | None = None
    of_times: Callable[[Schedule, EqualTimes], FloatArray] | None = None


def equal_times(pipelines: Sequence[Pipeline]) -> EqualTimes:
    """Return how long ops take on K pipelines, each of equal stages on equal devices."""
    costs = {kind: _first_stage(pipelines, kind) for kind in (Kind.F, Kind.B, Kind.I, Kind.W)}
    overhead = device_rates(pipelines)[1][:, 0]
    shared = bases(pipelines)
    own = [np.nan if (x := pipe.stages[0].overlap_ms) is None else x for pipe in shared]
    factor = np.array([pipe.overlap_factor for pipe in shared])
    pair = pair_cost(np.array(own), 1.0, factor * (costs[Kind.F] + costs[Kind.B]))
    return EqualTimes(
        forward=op_ms(Kind.F, costs[Kind.F], 1.0, overhead),
        backward=op_ms(Kind.B, costs[Kind.B], 1.0, overhead),
        input_grad=op_ms(Kind.I, costs[Kind.I], 1.0, overhead),
        weight_grad=op_ms(Kind.W, costs[Kind.W], 1.0, overhead),
        pair=op_ms(Kind.F, pair, 1.0, overhead),
    )


def units_bubble(order: Schedule) -> float | None:
    """Return (p-1)/(m k+p-1) if one stage a rank runs k slices of equal time, else None."""
    if len(set(order.fractions)) > 1:
        return None
    return bubble_formula(order.ranks, order.microbatches * order.slices)


def looped_bubble(order: Schedule) -> float:
    """Return x/(m v+x), x = p-1 + (v-1) max(p-m, 0), of chunks that follow in a loop."""
    p, m, v = order.ranks, order.microbatches, order.stages // order.ranks
    idle = p - 1 + (v - 1) * max(p - m, 0)
    return idle / (m * v + idle)


def zb_h1_bubble(order: Schedule, times: EqualTimes) -> FloatArray:
    """Return the bubble of ZB-H1 for W <= F, and W <= I where m < p.

    With m >= p the first rank is idle for (p-1)(F+I-W), as published, or the last one for
    (p-1)F, as it starts so much later; with fewer the makespan is (m+p-1)(F+I) + W.
    """
    p, m = order.ranks, order.microbatches
    f, i, w = times.forward, times.input_grad, times.weight_grad
    idle = (p - 1) * (f + i) - (min(m, p) - 1) * np.minimum(i, w)
    valid = at_most(w, f) & (at_most(w, i) | (m >= p))
    return _share(idle, m * times.split, valid)


def zb_h2_bubble(order: Schedule, times: EqualTimes) -> FloatArray:
    """Return the bubble of ZB-H2 for W <= F and m >= 2p-1."""
    p, m = order.ranks, order.microbatches
    f, i, w = times.forward, times.input_grad, times.weight_grad
    idle = (p - 1) * (f + np.maximum(i - 2 * w, 0.0))
    return _share(idle, m * times.split, at_most(w, f) & (m >= 2 * p - 1))


def zb_v_bubble(order: Schedule, times: EqualTimes) -> FloatArray:
    """Return the bubble of ZB-V for F <= I, W <= I and m >= 2p-1."""
    p, m = order.ranks, order.microbatches
    f, i, w = times.forward, times.input_grad, times.weight_grad
    idle = (p - 1) * np.maximum(i, 2 * (i - w))
    valid = at_most(f, i) & at_most(w, i) & (m >= 2 * p - 1)
    return _share(idle, 2 * m * times.split, valid)


def interleaved_zb_bubble(order: Schedule, times: EqualTimes) -> FloatArray:
    """Return the bubble of interleaved 1F1B with a split backward for W <= F and m >= p."""
    p, m, v = order.ranks, order.microbatches, order.stages // order.ranks
    f, i, w = times.forward, times.input_grad, times.weight_grad
    idle = (p - 1) * (f + np.maximum(i - w, 0.0))
    return _share(idle, m * v * times.split, at_most(w, f) & (m >= p))


def dualpipe_bubble(order: Schedule, times: EqualTimes) -> FloatArray:
    """Return the bubble of DualPipe and DualPipeV for F >= I, F&B >= F, F&B >= B, no overhead.

    A rank has n = m forwards and backwards, 2m with DualPipeV. Those in pairs save D = T - F&B
    each: n-2h-1 on the ranks in the middle (the last one), h = p/2 (p), which are idle for
    (h-1)(F&B+F-W-min(I, W)), as in DeepSeek's table; n-(5h-1)/2-1/h on the mean of all ranks.
    """
    half, passes = order.stages // 2, order.microbatches * order.stages // order.ranks
    f, b, i, w, pair = times
    saved = f + b - pair
    work = passes * (f + b) - (passes - (5 * half - 1) / 2 - 1 / half) * saved
    idle = (half - 1) * (pair + f - w - np.minimum(i, w))
    makespan = passes * (f + b) - (passes - 2 * half - 1) * saved + idle
    # An overhead is paid twice by I and W, and once by B: then the phases do not fit.
    valid = at_most(i, f) & at_most(f, pair) & at_most(b, pair) & at_most(i + w, b)
    return _share(np.maximum(makespan - work, 0.0), work, valid)


def chimera_bubble(order: Schedule, times: EqualTimes) -> FloatArray:
    """Return the bubble of Chimera for B >= F and m a multiple of p."""
    p, m = order.ranks, order.microbatches
    f, b = times.forward, times.backward
    return _share((p - 2) * b, m * (f + b), at_most(f, b) & (m % p == 0))


def hanayo_bubble(order: Schedule, times: EqualTimes) -> FloatArray:
    """Return the bubble of Hanayo for B >= 2F, and m <= p or a single wave, v = 2.

    The first micro-batch takes p v T, and each further one of the first p adds 2B; the next p
    follow without a gap.
    """
    p, m, v = order.ranks, order.microbatches, order.stages // order.ranks
    f, b = times.forward, times.backward
    first = min(m, p)
    idle = (p - first) * v * (f + b) + 2 * (first - 1) * b
    return _share(idle, m * v * (f + b), at_most(2 * f, b) & (m <= p or v == 2))


def at_most(less: FloatArray, more: FloatArray) -> BoolArray:
    """Return where one time is at most another, but for rounding; not where one is NaN."""
    return np.asarray(less <= more * (1 + TOLERANCE))


def _share(idle: FloatArray, work: FloatArray, valid: BoolArray) -> FloatArray:
    """Return idle / (idle + work), NaN outside of the range and where nothing takes time."""
    share = np.full(np.shape(idle), np.nan)
    np.divide(idle, idle + work, out=share, where=valid & (idle + work > 0))
    return share


def _first_stage(pipelines: Sequence[Pipeline], kind: Kind) -> FloatArray:
    table = cost_table(pipelines, kind)
    return np.full(len(pipelines), np.nan) if table is None else table[:, 0, 0]
