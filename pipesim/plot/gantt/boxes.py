"""Rectangles of a Gantt chart, as matplotlib draws many of them at once."""

import numpy as np

from pipesim.base.types import FloatArray


def corners(start: FloatArray, end: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Return rectangles from start to end [ms] and from low to high, array (boxes, 4 corners, 2).

    Examples
    --------
    >>> corners(*(np.array([side]) for side in (0.0, 3.0, 0.5, 1.5))).tolist()
    [[[0.0, 0.5], [0.0, 1.5], [3.0, 1.5], [3.0, 0.5]]]
    """
    places = [(start, low), (start, high), (end, high), (end, low)]
    return np.stack([np.stack(place, axis=-1) for place in places], axis=1)
