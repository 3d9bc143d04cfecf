"""Least squares from 0 up, relative errors, and the text of a fit."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from pipesim.base.checks import is_number, shown
from pipesim.base.text import text_table
from pipesim.base.types import FloatArray

FITS = 0.02  # relative: step times are not measured more exactly than that


def not_negative(columns: FloatArray, goal: FloatArray) -> FloatArray:
    """Return the least-squares solution x >= 0 of columns @ x = goal, from all sets of zeros."""
    size = columns.shape[1]
    found = np.zeros(size)
    least = float(goal @ goal)
    for count in range(1, size + 1):
        for kept in combinations(range(size), count):
            free = np.linalg.lstsq(columns[:, kept], goal)[0]
            off = columns[:, kept] @ free - goal
            if free.min() >= 0 and off @ off < least:
                least = float(off @ off)
                found = np.zeros(size)
                found[list(kept)] = free
    return found


def largest_error(measured: npt.ArrayLike, fitted: npt.ArrayLike) -> float:
    """Return the largest relative error of fitted values."""
    return float(np.abs(np.divide(fitted, measured) - 1).max())


def checked_time(value: float) -> float:
    """Return a measured time as a float, checked to be above 0.

    Raises
    ------
    ValueError
        If it is no number above 0.
    """
    if not is_number(value) or not 0 < value < np.inf:
        raise ValueError(f"step_ms = {shown(value)} is not a time above 0")
    return float(value)


def fit_text(
    head: str,
    labels: Sequence[str],
    measured: Sequence[float],
    fitted: Sequence[float],
    note: str,
) -> str:
    """Return a fit as text: its values, then a table of measured and fitted times."""
    columns = {
        "run": list(labels),
        "measured ms": [f"{time:#.4g}" for time in measured],
        "fitted ms": [f"{time:#.4g}" for time in fitted],
        "error": [
            f"{round(b / a - 1, 3) + 0.0:+.1%}" for a, b in zip(measured, fitted, strict=True)
        ],
    }
    table = text_table(columns, left=("run",))
    return f"{head}\n{table}" + (f"\n{note}" if note else "")
