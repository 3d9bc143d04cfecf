"""Config files -> pipelines and runs. Strict: every fault is reported at once, with its path.

[run]
schedule = "1f1b"
microbatches = 4

[stages]                         # one value a stage; a single number means the same everywhere
forward_ms  = [67.2, 67.0, 67.6, 139.4]
backward_ms = [143.7, 143.1, 144.0, 202.8]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from pipesim.base.errors import ConfigError, PipesimError
from pipesim.base.files import is_schedule_file
from pipesim.config.override import override
from pipesim.config.recompute import recomputing_layers, recomputing_pipeline, recomputing_split
from pipesim.config.rules import SWEEP_MODES, contradictions, layer_stages, unknown
from pipesim.config.sections import Sections, SweepSection, structure
from pipesim.config.training import batch_of, held, training_of, with_batch
from pipesim.files.config_file import Document, read_document
from pipesim.files.layer_csv import read_layers
from pipesim.pipeline.batch_sizes import BatchSizes
from pipesim.pipeline.layers import LayerProfile
from pipesim.pipeline.partition.partition import fair_split
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.training import Training
from pipesim.run.resolve import resolve_schedule
from pipesim.schedules.families.registry import FAMILIES
from pipesim.schedules.order.schedule import Schedule


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
        What they describe; its parameters are whole, whatever its ranks hold of them.
    schedule
        The order to run.
    """

    name: str
    sections: Sections
    pipeline: Pipeline
    schedule: Schedule

    @property
    def training(self) -> Training | None:
        """How it is trained; None without a section [training]."""
        return training_of(self.sections)

    @property
    def batch(self) -> BatchSizes | None:
        """The samples of a step; None without a section [batch]."""
        return batch_of(self.sections)


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
    sections, pipeline = parse_pipeline(document, name, directory)
    return Config(name, sections, pipeline, parse_schedule(sections, pipeline, name, directory))


def parse_schedule(
    sections: Sections, pipeline: Pipeline, name: str, directory: Path = Path()
) -> Schedule:
    """Return the schedule that a config names, on its pipeline.

    Raises
    ------
    ConfigError
        If the schedule does not go on the pipeline, or its file or options are faulty.
    """
    run = sections.run
    wanted = directory / run.schedule if is_schedule_file(run.schedule) else run.schedule
    try:
        return resolve_schedule(pipeline, wanted, run.microbatches, run.options)
    except (PipesimError, TypeError, ValueError) as error:
        key = "run.options" if run.options else "run.schedule"  # the names are known
        # A schedule file tells one fault a line.
        raise ConfigError(name, [f"{key}: {line}" for line in str(error).splitlines()]) from None


def parse_pipeline(
    document: Document,
    name: str,
    directory: Path = Path(),
    schedules: Sequence[str] | None = None,
) -> tuple[Sections, Pipeline]:
    """Return the sections of a config and the pipeline that they describe.

    `schedules` are those that its options may belong to, by default the one that it names.

    Raises
    ------
    ConfigError
        With every fault, each with the path of its key.
    """
    sections, faults = structure(document, Sections)
    sections, more = with_batch(sections)
    faults += more
    faults += contradictions(sections, schedules)
    if faults:
        raise ConfigError(name, faults)
    pipeline = _pipeline(sections, name, directory)
    try:
        held(sections, pipeline)  # what ranks hold must be amounts, too
    except ValueError as error:
        raise ConfigError(name, [f"training: {error}"]) from None
    return sections, pipeline


def parse_sweep(document: Document, name: str) -> SweepSection:
    """Return the section [sweep] of a table of sections.

    Raises
    ------
    ConfigError
        If it is missing or faulty.
    """
    if "sweep" not in document:
        example = '[sweep] with axes = {"run.microbatches" = [4, 8, 16]}'
        raise ConfigError(name, [f"sweep: missing; write {example}"])
    section, faults = structure(document["sweep"], SweepSection, "sweep")
    if faults:
        raise ConfigError(name, faults)
    if section.mode not in SWEEP_MODES:
        raise ConfigError(name, [unknown("sweep.mode", section.mode, SWEEP_MODES)])
    return section


def pipeline_options(sections: Sections, name: str) -> dict[str, Any]:
    """Return what a config says of devices and links, as `Pipeline.from_costs` takes it."""
    devices, links = sections.devices, sections.links
    return {
        "ranks": devices.ranks,
        "placement": devices.placement,
        "speed": devices.speed,
        "overhead_ms": devices.overhead_ms,
        "memory_bytes": devices.memory_bytes,
        "latency_ms": links.latency_ms,
        "bandwidth_gb_s": links.bandwidth_gb_s,
        **({"source": sections.source} if sections.source else {}),
        "title": sections.title or (Path(name).stem if Path(name).suffix else ""),
    }


def _split_by_name(profile: LayerProfile, by: str, sections: Sections) -> tuple[int, ...]:
    """Return the min-max split by a method's name, on the devices of the schedule's ranks.

    Their memory plays no part: `pipesim split` knows what the schedule holds.
    """
    devices, family = sections.devices, FAMILIES.get(sections.run.schedule)
    places = Pipeline.from_costs(
        0.0,
        stages=layer_stages(sections),
        ranks=devices.ranks,
        placement=devices.placement or (None if family is None else family.placement),
        speed=devices.speed,  # type: ignore[arg-type]  # checked by its hook
        overhead_ms=devices.overhead_ms,  # type: ignore[arg-type]
    )
    return fair_split(profile, places.placement, places.devices, by=by)


def _pipeline(sections: Sections, name: str, directory: Path) -> Pipeline:
    common = pipeline_options(sections, name)
    stages, layers = sections.stages, sections.layers
    try:
        if stages is not None:
            pipe = Pipeline.from_costs(
                forward=stages.forward_ms,  # type: ignore[arg-type]  # checked by its hook
                backward=stages.backward_ms,  # type: ignore[arg-type]
                input_grad=stages.input_grad_ms,  # type: ignore[arg-type]
                weight_grad=stages.weight_grad_ms,  # type: ignore[arg-type]
                recompute_ms=stages.recompute_ms,  # type: ignore[arg-type]
                stages=stages.count,
                stash_bytes=stages.stash_bytes,  # type: ignore[arg-type]
                rebuilt_bytes=stages.rebuilt_bytes,  # type: ignore[arg-type]
                param_bytes=stages.param_bytes,  # type: ignore[arg-type]
                grad_bytes=stages.grad_bytes,  # type: ignore[arg-type]
                optimizer_bytes=stages.optimizer_bytes,  # type: ignore[arg-type]
                output_bytes=stages.output_bytes,  # type: ignore[arg-type]
                input_grad_frees_bytes=stages.input_grad_frees_bytes,  # type: ignore[arg-type]
                overlap_ms=stages.overlap_ms,  # type: ignore[arg-type]
                overlap_factor=stages.overlap_factor,
                **common,
            )
            return recomputing_pipeline(pipe, stages.recompute)
        assert layers is not None  # one of the two is given: see _contradictions
        try:
            profile = read_layers(directory / layers.file)
        except ConfigError as error:
            faults = [f"layers.file: {line}" for line in str(error).splitlines()]
            raise ConfigError(name, faults) from None
        split: Any = layers.split
        profile = recomputing_layers(profile, layers.recompute, name)  # a split by time counts it
        if isinstance(split, str):
            split = _split_by_name(profile, split, sections)
        elif not isinstance(split, list):
            split = [split]
        profile = recomputing_split(profile, layers.recompute, split, name)
        return profile.split(split, **common)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(name, [f"{'layers.split' if layers else 'stages'}: {error}"]) from None
