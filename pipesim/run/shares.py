"""Busy time -> shares of the makespan: bubbles, balance and filling of K runs; K = 1 is one run."""

import numpy as np

from pipesim.base.types import FloatArray

ROUNDING = 1e-12  # of the makespan; less idle time than this is rounding of sums


def idle_times(makespan: FloatArray, busy: FloatArray) -> FloatArray:
    """Return the idle time of every rank [ms], array (K, ranks): what the makespan leaves of busy.

    Parameters
    ----------
    makespan
        Array (K,) [ms].
    busy
        Array (K, ranks) [ms].
    """
    whole = makespan[:, np.newaxis]
    return np.where(whole - busy > ROUNDING * whole, whole - busy, 0.0)


def run_shares(makespan: FloatArray, span: FloatArray, busy: FloatArray) -> dict[str, FloatArray]:
    """Return bubbles, balance and filling by name, arrays (K,); NaN where nothing takes time.

    Bubble fraction: idle / (p x makespan). Bubble ratio: idle / busy, both summed over the ranks.
    Span bubble: 1 - sum of busy / (p x largest span of a rank). Balance: mean work / largest work
    of a rank; filling: largest work / makespan; balance x filling = 1 - bubble fraction.

    Parameters
    ----------
    makespan
        Array (K,) [ms].
    span
        First start to last end of every rank, array (K, ranks) [ms].
    busy
        Array (K, ranks) [ms].

    Examples
    --------
    >>> makespan, busy = np.array([57.0]), np.array([[24.0, 24.0, 24.0, 48.0]])
    >>> shares = run_shares(makespan, np.array([[57.0, 55.0, 53.0, 51.0]]), busy)
    >>> {name: round(float(share[0]), 4) for name, share in shares.items()}
    {'bubble_fraction': 0.4737, 'bubble_ratio': 0.9, 'span_bubble': 0.4737, 'balance': 0.625,
     'filling': 0.8421}
    """
    idle, ranks = idle_times(makespan, busy), busy.shape[1]
    total, most = busy.sum(axis=1), busy.max(axis=1)
    runs = makespan > 0  # nothing is idle in no time
    by_rank = ratio(idle, makespan[:, np.newaxis], nothing=0.0)
    longest = ranks * span.max(axis=1)
    return {
        "bubble_fraction": by_rank.sum(axis=1) / ranks,
        "bubble_ratio": np.where(runs, ratio(idle.sum(axis=1), total, nothing=np.nan), 0.0),
        "span_bubble": np.where(runs, 1 - ratio(total, longest, nothing=np.nan), 0.0),
        "balance": ratio(total / ranks, most, nothing=1.0),
        "filling": ratio(most, makespan, nothing=1.0),
    }


def ratio(part: FloatArray, whole: FloatArray, nothing: float) -> FloatArray:
    """Return part / whole, and something else where the whole is 0."""
    part, whole = np.broadcast_arrays(part, whole)
    quotient = np.full(part.shape, nothing)
    np.divide(part, whole, out=quotient, where=whole > 0)
    return quotient
