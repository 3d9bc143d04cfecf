"""What must hold between the keys of a config: lengths that fit, one way to say a thing."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from pipesim.config.sections import Sections, StagesSection
from pipesim.partitioning import WEIGHTS
from pipesim.run import ENGINES, PROTOCOLS

SWEEP_MODES = ("product", "zip")
PLACEMENTS = ("linear",)


def unknown(key: str, value: str, known: Iterable[str]) -> str:
    """Return the fault of a name that is none of the known ones."""
    return f"{key}: {value!r} is unknown; known: {', '.join(known)}"


def contradictions(sections: Sections) -> Iterator[str]:
    """Yield the faults that lie between keys."""
    run, stages, layers = sections.run, sections.stages, sections.layers
    if run.engine not in ENGINES:
        yield unknown("run.engine", run.engine, ENGINES)
    if run.protocol not in PROTOCOLS:
        yield unknown("run.protocol", run.protocol, PROTOCOLS)
    if sections.devices.placement not in PLACEMENTS:
        yield unknown("devices.placement", sections.devices.placement, PLACEMENTS)
    if sections.sweep is not None and sections.sweep.mode not in SWEEP_MODES:
        yield unknown("sweep.mode", sections.sweep.mode, SWEEP_MODES)
    if (stages is None) == (layers is None):
        yield "stages: give the section [stages], or [layers] instead of it, and not both"
    if stages is not None:
        yield from _stage_lengths(sections, stages)
    if layers is not None and isinstance(layers.split, str):
        if layers.split not in WEIGHTS:
            yield unknown("layers.split", layers.split, WEIGHTS)
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
