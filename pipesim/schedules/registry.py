"""Building a schedule by its name, on the placement that it needs."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pipesim.checks import check_count
from pipesim.errors import ScheduleError
from pipesim.pipeline import Pipeline
from pipesim.placement import PLACEMENTS, Placement
from pipesim.schedule import Schedule
from pipesim.schedules.families import FAMILIES, Family
from pipesim.text_table import count_text

MOST_PAIRS = 50_000_000  # of stage and micro-batch, two ops or three each


def schedule_names() -> tuple[str, ...]:
    """Return the names of all schedules.

    Examples
    --------
    >>> schedule_names()[:4]
    ('gpipe_forward', 'gpipe', '1f1b', '1f1b_eager')
    """
    return tuple(FAMILIES)


def build_schedule(
    name: str,
    ranks: int | None = None,
    microbatches: int | None = None,
    *,
    placement: Placement | None = None,
    pipeline: Pipeline | None = None,
    **options: Any,
) -> Schedule:
    """Return a schedule by its name.

    Parameters
    ----------
    name
        One of `schedule_names()`.
    ranks
        Number of ranks p.
    microbatches
        Number of micro-batches m.
    placement
        Instead of `ranks`, where the stages live.
    pipeline
        Instead of both, the pipeline to run on: its number of stages and ranks, and for a
        schedule that goes by them its costs. Without it such a schedule takes F = I = W = 1.
    options
        Those of the schedule: `pipesim schedules` lists them.

    Raises
    ------
    ScheduleError
        If the name or an option is unknown, or p, m and the number of stages do not go together.
    ValueError
        If a count is not a whole number of at least 1, or an option has a bad value.

    Examples
    --------
    >>> print(build_schedule("1f1b", ranks=2, microbatches=3))
    1f1b: 2 ranks, 3 micro-batches
    rank 0 | F0 F1 .  B0 F2 B1 .  B2
    rank 1 | .  F0 B0 F1 B1 F2 B2 .
    """
    if name not in FAMILIES:
        raise ScheduleError(f"unknown schedule {name!r}; known: {', '.join(FAMILIES)}")
    family = FAMILIES[name]
    unknown = set(options) - set(family.options)
    if unknown:
        known = ", ".join(family.options) or "none"
        raise ScheduleError(f"{name} has no option {min(unknown)!r}; its options: {known}")
    chunks = options.pop("chunks", None) if family.chunks is None else family.chunks
    if pipeline is not None:
        placement = _placement_on(name, family, pipeline, chunks)
    elif placement is None:
        ranks, chunks = check_count("ranks", ranks), check_count("chunks", chunks or 2)
        placement = PLACEMENTS[family.placement](ranks * chunks, ranks)
    elif ranks not in (None, placement.ranks):
        raise ValueError(f"ranks = {ranks} for a placement on {placement.ranks} ranks")
    _check_chunks(name, family, placement)
    microbatches = check_count("microbatches", microbatches)
    if placement.stages * microbatches > MOST_PAIRS:
        raise ScheduleError(
            f"{placement.stages} stages x {microbatches} micro-batches are more than "
            f"{MOST_PAIRS:,} pairs, which would not fit into memory"
        )
    if not family.by_cost:
        return replace(family.build(placement, microbatches, **options), family=name)
    pipeline = pipeline or _unit_costs(placement)
    built = family.build(placement, microbatches, pipeline=pipeline, **options)
    remake = partial(_remade, name, placement, microbatches, options)
    return replace(built, family=name, remake=remake)


def closed_form_bubble(schedule: Schedule) -> float | None:
    """Return the bubble fraction of equal stages under a schedule's family, None if it has none.

    Examples
    --------
    >>> closed_form_bubble(build_schedule("1f1b", ranks=4, microbatches=4)) == 3 / 7
    True
    """
    family = FAMILIES.get(schedule.family)
    return None if family is None else family.bubble(schedule)


def _placement_on(name: str, family: Family, pipe: Pipeline, chunks: int | None) -> Placement:
    """Return the placement of a family on the stages and ranks of a pipeline."""
    stages, ranks = len(pipe.stages), pipe.ranks
    if chunks is not None and stages != ranks * check_count("chunks", chunks):
        raise ScheduleError(_other_stages(name, chunks, stages, ranks))
    given = pipe.placement
    if given.name == family.placement or (given.name not in PLACEMENTS and stages == ranks):
        return given
    try:
        return PLACEMENTS[family.placement](stages, ranks)
    except ValueError as error:
        raise ScheduleError(f"{name}: {error}") from None


def _remade(
    name: str,
    placement: Placement,
    microbatches: int,
    options: Mapping[str, Any],
    pipeline: Pipeline,
) -> Schedule:
    """Return a schedule that goes by the costs for other costs on the same stages and ranks."""
    family = FAMILIES[name]
    return replace(family.build(placement, microbatches, pipeline=pipeline, **options), family=name)


def _check_chunks(name: str, family: Family, placement: Placement) -> None:
    stages, ranks = placement.stages, placement.ranks
    if family.chunks is not None and stages != ranks * family.chunks:
        raise ScheduleError(_other_stages(name, family.chunks, stages, ranks))


def _other_stages(name: str, chunks: int, stages: int, ranks: int) -> str:
    text = (
        f"{name} needs {count_text(chunks, 'stage')} a rank, "
        f"the pipeline has {count_text(stages, 'stage')} on {count_text(ranks, 'rank')}"
    )
    if stages % (ranks * chunks) == 0:
        return f"{text}; pipe.regroup(chunks={chunks}) merges them"
    if stages % chunks == 0:
        return f"{text}; give ranks = {stages // chunks}, or split into {ranks * chunks} stages"
    return f"{text}; split into {ranks * chunks} stages"


def _unit_costs(placement: Placement) -> Pipeline:
    return Pipeline.from_costs(
        1.0, input_grad=1.0, weight_grad=1.0, stages=placement.stages, placement=placement
    )
