"""What one should know of schedules beside their numbers, as notes."""

from collections.abc import Iterable, Iterator

from pipesim.base.text import span_text
from pipesim.schedules.families.registry import FAMILIES
from pipesim.schedules.order.schedule import Schedule


def chunk_note(schedule: Schedule) -> str | None:
    """Return what to give a schedule that takes any number of chunks and has one a rank.

    None if it has more, or is no such schedule.

    Examples
    --------
    >>> from pipesim.schedules.families.registry import build_schedule
    >>> chunk_note(build_schedule("interleaved", ranks=4, microbatches=8, chunks=1))
    '1 stage a rank, nothing to interleave; give 8 stages, or ranks = 2'
    """
    family = FAMILIES.get(schedule.family)
    if family is None or family.chunks is not None or schedule.stages > schedule.ranks:
        return None
    fewer, left = divmod(schedule.stages, 2)
    ranks = f", or ranks = {fewer}" if fewer > 1 and not left else ""
    return f"1 stage a rank, nothing to interleave; give {2 * schedule.ranks} stages{ranks}"


def weight_note(schedule: Schedule) -> str | None:
    """Return how often a schedule keeps the weights, None if once.

    Examples
    --------
    >>> from pipesim.schedules.families.registry import build_schedule
    >>> weight_note(build_schedule("chimera", ranks=4, microbatches=8))
    '2 copies of the model, so 2 times the weights on every rank'
    >>> weight_note(build_schedule("pipedream", ranks=4, microbatches=8))
    '1 to 4 versions of the weights on a stage'
    """
    copies, versions = schedule.placement.directions, schedule.weight_versions
    if copies > 1:
        return f"{copies} copies of the model, so {copies} times the weights on every rank"
    if max(versions) > 1:
        return f"{span_text(versions)} versions of the weights on a stage"
    return None


def shared_notes(schedules: Iterable[Schedule]) -> Iterator[str]:
    """Yield the notes on some schedules, each once, after the names of those it is about."""
    names: dict[str, list[str]] = {}
    for schedule in schedules:
        for note in filter(None, (weight_note(schedule), chunk_note(schedule))):
            names.setdefault(note, []).append(schedule.name)
    for note, whose in names.items():
        yield f"{', '.join(whose)}: {note}"
