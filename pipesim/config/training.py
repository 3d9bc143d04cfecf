"""The sections [training] and [batch]: replicas and optimizer, and the samples of a step."""

from collections.abc import Iterator
from dataclasses import fields, replace

from pipesim.config.sections import BatchSection, Sections, StagesSection, TrainingSection
from pipesim.config.values import Bad, Count, length
from pipesim.pipeline.batch_sizes import BatchSizes, batch_sizes, completed
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.training import Training


def training_of(sections: Sections) -> Training | None:
    """Return the training of a config without faults; None without a section [training].

    Raises
    ------
    ValueError
        If the values do not go together.
    """
    section = sections.training
    if section is None:
        return None
    values = {entry.name: getattr(section, entry.name) for entry in fields(section)}
    return Training(**values | {"replicas": section.replicas or 1})


def held(sections: Sections, pipe: Pipeline) -> Pipeline:
    """Return a config's pipeline with the bytes that its ranks hold in its training."""
    training = training_of(sections)
    return pipe if training is None else training.holding(pipe)


def batch_of(sections: Sections) -> BatchSizes | None:
    """Return the batch sizes of a config completed by `with_batch`; None without a batch."""
    batch, m, training = sections.batch, sections.run.microbatches, sections.training
    if batch is None:
        return None
    replicas = None if training is None else training.replicas
    return batch_sizes(batch.global_size, batch.microbatch_size, m, replicas or 1)


def with_batch(sections: Sections) -> tuple[Sections, list[str]]:
    """Return sections completed by the sizes in the section [batch], and the faults of these.

    Any three of the two sizes, run.microbatches and training.replicas give the fourth; where
    two are left out, replicas among them, there is one replica.
    """
    run, batch, training = sections.run, sections.batch, sections.training
    if not isinstance(batch, BatchSection) or isinstance(run, Bad) or isinstance(training, Bad):
        return sections, []
    numbers = {
        "batch.global_size": batch.global_size,
        "batch.microbatch_size": batch.microbatch_size,
        "run.microbatches": run.microbatches,
        "training.replicas": None if training is None else training.replicas,
    }
    if any(isinstance(number, Bad) for number in numbers.values()):
        return sections, []
    if numbers["training.replicas"] is None and list(numbers.values()).count(None) > 1:
        numbers["training.replicas"] = Count(1)
    try:
        size, micro, m, replicas = map(Count, completed(numbers).values())
    except ValueError as error:
        return sections, [f"batch: {error}"]
    if training is not None or replicas > 1:
        training = replace(training or TrainingSection(), replicas=replicas)
    batch = BatchSection(global_size=size, microbatch_size=micro)
    run = replace(run, microbatches=m)
    return replace(sections, run=run, batch=batch, training=training), []


def training_faults(sections: Sections, stages: int, ranks: int) -> Iterator[str]:
    """Yield the faults between the section [training] and the other sections."""
    training = sections.training
    if not isinstance(training, TrainingSection):
        return
    if isinstance(sections.stages, StagesSection):
        for name in ("grad_bytes", "optimizer_bytes"):
            if getattr(sections.stages, name) != 0:
                yield (
                    f"stages.{name}: the section [training] works it out from param_bytes and "
                    f"training.{name}_per_param; leave it out"
                )
    if length(training.optimizer_ms) not in (None, stages):
        yield f"training.optimizer_ms: {length(training.optimizer_ms)} values for {stages} stages"
    replicas = training.replicas or 1
    speed = training.speed.value if isinstance(training.speed, Bad) else training.speed
    if isinstance(replicas, Bad) or not isinstance(speed, list) or not speed:
        return
    if len(speed) != replicas:
        yield f"training.speed: {len(speed)} values for {replicas} replicas"
    if length(speed[0]) not in (None, ranks):
        yield f"training.speed: rows of {length(speed[0])} values for {ranks} ranks"
