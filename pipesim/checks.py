"""Checks of single values, each with an error that names the value."""

import math
from numbers import Real
from operator import index
from typing import Any


def check_count(name: str, value: Any) -> int:
    """Return the value as an int, if it is a whole number of at least 1.

    Raises
    ------
    ValueError
        If it is anything else.
    """
    try:
        count = index(value)
    except TypeError:
        count = 0
    if count < 1 or isinstance(value, bool):
        raise ValueError(f"{name} = {value!r} is not a whole number of at least 1")
    return count


def check_amount(name: str, value: Any) -> None:
    """Check that a value is a finite number of at least 0.

    Raises
    ------
    ValueError
        If it is anything else.
    """
    if not is_number(value):
        raise ValueError(f"{name} = {value!r} is not a number")
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} = {value!r} is not a finite number of at least 0")


def is_number(value: Any) -> bool:
    """Say whether a value is a real number; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)
