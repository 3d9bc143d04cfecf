"""The sections of a config as dataclasses, and reading a plain table into them, strictly."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from pipesim.base.checks import hint, shown
from pipesim.config.values import (
    HOOKS,
    MISSING,
    NO_SPLIT,
    Amount,
    Amounts,
    Axes,
    Bad,
    Bandwidth,
    Bandwidths,
    Costs,
    Count,
    Counts,
    Flag,
    Latencies,
    LayerModes,
    Rate,
    SignedSizes,
    Size,
    Sizes,
    SpeedRows,
    Speeds,
    StageModes,
    Text,
    Zero,
    is_none,
)

if TYPE_CHECKING:
    from cattrs import Converter

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSection:
    """What to run."""

    schedule: Text = MISSING
    microbatches: Count | None = None  # a schedule file knows its own
    options: dict[str, Any] = field(default_factory=dict)
    engine: Text = Text("simpy")
    protocol: Text = Text("eager")
    queue_capacity: Count | None = None
    eager_limit_bytes: Size | None = None
    memory_limit: Flag = Flag(True)  # whether devices.memory_bytes is the most a rank may hold


@dataclass(frozen=True, slots=True, kw_only=True)
class StagesSection:
    """What each stage costs."""

    forward_ms: Costs = MISSING
    backward_ms: Costs | None = None
    input_grad_ms: Costs | None = None
    weight_grad_ms: Costs | None = None
    recompute_ms: Costs = Costs(0.0)
    recompute: StageModes | None = None  # instead of what it rebuilds, a mode
    count: Count | None = None
    stash_bytes: Sizes = Sizes(0)
    rebuilt_bytes: Sizes = Sizes(0)
    param_bytes: Sizes = Sizes(0)
    grad_bytes: Sizes = Sizes(0)
    optimizer_bytes: Sizes = Sizes(0)
    output_bytes: Sizes = Sizes(0)
    input_grad_frees_bytes: SignedSizes = SignedSizes(0)
    overlap_ms: Amounts | None = None
    overlap_factor: Amount = Amount(1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersSection:
    """Instead of stages: layers from a file, and how to split them."""

    file: Text = MISSING
    split: Counts = NO_SPLIT
    recompute: LayerModes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicesSection:
    """What runs the ranks."""

    ranks: Count | None = None
    placement: Text | None = None
    speed: Speeds = Speeds(1.0)
    overhead_ms: Amounts = Amounts(0.0)
    memory_bytes: Sizes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksSection:
    """What connects the ranks."""

    latency_ms: Latencies = Latencies(0.0)
    bandwidth_gb_s: Bandwidths | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSection:
    """How it is trained: fields of `Training`."""

    replicas: Count | None = None  # by default 1, or what the section [batch] makes it
    zero: Zero = Zero(0)
    bytes_per_param: Rate = Rate(2.0)
    grad_bytes_per_param: Amount = Amount(2.0)
    optimizer_bytes_per_param: Amount = Amount(12.0)
    latency_ms: Amount = Amount(0.0)
    bandwidth_gb_s: Bandwidth | None = None
    overlap: Flag = Flag(True)
    optimizer_ms: Amounts = Amounts(0.0)
    tied_bytes: Size = Size(0)
    barrier: Flag = Flag(True)
    speed: SpeedRows = SpeedRows(1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSection:
    """How many samples make a step."""

    global_size: Count | None = None
    microbatch_size: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSection:
    """Which keys to vary, and how they go together."""

    axes: Axes = MISSING
    mode: Text = Text("product")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sections:
    """A config as it is written."""

    run: RunSection = field(default_factory=RunSection)
    stages: StagesSection | None = None
    layers: LayersSection | None = None
    devices: DevicesSection = field(default_factory=DevicesSection)
    links: LinksSection = field(default_factory=LinksSection)
    training: TrainingSection | None = None
    batch: BatchSection | None = None
    sweep: SweepSection | None = None
    title: Text = Text("")
    source: Text = Text("")


def structure(table: object, section: type[T], path: str = "") -> tuple[T, list[str]]:
    """Return a plain table as a section, with Bad for what cannot be used, and all its faults.

    Parameters
    ----------
    table
        What a file holds under `path`.
    section
        One of the dataclasses above.
    path
        The path of its key, for the faults.
    """
    filled = _converter().structure(table, section)
    return filled, [*_unknown_keys(table, section, path), *_bad_values(filled, path)]


@cache
def _converter() -> "Converter":
    from cattrs import Converter

    converter = Converter(prefer_attrib_converters=False)
    for value_type, hook in HOOKS.items():
        converter.register_structure_hook_func(_is_for(value_type), hook)
        converter.register_structure_hook_func(_is_for(value_type | None), _or_none(hook))
    for section in SECTIONS.values():
        converter.register_structure_hook(section, _if_table(converter, section))
    return converter


def _is_for(value_type: Any) -> Callable[[Any], bool]:
    return lambda cls: bool(cls == value_type)


def _or_none(hook: Callable[[Any, type], Any]) -> Callable[[Any, type], Any]:
    """Return the hook of a key that may be absent, which null and "none" stand for, too."""
    return lambda value, cls: None if is_none(value) else hook(value, cls)


def _if_table(converter: "Converter", section: type) -> Callable[[Any, type], Any]:
    from cattrs.gen import make_dict_structure_fn

    fill: Any = make_dict_structure_fn(section, converter)

    def structure_section(value: Any, cls: type) -> Any:
        if isinstance(value, dict):
            return fill(value, cls)
        return Bad((("", f"{shown(value)} is not a table with keys"),))

    return structure_section


def _unknown_keys(table: object, section: Any, path: str) -> Iterator[str]:
    if not isinstance(table, dict):
        return
    known = {entry.name: entry for entry in fields(section)}
    for key, value in table.items():
        if key in known:
            inner = SECTIONS.get(key) if section is Sections else None
            if inner is not None:
                yield from _unknown_keys(value, inner, join(path, key))
        else:
            yield f"{join(path, str(key))}: unknown key; {hint(key, known)}"


def _bad_values(section: Any, path: str) -> Iterator[str]:
    if isinstance(section, Bad):
        yield from (f"{path}{place}: {text}" for place, text in section.faults)
    elif is_dataclass(section):
        for entry in fields(section):
            yield from _bad_values(getattr(section, entry.name), join(path, entry.name))


def join(path: str, key: str) -> str:
    """Return the path of a key in the section at another path."""
    return f"{path}.{key}" if path else key


SECTIONS: dict[str, type] = {
    "run": RunSection,
    "stages": StagesSection,
    "layers": LayersSection,
    "devices": DevicesSection,
    "links": LinksSection,
    "training": TrainingSection,
    "batch": BatchSection,
    "sweep": SweepSection,
}
