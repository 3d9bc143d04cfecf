"""Checks of single values, each with an error that names the value."""

from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral, Real
from operator import index
from typing import Any

MOST_MS = 1e15  # times and sizes up to here add up without overflow or loss to speak of
MOST_BYTES = 10**15
LEAST_RATE = 1e-9  # least speed and bandwidth, which are divided by


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
    """Check that a value is a number from 0 to 10^15.

    Raises
    ------
    ValueError
        If it is anything else.
    """
    if not is_number(value):
        raise ValueError(f"{name} = {value!r} is not a number")
    if not 0 <= value <= MOST_MS:
        raise ValueError(f"{name} = {shown(value)} is not a number from 0 to 10^15")


def check_size(name: str, value: Any) -> None:
    """Check that a value is a whole number of bytes, from 0 to 10^15.

    Raises
    ------
    ValueError
        If it is anything else.
    """
    if not isinstance(value, Integral) or not 0 <= int(value) <= MOST_BYTES:
        raise ValueError(f"{name} = {value!r} is not a whole number from 0 to 10^15")


def hint(name: object, known: Iterable[str], also: str = "") -> str:
    """Return the hint at known names for an unknown one: the one most like it, or all of them.

    Examples
    --------
    >>> hint("1F1BB", ["gpipe", "1f1b"]), hint("best", ["gpipe", "1f1b"], also="or a file")
    ('did you mean 1f1b?', 'known: gpipe, 1f1b, or a file')
    """
    names = list(known)
    close = get_close_matches(str(name).lower(), names, 1)
    listed = ", ".join([*names, *filter(None, [also])])
    return f"did you mean {close[0]}?" if close else f"known: {listed or 'none'}"


def is_number(value: Any) -> bool:
    """Return whether a value is a real number; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def shown(value: Any, width: int = 60) -> str:
    """Return a value as text for an error message, cut if it is long."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deep, or an int of thousands of digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= width else f"{text[:width]}..."
