"""Faults between the keys of a config: unknown names, lengths that do not fit, contradictions.

Values that have faults of their own are passed over.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from pipesim.base.checks import hint
from pipesim.base.files import is_schedule_file
from pipesim.config.sections import RunSection, Sections, StagesSection
from pipesim.config.training import training_faults
from pipesim.config.values import Bad, length
from pipesim.pipeline.partition.partition import WEIGHTS
from pipesim.pipeline.placement import PLACEMENTS, Placement, default_placement, default_ranks
from pipesim.run.run import ENGINES
from pipesim.schedules.families.registry import FAMILIES
from pipesim.schedules.program.lowering import PROTOCOLS

SWEEP_MODES = ("product", "zip")
OR_A_FILE = "or the path of a .csv file"  # beside the names of known schedules


def contradictions(sections: Sections, schedules: Iterable[str] | None = None) -> Iterator[str]:
    """Yield the faults that lie between the values of a config.

    The options of the run must be options of one of the `schedules`, by default of its own.
    """
    yield from _unknown_names(sections)
    yield from _strange_run(sections, own_schedule=schedules is None)
    yield from _strange_options(sections, schedules or [_good(sections.run, "schedule")])
    yield from _pointless_limit(sections)
    stages, layers = sections.stages, sections.layers
    if (stages is None) == (layers is None):
        yield "stages: give the section [stages], or [layers] instead of it, and not both"
        return
    count = _stage_count(sections)
    if isinstance(stages, StagesSection):
        yield from _backward(stages)
        yield from _rebuilt_twice(stages)
        if count is None and not any(isinstance(v, Bad) for v in _values(stages).values()):
            yield "stages.count: missing; every cost is a single number, so say how many stages"
    by_name = isinstance(_good(layers, "split"), str)
    if by_name and getattr(sections.devices, "ranks", None) is None:
        yield "devices.ranks: missing; a split by a method's name needs the number of ranks"
    if count is not None:
        yield from _lengths(sections, count)
        yield from _rank_pairs(sections, count)


def unknown(key: str, value: str, known: Iterable[str], also: str = "") -> str:
    """Return the fault of an unknown name, with a hint at the known ones."""
    return f"{key}: {value!r} is unknown; {hint(value, known, also)}"


def unknown_schedule(key: str, value: Any) -> str | None:
    """Return the fault of a schedule that is neither known nor a file; None for any other."""
    if not isinstance(value, str) or value in FAMILIES or is_schedule_file(value):
        return None
    return unknown(key, value, FAMILIES, OR_A_FILE)


def _good(section: Any, key: str) -> Any:
    """Return a value of a section, None if it, or the whole section, is absent or has faults."""
    value = getattr(section, key, None)
    return None if isinstance(value, Bad) else value


def _unknown_names(sections: Sections) -> Iterator[str]:
    schedule = unknown_schedule("run.schedule", _good(sections.run, "schedule"))
    if schedule is not None:
        yield schedule
    for path, known in (
        ("run.engine", ENGINES),
        ("run.protocol", PROTOCOLS),
        ("devices.placement", PLACEMENTS),
        ("layers.split", WEIGHTS),
        ("sweep.mode", SWEEP_MODES),
    ):
        section, key = path.split(".")
        name = _good(getattr(sections, section), key)
        if isinstance(name, str) and name not in known:
            yield unknown(path, name, known)


def _pointless_limit(sections: Sections) -> Iterator[str]:
    limit, protocol = (_good(sections.run, key) for key in ("eager_limit_bytes", "protocol"))
    if limit is not None and protocol == "eager":
        yield (
            "run.eager_limit_bytes: with protocol 'eager' no message waits for its receiver; "
            "leave it out, or choose another run.protocol"
        )


def _strange_run(sections: Sections, own_schedule: bool) -> Iterator[str]:
    """Yield the faults of micro-batches and options for a schedule by name or from a file."""
    run = sections.run
    if not isinstance(run, RunSection):
        return
    from_file = is_schedule_file(run.schedule)
    if run.microbatches is None and not from_file and sections.batch is None:
        yield "run.microbatches: missing, but required"
    if run.options and from_file and own_schedule:
        yield f"run.options: {run.schedule} is a schedule file and takes no options"


def _strange_options(sections: Sections, schedules: Iterable[str | None]) -> Iterator[str]:
    families = {name: FAMILIES[name] for name in schedules if name in FAMILIES}
    known = list(dict.fromkeys(key for family in families.values() for key in family.options))
    for option in _good(sections.run, "options") or {}:
        if families and option not in known:
            whose = next(iter(families)) if len(families) == 1 else "none of the schedules"
            has = "has no" if len(families) == 1 else "has any"
            yield f"run.options.{option}: {whose} {has} such option; {hint(option, known)}"


def _values(section: Any) -> dict[str, Any]:
    return {entry.name: getattr(section, entry.name) for entry in fields(section)}


def _stage_count(sections: Sections) -> int | None:
    """Return the number of stages in a config; None if that is not clear."""
    ranks: int | None = _good(sections.devices, "ranks")
    if sections.layers is not None:
        return layer_stages(sections)
    count: int | None = _good(sections.stages, "count")
    if count is not None or not isinstance(sections.stages, StagesSection):
        return count
    lengths = filter(None, map(length, _values(sections.stages).values()))
    return next(lengths, ranks)


def layer_stages(sections: Sections) -> int | None:
    """Return the number of stages that the layers are split into; None if that is not clear.

    As many as the split has counts; if it is a method's name, the schedule's chunks on each rank.
    """
    listed = length(getattr(sections.layers, "split", None))
    ranks: int | None = _good(sections.devices, "ranks")
    if listed is not None or ranks is None:
        return listed
    family = FAMILIES.get(_good(sections.run, "schedule") or "")
    chunks = 1 if family is None else family.chunks
    if family is not None and chunks is None:
        chunks = (_good(sections.run, "options") or {}).get("chunks", family.options["chunks"])
    return ranks * chunks if isinstance(chunks, int) and chunks > 0 else None


def _backward(stages: StagesSection) -> Iterator[str]:
    whole, parts = stages.backward_ms, (stages.input_grad_ms, stages.weight_grad_ms)
    if (parts[0] is None) != (parts[1] is None):
        missing = "input_grad_ms" if parts[0] is None else "weight_grad_ms"
        yield f"stages.{missing}: missing; input_grad_ms and weight_grad_ms go together"
    if whole is not None and any(part is not None for part in parts):
        yield "stages.backward_ms: give this, or input_grad_ms and weight_grad_ms, not all three"


def _rebuilt_twice(stages: StagesSection) -> Iterator[str]:
    for key in ("recompute_ms", "rebuilt_bytes"):
        if _good(stages, "recompute") is not None and np.any(_good(stages, key) or 0):
            yield f"stages.recompute: it says what is rebuilt, and so does stages.{key}; give one"


def _lengths(sections: Sections, count: int) -> Iterator[str]:
    placed = _placement(sections, count)
    if isinstance(placed, str):
        key = "placement" if _good(sections.devices, "placement") in PLACEMENTS else "ranks"
        yield f"devices.{key}: {placed}"
    ranks = count if isinstance(placed, str) else placed.ranks
    by_stage = _values(sections.stages) if isinstance(sections.stages, StagesSection) else {}
    lists: dict[str, Any] = {f"stages.{key}": value for key, value in by_stage.items()}
    lists["layers.recompute"] = getattr(sections.layers, "recompute", None)
    for key in ("speed", "overhead_ms", "memory_bytes"):
        lists[f"devices.{key}"] = getattr(sections.devices, key, None)
    for key, value in lists.items():
        items = "ranks" if key.startswith("devices") else "stages"
        wanted = ranks if items == "ranks" else count
        if length(value) not in (None, wanted):
            yield f"{key}: {length(value)} values for {wanted} {items}"
    for key in ("latency_ms", "bandwidth_gb_s"):
        value = getattr(sections.links, key, None)
        if length(value) not in (None, count - 1):
            yield f"links.{key}: {length(value)} values for {count - 1} stage boundaries"
    yield from training_faults(sections, count, ranks)
    yield from _row_lengths(_good(sections.run, "microbatches"), lists)


def _row_lengths(microbatches: int | None, lists: Mapping[str, Any]) -> Iterator[str]:
    for key, value in lists.items():
        rows = isinstance(value, list) and isinstance(value[0], list)
        if rows and microbatches not in (None, len(value[0])):
            yield f"{key}: rows of {len(value[0])} values for {microbatches} micro-batches"


def _placement(sections: Sections, count: int) -> Placement | str:
    """Return the placement of the stages, or its fault as text."""
    devices = sections.devices
    name, ranks = _good(devices, "placement"), _good(devices, "ranks")
    try:
        if name in PLACEMENTS:
            return PLACEMENTS[name](count, ranks or default_ranks(name, count))
        return default_placement(count, ranks or count)
    except ValueError as error:
        return str(error)


def _rank_pairs(sections: Sections, count: int) -> Iterator[str]:
    placed = _placement(sections, count)
    if isinstance(placed, str):
        return
    # Interleaved schedules go round, from the last rank to the first.
    apart = {1, placed.ranks - 1}
    for key in ("latency_ms", "bandwidth_gb_s"):
        value = _good(sections.links, key)
        for pair in value if isinstance(value, dict) else ():
            place = f'links.{key}."{pair[0]}->{pair[1]}"'
            if max(pair) >= placed.ranks:
                yield f"{place}: ranks go from 0 to {placed.ranks - 1}"
            elif abs(pair[0] - pair[1]) not in apart:
                yield f"{place}: no message goes this way; neighbouring stages are on r and r+1"
