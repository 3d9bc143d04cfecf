"""The axes of a sweep, and the forms in which their values are written.

    [sweep.axes]
    "run.schedule" = ["gpipe", "1f1b"]                       the values themselves
    "links.latency_ms" = {linspace = [0, 1, 11]}             from, to, how many
    "run.microbatches" = {geomspace = [4, 64, 5]}
    "stages.forward_ms[3]" = {uniform = [1, 2], draws = 100, seed = 1}       from, to
    "stages.backward_ms" = {normal = [2, 0.1], draws = 100, size = 4}        mean, deviation
    "stages.input_grad_ms" = {lognormal = [1, 0.2], draws = 100, size = 4}   likewise, of the values
    "stages.forward_ms[3],stages.backward_ms[3]" = [[1, 2], [2, 4]]          several keys as one
    imbalance = {spread = [0, 0.1, 0.3], draws = 100}        see `pipesim.studies.sweep.imbalance`

With `size` each draw is a list of that length, one value a stage for example. Draw number n depends
on (seed, key, n) alone: not on the order of the axes, nor on the number of draws. The seed is
0 by default. Values that their key does not allow, such as negative costs, stay as they are drawn.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np

from pipesim.base.checks import is_number, shown

Faults: TypeAlias = list[tuple[str, str]]

SPACES = ("linspace", "geomspace")
LAWS: dict[str, Callable[[np.random.Generator, float, float, int], Any]] = {
    "uniform": lambda random, low, high, size: random.uniform(low, high, size),
    "normal": lambda random, mean, deviation, size: random.normal(mean, deviation, size),
    "lognormal": lambda random, mean, deviation, size: _lognormal(random, mean, deviation, size),
}
IMBALANCE = "imbalance"
FACTOR_LAWS = ("lognormal", "uniform")
MOST_DRAWS = 10**6
MOST_UNIFORM = 1 / math.sqrt(3)  # beyond it a uniform factor would be negative at times
MOST_SPREAD = 1e3
WANTED = (
    "a list of values, {linspace = [from, to, number]}, {geomspace = [...]}, or draws such as "
    "{uniform = [from, to], draws = 100, seed = 1}, {normal = [mean, deviation], ...}, "
    "{lognormal = [mean, deviation], ...}"
)
WANTED_IMBALANCE = (
    "{stage = 3, factor = [1.0, 2.0]} or {spread = [0.0, 0.3], draws = 100, seed = 1, "
    'law = "lognormal"}'
)


@dataclass(frozen=True, slots=True)
class Values:
    """An axis with its values written out: `rows`, each with one value for each of `keys`."""

    keys: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class Draws:
    """An axis of random values: `draws` samples of a law, or with `size` lists of samples."""

    key: str
    law: str
    first: float
    second: float
    draws: int
    seed: int = 0
    size: int | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The column of the axis."""
        return (self.key,)

    @property
    def rows(self) -> tuple[tuple[Any, ...], ...]:
        """The rows of the axis: one value, or one list of values, a draw."""
        entropy = self.seed, crc32(self.key.encode())
        values = []
        for number in range(self.draws):
            random = np.random.default_rng(np.random.SeedSequence((*entropy, number)))
            drawn = LAWS[self.law](random, self.first, self.second, self.size or 1)
            values.append((drawn.tolist() if self.size else float(drawn[0]),))
        return tuple(values)


@dataclass(frozen=True, slots=True)
class Imbalance:
    """The axis that makes stages unequal: some factors for some stages, or random ones for all."""

    stages: tuple[int, ...] = ()
    factors: tuple[float, ...] = ()
    spreads: tuple[float, ...] = ()
    draws: int = 1
    seed: int = 0
    law: str = "lognormal"

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of the axis."""
        kinds = ("spread", "draw") if self.spreads else ("stage", "factor")
        return tuple(f"{IMBALANCE}.{kind}" for kind in kinds)

    @property
    def rows(self) -> tuple[tuple[Any, ...], ...]:
        """The rows of the axis: values of both columns, the second varying faster."""
        slow: Sequence[Any] = self.spreads or self.stages
        fast: Sequence[Any] = range(self.draws) if self.spreads else self.factors
        return tuple((a, b) for a in slow for b in fast)


Axis: TypeAlias = Values | Draws | Imbalance


def read_axis(key: str, written: Any, faults: Faults) -> Axis:
    """Return the axis under a key; its faults are added to `faults`, each with its place."""
    place = f'."{key}"'
    nothing = Values((key,), ())
    if key == IMBALANCE:
        return _imbalance(written, place, faults) or nothing
    if isinstance(written, list) and written:
        return _listed(key, written, place, faults)
    if isinstance(written, dict) and "," not in key:
        if len(written) == 1 and next(iter(written)) in SPACES:
            points = _spaced(written, place, faults)
            return nothing if points is None else Values((key,), tuple((x,) for x in points))
        drawn = _draws(key, written)
        if drawn is not None:
            return drawn
    faults.append((place, f"{shown(written)} is not {WANTED}"))
    return nothing


def _listed(key: str, written: list[Any], place: str, faults: Faults) -> Values:
    """Return the axis of listed values: of one key, or of several keys with one list each."""
    keys = tuple(part.strip() for part in key.split(","))
    if len(keys) == 1:
        return Values(keys, tuple((value,) for value in written))
    good = len(written) == len(keys) and all(isinstance(v, list) and v for v in written)
    if not good or len({len(values) for values in written}) > 1:
        wanted = f"{len(keys)} lists of the same length, one a key"
        faults.append((place, f"{shown(written)} is not {wanted}"))
        return Values(keys, ())
    return Values(keys, tuple(zip(*written, strict=True)))


def _spaced(written: Any, place: str, faults: Faults) -> list[float] | None:
    """Return evenly spaced values; None, with a fault added, if `written` gives none."""
    ((name, ends),) = written.items()
    good = isinstance(ends, list) and len(ends) == 3 and all(map(is_number, ends[:2]))
    if not (good and _is_count(ends[2])):
        faults.append((place, f"{shown(written)} is not {WANTED}"))
        return None
    first, last, count = ends
    try:
        return _tidy(getattr(np, name)(first, last, count), _is_whole(first + last))
    except ValueError as error:
        faults.append((place, f"{name} from {first!r} to {last!r}: {error}"))
        return None


def _tidy(points: Any, whole: bool) -> list[float]:
    """Return points as numbers; if both ends are whole, whole points are ints, to be counts."""
    rounded = [round(float(point)) for point in points]
    return [
        near if whole and math.isclose(point, near, rel_tol=1e-12) else float(point)
        for point, near in zip(points, rounded, strict=True)
    ]


def _draws(key: str, written: dict[str, Any]) -> Draws | None:
    """Return the axis of random values in a table; None if it gives none."""
    law = next((name for name in LAWS if name in written), None)
    if law is None or not written.keys() <= {law, "draws", "seed", "size"}:
        return None
    ends, size = written[law], written.get("size")
    draws, seed = written.get("draws", 0), written.get("seed", 0)
    if not (isinstance(ends, list) and len(ends) == 2 and all(map(is_number, ends))):
        return None
    first, second = map(float, ends)
    fits = first <= second if law == "uniform" else second >= 0
    if law == "lognormal":
        fits = fits and first > 0
    if not (fits and _is_count(draws) and _is_seed(seed) and (size is None or _is_count(size))):
        return None
    return Draws(key, law, first, second, draws, seed, size)


def _lognormal(random: np.random.Generator, mean: float, deviation: float, size: int) -> Any:
    sigma = math.sqrt(math.log1p((deviation / mean) ** 2))
    return random.lognormal(math.log(mean) - sigma**2 / 2, sigma, size)


def _imbalance(written: Any, place: str, faults: Faults) -> Imbalance | None:
    """Return the axis of unequal stages; None, with a fault added, if `written` gives none."""
    table = written if isinstance(written, dict) else {}
    if table.keys() == {"stage", "factor"}:
        stages, factors = _numbers(table["stage"]), _numbers(table["factor"])
        if stages and factors and all(map(_is_seed, stages)) and min(factors) >= 0:
            return Imbalance(stages=tuple(map(int, stages)), factors=tuple(factors))
    elif "spread" in table and table.keys() <= {"spread", "draws", "seed", "law"}:
        spreads, law = _numbers(table["spread"]), table.get("law", FACTOR_LAWS[0])
        draws, seed = table.get("draws", 1), table.get("seed", 0)
        good = spreads and law in FACTOR_LAWS and _is_count(draws) and _is_seed(seed)
        if good and law == "uniform" and max(spreads) > MOST_UNIFORM:
            faults.append((place, 'law = "uniform" takes spreads up to 1/sqrt(3) = 0.577...'))
            return None
        if good and 0 <= min(spreads) <= max(spreads) <= MOST_SPREAD:
            return Imbalance(spreads=tuple(spreads), draws=draws, seed=seed, law=law)
    faults.append((place, f"{shown(written)} is not {WANTED_IMBALANCE}"))
    return None


def _numbers(written: Any) -> list[float]:
    """Return a number, a list of numbers or evenly spaced ones as a list; empty for others."""
    if isinstance(written, dict) and len(written) == 1 and next(iter(written)) in SPACES:
        return _spaced(written, "", []) or []
    values = written if isinstance(written, list) else [written]
    return values if all(map(is_number, values)) else []


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_whole(value) and 1 <= value <= MOST_DRAWS


def _is_seed(value: Any) -> bool:
    return _is_whole(value) and value >= 0
