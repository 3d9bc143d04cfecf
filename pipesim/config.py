"""Config files -> pipelines and runs. Strict: every fault is reported at once, with its path.

[run]
schedule = "1f1b"
microbatches = 4

[stages]                         # one value a stage; a single number means the same everywhere
forward_ms  = [67.2, 67.0, 67.6, 139.4]
backward_ms = [143.7, 143.1, 144.0, 202.8]
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipesim.config_values import (
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
from pipesim.errors import ConfigError, DeadlockError, PipesimError
from pipesim.io.config_file import Document, read_document, set_key
from pipesim.io.layer_csv import read_layers
from pipesim.partitioning import WEIGHTS, layer_weights, min_max_split
from pipesim.pipeline import Pipeline
from pipesim.run import ENGINES, PROTOCOLS, Run, resolve_schedule, simulate
from pipesim.schedule import Schedule

if TYPE_CHECKING:
    from cattrs import Converter
    from cattrs.errors import BaseValidationError

    from pipesim.engine.simpy_engine import Progress


SWEEP_MODES = ("product", "zip")
PLACEMENTS = ("linear",)


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


@dataclass(frozen=True, slots=True)
class Config:
    """A config that has been found good: the pipeline, and what to run on it.

    Parameters
    ----------
    name
        The file's name, or "command line".
    sections
        The values as they are written.
    pipeline
        What they describe.
    schedule
        The order to run.
    """

    name: str
    sections: Sections
    pipeline: Pipeline
    schedule: Schedule


def read_config(path: str | PathLike[str], overrides: Mapping[str, Any] | None = None) -> Config:
    """Return the config in a .toml, .yaml, .yml or .json file.

    Parameters
    ----------
    path
        The file.
    overrides
        Keys to set before anything is checked, such as `{"stages.forward_ms[3]": 139.4}`.

    Raises
    ------
    ConfigError
        With every fault of the file, each with the path of its key.
    """
    document = override(read_document(path), str(path), overrides or {})
    return parse_config(document, str(path), Path(path).parent)


def override(document: Document, name: str, overrides: Mapping[str, Any]) -> Document:
    """Return a document with some keys set.

    Raises
    ------
    ConfigError
        If a key does not fit the document.
    """
    faults = []
    for key, value in overrides.items():
        try:
            document = set_key(document, key, value)
        except ValueError as error:
            faults.append(str(error))
    if faults:
        raise ConfigError(name, faults)
    return document


def parse_config(document: Document, name: str, directory: Path = Path()) -> Config:
    """Return the config that a table of sections holds.

    Parameters
    ----------
    document
        The sections, as plain tables.
    name
        What to call it in errors, and the title if it gives none.
    directory
        What file names in it are relative to.

    Raises
    ------
    ConfigError
        With every fault, each with the path of its key.
    """
    from cattrs.errors import BaseValidationError

    document = {"run": {}, **document}  # without it, name the keys that are missing
    try:
        sections = _converter().structure(document, Sections)
    except BaseValidationError as error:
        found = list(_faults(error, ""))
        texts = [f"{path}: {text}" for path, text in found]
        raise ConfigError(name, [*texts, *_more_faults(document, found)]) from None
    faults = list(_contradictions(sections))
    if faults:
        raise ConfigError(name, faults)
    pipeline = _pipeline(sections, name, directory)
    try:
        schedule = resolve_schedule(
            pipeline, sections.run.schedule, sections.run.microbatches, sections.run.options
        )
    except (PipesimError, TypeError, ValueError) as error:
        key = "run.options" if sections.run.options else "run.schedule"
        raise ConfigError(name, [f"{key}: {error}"]) from None
    return Config(name, sections, pipeline, schedule)


def parse_sweep(document: Document, name: str) -> SweepSection:
    """Return the section [sweep] of a table of sections.

    Raises
    ------
    ConfigError
        If it is missing or faulty.
    """
    from cattrs.errors import BaseValidationError

    if "sweep" not in document:
        example = '[sweep] with axes = {"run.microbatches" = [4, 8, 16]}'
        raise ConfigError(name, [f"sweep: missing; write {example}"])
    try:
        section = _converter().structure(document["sweep"], SweepSection)
    except BaseValidationError as error:
        raise ConfigError(name, [f"{p}: {text}" for p, text in _faults(error, "sweep")]) from None
    if section.mode not in SWEEP_MODES:
        raise ConfigError(name, [_unknown("sweep.mode", section.mode, SWEEP_MODES)])
    return section


def simulate_config(config: Config, progress: "Progress | None" = None) -> Run:
    """Return the run that a config describes.

    Raises
    ------
    ConfigError
        If the schedule does not fit the pipeline.
    DeadlockError
        If the run cannot go on.
    """
    section = config.sections.run
    try:
        return simulate(
            config.pipeline,
            config.schedule,
            engine=section.engine,
            protocol=section.protocol,
            queue_capacity=section.queue_capacity,  # type: ignore[arg-type]  # None or a count
            progress=progress,
        )
    except DeadlockError:
        raise
    except (PipesimError, ValueError) as error:
        raise ConfigError(config.name, [f"run.schedule: {error}"]) from None


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


def _faults(error: "BaseValidationError", path: str) -> Iterator[tuple[str, str]]:
    """Walk cattrs' tree of errors and yield the path of each faulty key, and what is wrong."""
    from cattrs.errors import AttributeValidationNote, BaseValidationError, ForbiddenExtraKeysError

    for inner in error.exceptions:
        notes = getattr(inner, "__notes__", [])
        names = [note.name for note in notes if isinstance(note, AttributeValidationNote)]
        place = ".".join(filter(None, [path, *names]))
        if isinstance(inner, BaseValidationError):
            yield from _faults(inner, place)
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


def _more_faults(document: Document, found: list[tuple[str, str]]) -> Iterator[str]:
    """Yield the faults between keys of a document whose single values have faults already.

    Unknown keys are left out and faulty elements of lists replaced; if the rest still cannot be
    read, the faults found have to be mended first.
    """
    from cattrs.errors import BaseValidationError

    for path, text in found:
        if path.endswith("]"):
            document = set_key(document, path, 1)
        elif text.startswith("unknown key"):
            *tables, key = path.split(".")
            document = deepcopy(document)
            place = document
            for table in tables:
                place = place[table]
            del place[key]
    try:
        sections = _converter().structure(document, Sections)
    except BaseValidationError:
        return
    yield from _contradictions(sections)


def _unknown(key: str, value: str, known: Iterable[str]) -> str:
    return f"{key}: {value!r} is unknown; known: {', '.join(known)}"


def _contradictions(sections: Sections) -> Iterator[str]:
    """Yield the faults that lie between keys."""
    run, stages, layers = sections.run, sections.stages, sections.layers
    if run.engine not in ENGINES:
        yield _unknown("run.engine", run.engine, ENGINES)
    if run.protocol not in PROTOCOLS:
        yield _unknown("run.protocol", run.protocol, PROTOCOLS)
    if sections.devices.placement not in PLACEMENTS:
        yield _unknown("devices.placement", sections.devices.placement, PLACEMENTS)
    if sections.sweep is not None and sections.sweep.mode not in SWEEP_MODES:
        yield _unknown("sweep.mode", sections.sweep.mode, SWEEP_MODES)
    if (stages is None) == (layers is None):
        yield "stages: give the section [stages], or [layers] instead of it, and not both"
    if stages is not None:
        yield from _stage_lengths(sections, stages)
    if layers is not None and isinstance(layers.split, str):
        if layers.split not in WEIGHTS:
            yield _unknown("layers.split", layers.split, WEIGHTS)
        if sections.devices.ranks is None:
            yield "devices.ranks: missing; a split by a method's name needs the number of ranks"


def _stage_lengths(sections: Sections, stages: StagesSection) -> Iterator[str]:
    whole, parts = stages.backward_ms, (stages.input_grad_ms, stages.weight_grad_ms)
    if (parts[0] is None) != (parts[1] is None):
        missing = "input_grad_ms" if parts[0] is None else "weight_grad_ms"
        yield f"stages.{missing}: missing; input_grad_ms and weight_grad_ms go together"
    if whole is not None and any(part is not None for part in parts):
        yield "stages.backward_ms: give this, or input_grad_ms and weight_grad_ms, not all three"
    values = {
        f"stages.{entry.name}": getattr(stages, entry.name)
        for entry in fields(stages)
        if entry.name != "count"
    }
    lengths = {key: len(value) for key, value in values.items() if isinstance(value, list)}
    count = stages.count or next(iter(lengths.values()), None) or sections.devices.ranks
    if count is None:
        yield "stages.count: missing; every cost is a single number, so say how many stages"
        return
    per_rank = {
        f"devices.{name}": getattr(sections.devices, name) for name in ("speed", "overhead_ms")
    }
    lengths |= {key: len(value) for key, value in per_rank.items() if isinstance(value, list)}
    for key, length in lengths.items():
        if length != count:
            yield f"{key}: {length} values for {count} stages"
    if sections.devices.ranks not in (None, count):
        yield f"devices.ranks: {sections.devices.ranks} ranks for {count} stages; linear: one each"
    for name in ("latency_ms", "bandwidth_gb_s"):
        value = getattr(sections.links, name)
        if isinstance(value, list) and len(value) != count - 1:
            yield f"links.{name}: {len(value)} values for {count - 1} stage boundaries"
        if isinstance(value, dict):
            for pair in value:
                if max(pair) >= count:
                    yield f'links.{name}."{pair[0]}->{pair[1]}": ranks go from 0 to {count - 1}'
    yield from _row_lengths(sections, values)


def _row_lengths(sections: Sections, values: Mapping[str, Any]) -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, list) and isinstance(value[0], list):
            microbatches = sections.run.microbatches
            if len(value[0]) != microbatches:
                yield f"{key}: rows of {len(value[0])} values for {microbatches} micro-batches"


def _pipeline(sections: Sections, name: str, directory: Path) -> Pipeline:
    devices, links = sections.devices, sections.links
    common: dict[str, Any] = {
        "ranks": devices.ranks,
        "placement": devices.placement,
        "speed": devices.speed,
        "overhead_ms": devices.overhead_ms,
        "latency_ms": links.latency_ms,
        "bandwidth_gb_s": links.bandwidth_gb_s,
        "title": sections.title or (Path(name).stem if Path(name).suffix else ""),
    }
    stages, layers = sections.stages, sections.layers
    try:
        if stages is not None:
            return Pipeline.from_costs(
                forward=stages.forward_ms,  # type: ignore[arg-type]  # checked by its hook
                backward=stages.backward_ms,  # type: ignore[arg-type]
                input_grad=stages.input_grad_ms,  # type: ignore[arg-type]
                weight_grad=stages.weight_grad_ms,  # type: ignore[arg-type]
                stages=stages.count,
                stash_bytes=stages.stash_bytes,  # type: ignore[arg-type]
                param_bytes=stages.param_bytes,  # type: ignore[arg-type]
                output_bytes=stages.output_bytes,  # type: ignore[arg-type]
                **common,
            )
        assert layers is not None  # one of the two is given: see _contradictions
        profile = read_layers(directory / layers.file)
        split: Any = layers.split
        if isinstance(split, str):
            split = min_max_split(layer_weights(profile, split), devices.ranks or 1)
        elif not isinstance(split, list):
            split = [split]
        return profile.split(split, **common)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(name, [f"{'layers.split' if layers else 'stages'}: {error}"]) from None
