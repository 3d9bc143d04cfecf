"""Makespans in closed form that simulation is held to, with their ranges and sources.

Symbols: p stages, one a rank; m micro-batches; f, b the time of F and B on a stage, t = f + b;
c the one-way latency of a hop, during which nobody is occupied. All times in one unit.

    GPipe, 1F1B, equal stages      (m+p-1) t            bubble (p-1)/(m+p-1)
    forward only, any stages       sum f + (m-1) max f + (p-1) c
    GPipe, any stages              sum t + (m-1)(max f + max b) + 2(p-1) c
    1F1B, equal stages, latency    (m+p-1) t + 2c[(p-1) + (m-1) - ceil((m-1)/p)]
    1F1B, twice the warm-up        (m+p-1) t + 2(p-1) c

Each raises a ValueError outside its range. Bounds that hold for every order: `run/lower_bound.py`.
"""

from collections.abc import Sequence

import numpy as np

from pipesim.base.checks import check_amount, check_count
from pipesim.base.types import FloatArray

TOLERANCE = 1e-12  # relative; sums in another order round differently


def forward_only_makespan(
    forward: Sequence[float], microbatches: int, latency: float = 0.0
) -> float:
    """Return sum f + (m-1) max f + (p-1) c, the makespan of a forward pipeline.

    Exact for any stages: identical jobs in a permutation flow shop.

    Parameters
    ----------
    forward
        Time of F on each stage.
    microbatches
        Number of micro-batches m.
    latency
        Of one hop, the same for all.

    Raises
    ------
    ValueError
        If there is no stage, or a value is negative, NaN or infinite.

    Examples
    --------
    >>> forward_only_makespan([412, 391, 413, 439], microbatches=11)
    6045.0
    """
    f, m = _times("forward", forward), check_count("microbatches", microbatches)
    return float(f.sum() + (m - 1) * f.max() + (len(f) - 1) * _latency(latency))


def gpipe_makespan(
    forward: Sequence[float], backward: Sequence[float], microbatches: int, latency: float = 0.0
) -> float:
    """Return sum t + (m-1)(max f + max b) + 2(p-1) c, the makespan of GPipe.

    Exact for any stages and either order of the backwards (two flow shops, one after the
    other). With equal stages it is (m+p-1) t + 2(p-1) c: Huang et al., GPipe, 2019.

    Parameters
    ----------
    forward, backward
        Time of F and B on each stage.
    microbatches
        Number of micro-batches m.
    latency
        Of one hop, the same for all.

    Raises
    ------
    ValueError
        If there is no stage, the lengths differ, or a value is negative, NaN or infinite.

    Examples
    --------
    >>> gpipe_makespan([1, 1, 1, 2], [2, 2, 2, 4], microbatches=8)
    57.0
    """
    f, b = _both(forward, backward)
    m, c = check_count("microbatches", microbatches), _latency(latency)
    return float(f.sum() + b.sum() + (m - 1) * (f.max() + b.max()) + 2 * (len(f) - 1) * c)


def one_f_one_b_makespan(
    forward: Sequence[float], backward: Sequence[float], microbatches: int, latency: float = 0.0
) -> float:
    """Return the makespan of 1F1B: equal stages with any small latency, or one slow stage.

    Equal stages: (m+p-1) t + 2c[(p-1) + (m-1) - ceil((m-1)/p)], for c <= 2 min(f, b); without
    latency Narayanan et al., Megatron-LM, 2021. The latency term shows that 1F1B pays for
    transfers in its steady state, not in the fill alone. One slow stage, all others equal and
    no latency: the bound `one_f_one_b_lower_bound` is met if the slow stage is the last, or if
    it is slower by a factor between 1 + f/b and 1 + b/f (of the others' f and b; 1.5 to 3 at
    b = 2f). Both were found and checked by simulation (p up to 12, m up to 40).

    Parameters
    ----------
    forward, backward
        Time of F and B on each stage.
    microbatches
        Number of micro-batches m.
    latency
        Of one hop, the same for all.

    Raises
    ------
    ValueError
        Outside of that range.

    Examples
    --------
    >>> one_f_one_b_makespan([1] * 4, [2] * 4, microbatches=8, latency=0.5)
    41.0
    >>> one_f_one_b_makespan([1, 1, 2, 1], [2, 2, 4, 2], microbatches=8)
    55.0
    """
    f, b = _both(forward, backward)
    p, m, c = len(f), check_count("microbatches", microbatches), _latency(latency)
    if np.all(f == f[0]) and np.all(b == b[0]):
        if p > 1 and c > 2 * min(f[0], b[0]):
            raise ValueError(f"latency {c:g} is above 2 min(f, b) = {2 * min(f[0], b[0]):g}")
        hops = 2 * ((p - 1) + (m - 1) - -(-(m - 1) // p)) if p > 1 else 0
        return float((m + p - 1) * (f[0] + b[0]) + hops * c)
    if c == 0 and _one_is_slow(f, b):
        return one_f_one_b_lower_bound(forward, backward, microbatches)
    raise ValueError(
        "no closed form: 1F1B has one for equal stages, and without latency for one stage that "
        "is slower than all others by one factor in F and B, if it is the last or that factor "
        "is between 1 + f/b and 1 + b/f"
    )


def eager_one_f_one_b_makespan(
    forward: Sequence[float], backward: Sequence[float], microbatches: int, latency: float = 0.0
) -> float:
    """Return (m+p-1) t + 2(p-1) c, the makespan of 1F1B with warm-up 2(p-1-s).

    Equal stages, c <= min(f, b) / 2. Found and checked by simulation (p up to 12, m up to 40).

    Parameters
    ----------
    forward, backward
        Time of F and B on each stage.
    microbatches
        Number of micro-batches m.
    latency
        Of one hop, the same for all.

    Raises
    ------
    ValueError
        Outside of that range.

    Examples
    --------
    >>> eager_one_f_one_b_makespan([1] * 4, [2] * 4, microbatches=8, latency=0.5)
    36.0
    """
    f, b = _both(forward, backward)
    p, m, c = len(f), check_count("microbatches", microbatches), _latency(latency)
    if not (np.all(f == f[0]) and np.all(b == b[0])):
        raise ValueError("no closed form: the stages are not equal")
    if p > 1 and c > min(f[0], b[0]) / 2:
        raise ValueError(f"latency {c:g} is above min(f, b) / 2 = {min(f[0], b[0]) / 2:g}")
    return float((m + p - 1) * (f[0] + b[0]) + 2 * (p - 1) * c)


def one_f_one_b_lower_bound(
    forward: Sequence[float], backward: Sequence[float], microbatches: int
) -> float:
    """Return a lower bound of 1F1B's makespan that knows its warm-up, without latency.

    max over s of sum_{i<s} f_i + max(w f_s, f_s + sum_{i>s} t_i) + (m-w) f_s + m b_s
    + sum_{i<s} b_i, with w = min(m, p-s). Holds for any stages; met with one slow stage.
    Found and checked by simulation (6000 random cases).

    Raises
    ------
    ValueError
        If there is no stage, the lengths differ, or a value is negative, NaN or infinite.

    Examples
    --------
    >>> one_f_one_b_lower_bound([2, 1, 1, 1], [4, 2, 2, 2], microbatches=8)
    51.0
    """
    f, b = _both(forward, backward)
    p, m = len(f), check_count("microbatches", microbatches)
    bounds = []
    for s in range(p):
        w = min(m, p - s)
        turn = max(w * f[s], f[s] + (f + b)[s + 1 :].sum())
        bounds.append(f[:s].sum() + turn + (m - w) * f[s] + m * b[s] + b[:s].sum())
    return float(max(bounds))


def alpa_makespan(total: Sequence[float], microbatches: int) -> float:
    """Return sum t + (m-1) max t, the estimate by which Alpa ranks partitions.

    Zheng et al., Alpa, 2022, equation 2. GPipe's makespan if one stage has both the longest F
    and the longest B; an upper bound of 1F1B's where every stage has the same ratio b/f.

    Raises
    ------
    ValueError
        If there is no stage, or a value is negative, NaN or infinite.

    Examples
    --------
    >>> alpa_makespan([6, 3, 3, 3], microbatches=8)
    57.0
    """
    t, m = _times("total", total), check_count("microbatches", microbatches)
    return float(t.sum() + (m - 1) * t.max())


def _one_is_slow(f: FloatArray, b: FloatArray) -> bool:
    """Say whether all stages are equal but one, slower by a factor for which the bound is met."""
    slow = int(np.argmax(f + b))
    other_f, other_b = np.delete(f, slow), np.delete(b, slow)
    if not (np.all(other_f == other_f[0]) and np.all(other_b == other_b[0])):
        return False
    if not (other_f[0] > 0 and other_b[0] > 0):
        return False
    factor, ratio = f[slow] / other_f[0], other_b[0] / other_f[0]
    if abs(b[slow] / other_b[0] - factor) > TOLERANCE * factor:
        return False
    return slow == len(f) - 1 or bool(1 + 1 / ratio <= factor <= 1 + ratio)


def _times(name: str, values: Sequence[float]) -> FloatArray:
    if len(values) == 0:
        raise ValueError(f"{name} is empty; give one time a stage")
    for stage, value in enumerate(values):
        check_amount(f"{name}[{stage}]", value)
    return np.asarray(values, dtype=np.float64)


def _both(forward: Sequence[float], backward: Sequence[float]) -> tuple[FloatArray, FloatArray]:
    f, b = _times("forward", forward), _times("backward", backward)
    if len(f) != len(b):
        raise ValueError(f"{len(f)} forward times, but {len(b)} backward times")
    return f, b


def _latency(value: float) -> float:
    check_amount("latency", value)
    return value
