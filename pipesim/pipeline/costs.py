"""What an op and a message take: each rule stands here, and nowhere else.

    an op          cost / speed + overhead, both of the rank's device
    a slice        its fraction of the cost / speed + overhead
    B              I + W, where the backward is given in its two parts
    rebuilding     a part of B or I; or an op R, which pays its overhead, but 0 without a cost
    a pair         the overlap time of its forward's stage, or the overlap factor x both costs;
                   then as any op
    a message      bytes / bandwidth on the wire, a slice an equal part of them; then the latency

Costs may be numbers, or arrays of any shape that broadcast: over stages, micro-batches, pipelines.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pipesim.base.ops import Kind
from pipesim.base.types import FloatArray

BYTES_A_MS = 1e6  # of 1 GB/s


def kind_cost(
    kind: Kind, given: Callable[[Kind], FloatArray | None], *, rebuilt: bool = False
) -> FloatArray | None:
    """Return the cost of one kind of op [ms], None where it is not given.

    Parameters
    ----------
    kind
        F, B, I, W or R.
    given
        Kind -> the cost that a stage gives for it [ms]; of R the time to rebuild.
    rebuilt
        Whether R rebuilds what F has not kept: then B and I take no time for that.
    """
    if kind == Kind.B and given(Kind.I) is not None:
        first, rest = (kind_cost(part, given, rebuilt=rebuilt) for part in (Kind.I, Kind.W))
        return None if first is None or rest is None else first + rest
    cost = given(kind)
    rebuilding = given(Kind.R) if kind in (Kind.B, Kind.I) and not rebuilt else None
    return cost if cost is None or rebuilding is None else cost + rebuilding


def on_device(cost: npt.ArrayLike, speed: npt.ArrayLike) -> FloatArray:
    """Return the time that work takes on a device, cost/speed [ms]."""
    return np.asarray(cost, dtype=np.float64) / np.asarray(speed, dtype=np.float64)


def op_ms(
    kind: Kind, cost: npt.ArrayLike, speed: npt.ArrayLike, overhead: npt.ArrayLike
) -> FloatArray:
    """Return the durations of ops of one kind, cost/speed + overhead [ms].

    An R with nothing to rebuild takes no time at all.

    Examples
    --------
    >>> op_ms(Kind.F, [2.0, 0.0], speed=2.0, overhead=0.5)
    array([1.5, 0.5])
    >>> op_ms(Kind.R, [2.0, 0.0], speed=2.0, overhead=0.5)
    array([1.5, 0. ])
    """
    overheads = np.asarray(overhead, dtype=np.float64)
    if kind == Kind.R:
        overheads = np.where(np.asarray(cost) > 0, overheads, 0.0)
    return on_device(cost, speed) + overheads


def pair_cost(own: FloatArray, factor: float, both: FloatArray) -> FloatArray:
    """Return the costs of overlapped pairs [ms].

    Parameters
    ----------
    own
        The overlap time of the forward's stage [ms]; NaN where none is given.
    factor
        The share of the cost of `both` ops that a pair takes elsewhere.
    both
        What the two ops cost one after the other [ms].
    """
    return np.where(np.isnan(own), factor * both, own)


def wire_ms(size_bytes: float, bandwidth_gb_s: float | None) -> float:
    """Return the time of a message on the wire, bytes/bandwidth [ms]; 0 without a bandwidth.

    Examples
    --------
    >>> wire_ms(50e6, bandwidth_gb_s=25.0), wire_ms(50e6, bandwidth_gb_s=None)
    (2.0, 0.0)
    """
    return 0.0 if bandwidth_gb_s is None else size_bytes / (bandwidth_gb_s * BYTES_A_MS)
