"""The values that a config may hold, each checked strictly, with the place of every fault.

A number as text, 4.7 for a count, a NaN: each is a fault and never converted. A value with
faults is replaced by Bad, so that all faults of a config are found before any is reported.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NewType

from pipesim.base.checks import LEAST_RATE, MOST_BYTES, MOST_MS, is_number, shown
from pipesim.config.axes import read_axis
from pipesim.pipeline.recompute import MODES

Count = NewType("Count", int)  # a whole number of at least 1
Counts = NewType("Counts", object)  # a split: whole numbers of at least 0, or a method's name
Costs = NewType("Costs", object)  # a number, one a stage, or a row a stage
Amount = NewType("Amount", float)  # a number of at least 0
Flag = NewType("Flag", bool)
Zero = NewType("Zero", int)  # what replicas split among them: 0, 1, 2 or 3
Amounts = NewType("Amounts", object)  # a number of at least 0, or a list of them
Rate = NewType("Rate", float)  # a number above 0
Speeds = NewType("Speeds", object)  # a number above 0, or a list of them
SpeedRows = NewType("SpeedRows", object)  # or a list of lists of them
Size = NewType("Size", int)  # a whole number of at least 0
Sizes = NewType("Sizes", object)  # a whole number of at least 0, or a list of them
SignedSizes = NewType("SignedSizes", object)  # whole numbers that may be negative
Latencies = NewType("Latencies", object)  # amounts, or a table by rank pair
Bandwidth = NewType("Bandwidth", float)  # a number above 0, or none
Bandwidths = NewType("Bandwidths", object)  # numbers above 0 or none, or a table by rank pair
StageModes = NewType("StageModes", object)  # "none" or "full", or a list of them
LayerModes = NewType("LayerModes", object)  # a mode, one a stage, or a table by layers
Text = NewType("Text", str)
Axes = NewType("Axes", object)  # a table, key -> values; read as a list of axes

_PAIR = re.compile(r"\s*(\d+)\s*->\s*(\d+)\s*")
_LAYERS = re.compile(r"\s*(\d+)\s*(?:\.\.\s*(\d+)\s*)?")


Faults = list[tuple[str, str]]  # places inside a value, such as `[3]`, and what is wrong there


@dataclass(frozen=True)
class Bad:
    """The place of a value that cannot be used, until all faults of a config are known."""

    faults: tuple[tuple[str, str], ...]
    value: Any = None


MISSING: Any = Bad((("", "missing, but required"),))
NO_SPLIT: Any = Bad((("", 'missing; write split = "time", or what `pipesim split` finds'),))


def length(value: Any) -> int | None:
    """Return the length of a list, with faults in it or not; None if there is no list."""
    listed = value.value if isinstance(value, Bad) else value
    return len(listed) if isinstance(listed, list) and listed else None


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_none(value: Any) -> bool:
    """Return whether a value means none: null, or the text none, as TOML has no null."""
    return value is None or value == "none"


# Each kind of single value: a test, and the words for what is right.
AMOUNT = (lambda v: is_number(v) and 0 <= v <= MOST_MS, "a number from 0 to 10^15")
POSITIVE = (lambda v: is_number(v) and LEAST_RATE <= v <= MOST_MS, "a number from 10^-9 to 10^15")
SIZE = (
    lambda v: is_number(v) and 0 <= v <= MOST_BYTES and v == int(v),
    "a whole number from 0 to 10^15",
)
SIGNED = (
    lambda v: is_number(v) and abs(v) <= MOST_BYTES and v == int(v),
    "a whole number from -10^15 to 10^15",
)
COUNT = (lambda v: _is_whole(v) and 1 <= v <= 10**6, "a whole number from 1 to 10^6")
BANDWIDTH = (
    lambda v: is_none(v) or (is_number(v) and v >= LEAST_RATE),
    "a number of at least 10^-9, or none",
)
FLAG = (lambda v: isinstance(v, bool), "true or false")
ZERO = (lambda v: _is_whole(v) and 0 <= v <= 3, "0, 1, 2 or 3")
TEXT = (lambda v: isinstance(v, str), "a text in quotes")
LAYER_MODE = (lambda v: v in MODES, '"none", "selective" or "full"')
STAGE_MODE = (
    lambda v: v in ("none", "full"),
    '"none" or "full"; for a part give recompute_ms, stash_bytes and rebuilt_bytes',
)

Kind = tuple[Callable[[Any], bool], str]
Hook = Callable[[Any, type], Any]


def _check(value: Any, kind: Kind, place: str, faults: Faults) -> Any:
    test, words = kind
    if not test(value):
        faults.append((place, f"{shown(value)} is not {words}"))
    elif kind in (SIZE, SIGNED):
        return int(value)  # 2e9 is a whole number, too
    return None if kind is BANDWIDTH and is_none(value) else value


def _hook(check: Callable[[Any, Faults], Any]) -> Hook:
    """Return a hook that gives the result of a check, or Bad with the faults that it found."""

    def structure(value: Any, _: type) -> Any:
        faults: Faults = []
        checked = check(value, faults)
        return Bad(tuple(faults), value) if faults else checked

    return structure


def _one(kind: Kind) -> Hook:
    return _hook(lambda value, faults: _check(value, kind, "", faults))


def _one_or_each(kind: Kind, depth: int = 1) -> Hook:
    """Return a hook for one value, or nested lists of them down to some depth."""
    return _hook(lambda value, faults: _walk(value, kind, depth, "", faults))


def _walk(value: Any, kind: Kind, depth: int, place: str, faults: Faults) -> Any:
    if not isinstance(value, list) or depth == 0:
        return _check(value, kind, place, faults)
    if not value:
        faults.append((place, "is an empty list"))
    elif len({isinstance(item, list) for item in value}) > 1:
        faults.append((place, "mixes numbers and lists; give numbers only, or rows only"))
    elif isinstance(value[0], list) and len(lengths := {len(row) for row in value}) > 1:
        faults.append((place, f"has rows of different lengths: {sorted(lengths)}"))
    items = enumerate(value)
    return [_walk(item, kind, depth - 1, f"{place}[{i}]", faults) for i, item in items]


def _by_pair(kind: Kind) -> Hook:
    """Return a hook for one value, one a boundary, or a table such as {"0->1" = 0.5}."""

    def check(value: Any, faults: Faults) -> Any:
        if not isinstance(value, dict):
            return _walk(value, kind, 1, "", faults)
        pairs = {}
        for text, amount in value.items():
            place = f'."{text}"'
            match = _PAIR.fullmatch(str(text))
            if match is None:
                faults.append((place, 'is no pair of ranks; write "0->1"'))
                continue
            pair = int(match[1]), int(match[2])
            if pair in pairs:
                faults.append((place, "is given twice"))
            pairs[pair] = _check(amount, kind, place, faults)
        return pairs

    return _hook(check)


def _layer_modes(value: Any, faults: Faults) -> Any:
    """Return one mode, a mode a stage, or (layers, mode) for each row of {"0..15": mode}."""
    if not isinstance(value, dict):
        return _walk(value, LAYER_MODE, 1, "", faults)
    modes: list[tuple[range, Any]] = []
    for text, mode in value.items():
        place = f'."{text}"'
        match = _LAYERS.fullmatch(str(text))
        layers = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
        if not layers:
            faults.append((place, 'is no range of layers; write "0..15", or "3" for one'))
        if any(layers.start < other.stop and other.start < layers.stop for other, _ in modes):
            faults.append((place, "has layers that another range has, too"))
        modes.append((layers, _check(mode, LAYER_MODE, place, faults)))
    return tuple(modes)


def _split(value: Any, faults: Faults) -> Any:
    return value if isinstance(value, str) else _walk(value, SIZE, 1, "", faults)


def _table(value: Any, faults: Faults) -> Any:
    if not isinstance(value, dict):
        faults.append(("", f"{shown(value)} is not a table"))
    return value


def _axes(value: Any, faults: Faults) -> Any:
    if not isinstance(value, dict) or not value:
        faults.append(("", 'is no table of axes; write {"run.microbatches" = [4, 8]}'))
        return value
    axes = [read_axis(str(key), written, faults) for key, written in value.items()]
    keys = [key for axis in axes for key in axis.keys]
    for key in dict.fromkeys(key for key in keys if keys.count(key) > 1):
        faults.append((f'."{key}"', "is an axis twice"))
    return axes


HOOKS: dict[Any, Hook] = {
    Count: _one(COUNT),
    Counts: _hook(_split),
    Costs: _one_or_each(AMOUNT, depth=2),
    Amount: _one(AMOUNT),
    Amounts: _one_or_each(AMOUNT),
    Rate: _one(POSITIVE),
    Speeds: _one_or_each(POSITIVE),
    SpeedRows: _one_or_each(POSITIVE, depth=2),
    Flag: _one(FLAG),
    Zero: _one(ZERO),
    Size: _one(SIZE),
    Sizes: _one_or_each(SIZE),
    SignedSizes: _one_or_each(SIGNED),
    Latencies: _by_pair(AMOUNT),
    Bandwidth: _one(BANDWIDTH),
    Bandwidths: _by_pair(BANDWIDTH),
    StageModes: _one_or_each(STAGE_MODE),
    LayerModes: _hook(_layer_modes),
    Text: _one(TEXT),
    Axes: _hook(_axes),
    dict[str, Any]: _hook(_table),
}
