"""The values that a config may hold, each checked strictly, with the place of every fault.

A number as text, 4.7 for a count, a NaN: each is a fault and never converted.
"""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NewType

Count = NewType("Count", int)  # a whole number of at least 1
MaybeCount = NewType("MaybeCount", object)  # a count, or none
Counts = NewType("Counts", object)  # a split: whole numbers of at least 0, or a method's name
Costs = NewType("Costs", object)  # a number, one a stage, or a row a stage
Amounts = NewType("Amounts", object)  # a number of at least 0, or a list of them
Speeds = NewType("Speeds", object)  # a number above 0, or a list of them
Sizes = NewType("Sizes", object)  # a whole number of at least 0, or a list of them
Latencies = NewType("Latencies", object)  # amounts, or a table by rank pair
Bandwidths = NewType("Bandwidths", object)  # numbers above 0 or none, or a table by rank pair
Text = NewType("Text", str)
Axes = NewType("Axes", object)  # key -> list, or {linspace = [a, b, n]}, or {geomspace = ...}

_PAIR = re.compile(r"\s*(\d+)\s*->\s*(\d+)\s*")


class Faults(ValueError):
    """Faults of one value, each with its place inside it, such as `[3]`."""

    def __init__(self, faults: list[tuple[str, str]]) -> None:
        self.faults = faults
        super().__init__("; ".join(f"{place} {text}" for place, text in faults))


@contextmanager
def _collecting() -> Iterator[list[tuple[str, str]]]:
    faults: list[tuple[str, str]] = []
    yield faults
    if faults:
        raise Faults(faults)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_none(value: Any) -> bool:
    """Say whether a value stands for nothing: null, or the text none, as TOML has no null."""
    return value is None or value == "none"


# Each kind of single value: a test, and the words for what is right.
AMOUNT = (lambda v: _is_number(v) and math.isfinite(v) and v >= 0, "a finite number >= 0")
POSITIVE = (lambda v: _is_number(v) and math.isfinite(v) and v > 0, "a finite number > 0")
SIZE = (lambda v: _is_whole(v) and v >= 0, "a whole number >= 0")
COUNT = (lambda v: _is_whole(v) and v >= 1, "a whole number >= 1")
MAYBE_COUNT = (lambda v: is_none(v) or COUNT[0](v), "a whole number >= 1, or none")
BANDWIDTH = (lambda v: is_none(v) or (_is_number(v) and v > 0), "a number > 0, or none")
TEXT = (lambda v: isinstance(v, str), "a text in quotes")

Kind = tuple[Callable[[Any], bool], str]


def _check(value: Any, kind: Kind, place: str, faults: list[tuple[str, str]]) -> Any:
    test, words = kind
    if not test(value):
        faults.append((place, f"{value!r} is not {words}"))
    return None if is_none(value) else value


def _one(kind: Kind) -> Callable[[Any, type], Any]:
    def structure(value: Any, _: type) -> Any:
        with _collecting() as faults:
            return _check(value, kind, "", faults)

    return structure


def _one_or_each(kind: Kind, depth: int = 1) -> Callable[[Any, type], Any]:
    """Return a hook for one value, or nested lists of them down to some depth."""

    def walk(value: Any, left: int, place: str, faults: list[tuple[str, str]]) -> Any:
        if isinstance(value, list) and left > 0:
            if not value:
                faults.append((place, "is an empty list"))
            return [walk(v, left - 1, f"{place}[{i}]", faults) for i, v in enumerate(value)]
        return _check(value, kind, place, faults)

    def structure(value: Any, _: type) -> Any:
        with _collecting() as faults:
            value = walk(value, depth, "", faults)
            if isinstance(value, list) and value:
                _check_shape(value, faults)
        return value

    return structure


def _check_shape(value: list[Any], faults: list[tuple[str, str]]) -> None:
    if len({isinstance(item, list) for item in value}) > 1:
        faults.append(("", "mixes numbers and lists; give one number a stage, or one row"))
    elif isinstance(value[0], list):
        lengths = sorted({len(row) for row in value})
        if len(lengths) > 1:
            faults.append(("", f"has rows of different lengths: {lengths}"))


def _by_pair(kind: Kind) -> Callable[[Any, type], Any]:
    """Return a hook for one value, one a boundary, or a table such as {"0->1" = 0.5}."""
    plain = _one_or_each(kind)

    def structure(value: Any, cls: type) -> Any:
        if not isinstance(value, dict):
            return plain(value, cls)
        with _collecting() as faults:
            pairs = {}
            for text, amount in value.items():
                match = _PAIR.fullmatch(str(text))
                if match is None:
                    faults.append((f'."{text}"', 'is no pair of ranks; write "0->1"'))
                else:
                    pair = int(match[1]), int(match[2])
                    pairs[pair] = _check(amount, kind, f'."{text}"', faults)
        return pairs

    return structure


def _split(value: Any, cls: type) -> Any:
    return value if isinstance(value, str) else _one_or_each(SIZE)(value, cls)


def _axes(value: Any, _: type) -> Any:
    with _collecting() as faults:
        if not isinstance(value, dict) or not value:
            faults.append(("", 'is no table of axes; write {"run.microbatches" = [4, 8]}'))
            return value
        return {key: _axis(axis, f'."{key}"', faults) for key, axis in value.items()}


def _axis(axis: Any, place: str, faults: list[tuple[str, str]]) -> list[Any]:
    import numpy as np

    if isinstance(axis, list) and axis:
        return axis
    if isinstance(axis, dict) and len(axis) == 1:
        ((name, ends),) = axis.items()
        makers: dict[str, Callable[..., Any]] = {
            "linspace": np.linspace,
            "geomspace": np.geomspace,
        }
        if name in makers and isinstance(ends, list) and len(ends) == 3:
            first, last, number = ends
            if _is_number(first) and _is_number(last) and COUNT[0](number):
                try:
                    return _tidy(makers[name](first, last, number), _is_whole(first + last))
                except ValueError as error:
                    faults.append((place, f"{axis!r}: {error}"))
                    return []
    wanted = "a list of values, {linspace = [from, to, number]} or {geomspace = [...]}"
    faults.append((place, f"{axis!r} is not {wanted}"))
    return []


def _tidy(points: Any, whole: bool) -> list[float]:
    """Return points as numbers; between whole ends those that are whole serve as counts too."""
    rounded = [round(float(point)) for point in points]
    return [
        near if whole and math.isclose(point, near, rel_tol=1e-12) else float(point)
        for point, near in zip(points, rounded, strict=True)
    ]


HOOKS: dict[Any, Callable[[Any, type], Any]] = {
    Count: _one(COUNT),
    MaybeCount: _one(MAYBE_COUNT),
    Counts: _split,
    Costs: _one_or_each(AMOUNT, depth=2),
    Amounts: _one_or_each(AMOUNT),
    Speeds: _one_or_each(POSITIVE),
    Sizes: _one_or_each(SIZE),
    Latencies: _by_pair(AMOUNT),
    Bandwidths: _by_pair(BANDWIDTH),
    Text: _one(TEXT),
    Axes: _axes,
}
