"""The sections of a config as dataclasses, and reading a plain table into them, strictly."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from pipesim.config.values import (
    HOOKS,
    Amounts,
    Axes,
    Bandwidths,
    Costs,
    Count,
    Counts,
    Faults,
    Latencies,
    MaybeCount,
    Sizes,
    Speeds,
    Text,
    is_none,
)

if TYPE_CHECKING:
    from cattrs import Converter
    from cattrs.errors import BaseValidationError

T = TypeVar("T")
Fault = tuple[str, str]  # the path of a key, and what is wrong with it


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSection:
    """What to run."""

    schedule: Text
    microbatches: Count
    options: dict[str, Any] = field(default_factory=dict)
    engine: Text = Text("simpy")
    protocol: Text = Text("eager")
    queue_capacity: MaybeCount | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StagesSection:
    """What each stage costs."""

    forward_ms: Costs
    backward_ms: Costs | None = None
    input_grad_ms: Costs | None = None
    weight_grad_ms: Costs | None = None
    count: Count | None = None
    stash_bytes: Sizes = Sizes(0)
    param_bytes: Sizes = Sizes(0)
    output_bytes: Sizes = Sizes(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersSection:
    """Instead of stages: layers from a file, and how to split them."""

    file: Text
    split: Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesSection:
    """What runs the ranks."""

    ranks: Count | None = None
    placement: Text = Text("linear")
    speed: Speeds = Speeds(1.0)
    overhead_ms: Amounts = Amounts(0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksSection:
    """What connects the ranks."""

    latency_ms: Latencies = Latencies(0.0)
    bandwidth_gb_s: Bandwidths | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSection:
    """Which keys to vary, and how they go together."""

    axes: Axes
    mode: Text = Text("product")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sections:
    """A config as it is written."""

    run: RunSection
    stages: StagesSection | None = None
    layers: LayersSection | None = None
    devices: DevicesSection = field(default_factory=DevicesSection)
    links: LinksSection = field(default_factory=LinksSection)
    sweep: SweepSection | None = None
    title: Text = Text("")
    source: Text = Text("")


def structure(table: object, section: type[T], path: str = "") -> tuple[T | None, list[Fault]]:
    """Return a plain table as a section and no faults, or None and every fault in it.

    Parameters
    ----------
    table
        What a file holds under `path`.
    section
        One of the dataclasses above.
    path
        The path of its key, for the faults.
    """
    from cattrs.errors import BaseValidationError

    try:
        return _converter().structure(table, section), []
    except BaseValidationError as error:
        return None, list(_walk(error, path))


@cache
def _converter() -> "Converter":
    from cattrs import Converter

    converter = Converter(forbid_extra_keys=True, detailed_validation=True)
    for value_type, hook in HOOKS.items():
        converter.register_structure_hook_func(_is_for(value_type), hook)
        converter.register_structure_hook_func(_is_for(value_type | None), _or_none(hook))
    converter.register_structure_hook_func(lambda cls: cls == dict[str, Any], _table)
    return converter


def _is_for(value_type: Any) -> Callable[[Any], bool]:
    return lambda cls: bool(cls == value_type)


def _or_none(hook: Callable[[Any, type], Any]) -> Callable[[Any, type], Any]:
    """Return the hook of a key that may be absent, which null and "none" stand for, too."""
    return lambda value, cls: None if is_none(value) else hook(value, cls)


def _table(value: Any, _: type) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Faults([("", f"{value!r} is not a table")])
    return value


def _walk(error: "BaseValidationError", path: str) -> Iterator[tuple[str, str]]:
    """Walk cattrs' tree of errors and yield the path of each faulty key, and what is wrong."""
    from cattrs.errors import AttributeValidationNote, BaseValidationError, ForbiddenExtraKeysError

    for inner in error.exceptions:
        notes = getattr(inner, "__notes__", [])
        names = [note.name for note in notes if isinstance(note, AttributeValidationNote)]
        place = ".".join(filter(None, [path, *names]))
        if isinstance(inner, BaseValidationError):
            yield from _walk(inner, place)
        elif isinstance(inner, ForbiddenExtraKeysError):
            known = [entry.name for entry in fields(inner.cl)]
            for key in sorted(map(str, inner.extra_fields)):
                close = get_close_matches(key, known, 1)
                hint = f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"
                yield ".".join(filter(None, [place, key])), f"unknown key{hint}"
        elif isinstance(inner, Faults):
            yield from ((f"{place}{where}", text) for where, text in inner.faults)
        elif isinstance(inner, KeyError):
            yield place or str(inner.args[0]), "missing, but required"
        else:
            yield place or "the config", "is not a table with keys"
