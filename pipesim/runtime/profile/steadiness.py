"""Steadiness of layer times: how far the quartiles of repeats are from their median."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

STEADY = 0.25  # times with quartiles this far apart, relative to the median, can still be trusted
NEGLIGIBLE = 0.01  # and so can those closer than this share of the time of all layers


def unsteady_layers(quartiles: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return whether the times of each layer are too unsteady to be trusted, array (layers,).

    Examples
    --------
    >>> unsteady_layers(np.array([[9.0, 5.0], [10.0, 10.0], [11.0, 12.0]]))
    array([False,  True])
    """
    low, median, high = quartiles
    unsteady: npt.NDArray[np.bool_] = (high - low > STEADY * median) & (
        high - low > NEGLIGIBLE * median.sum()
    )
    return unsteady


def quartile_text(quartiles: npt.NDArray[np.float64], unsteady: bool) -> str:
    """Return the distances of a layer's outer quartiles from the median as text, in per cent.

    Examples
    --------
    >>> quartile_text(np.array([9.0, 10.0, 12.0]), False)
    '-10.0% +20.0%'
    """
    low, median, high = quartiles
    text = f"{low / median - 1:+.1%} {high / median - 1:+.1%}" if median else "+0.0% +0.0%"
    return f"{text} unsteady" if unsteady else text


def unsteady_text(
    names: Sequence[str],
    quartiles: npt.NDArray[np.float64],
    unsteady: npt.NDArray[np.bool_],
) -> str:
    """Return the warning of unsteady layers: which, how unsteady, and what to do about it."""
    which = ", ".join(
        f"{names[number]} ({quartile_text(quartiles[:, number], False)})"
        for number in np.flatnonzero(unsteady).tolist()
    )
    return (
        f"layer times are unsteady, with quartiles far from the median for {which}: close other "
        "programs, use fewer threads, or more repeats"
    )
