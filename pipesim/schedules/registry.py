"""Every schedule by its name: one line each, and nothing found by magic."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from pipesim.checks import check_count
from pipesim.errors import ScheduleError
from pipesim.placement import Placement, linear_placement
from pipesim.schedule import Schedule
from pipesim.schedules.gpipe import gpipe, gpipe_forward
from pipesim.schedules.one_f_one_b import eager_one_f_one_b, one_f_one_b
from pipesim.slot_table import bubble_formula

Builder: TypeAlias = Callable[..., Schedule]


@dataclass(frozen=True, slots=True)
class Family:
    """What is known of a schedule by name.

    Parameters
    ----------
    build
        (placement, microbatches, **options) -> Schedule.
    summary
        What it does, in a few words.
    backward
        Which ops its backward is made of: "none", "B", or "I and W".
    warm_up, peak
        Forwards before the first backward, and micro-batches held, on stage s; as text.
    formula
        Bubble fraction with equal stages and no transfers; as text.
    bubble
        The same as a function of (p, m).
    source
        Where it was published.
    """

    build: Builder
    summary: str
    backward: str
    warm_up: str
    peak: str
    formula: str
    bubble: Callable[[int, int], float]
    source: str

    @property
    def options(self) -> Mapping[str, Any]:
        """The names of the options that the builder takes, with their defaults."""
        parameters = list(inspect.signature(self.build).parameters.values())[2:]
        return {parameter.name: parameter.default for parameter in parameters}


MOST_PAIRS = 50_000_000  # of stage and micro-batch, two ops or three each

_EQUAL = "(p-1)/(m+p-1)"

FAMILIES: dict[str, Family] = {
    "gpipe_forward": Family(
        build=gpipe_forward,
        summary="forwards only",
        backward="none",
        warm_up="m",
        peak="1",
        formula=_EQUAL,
        bubble=bubble_formula,
        source="Huang et al. 2019",
    ),
    "gpipe": Family(
        build=gpipe,
        summary="all forwards, then all backwards",
        backward="B",
        warm_up="m",
        peak="m",
        formula=_EQUAL,
        bubble=bubble_formula,
        source="Huang et al. 2019",
    ),
    "1f1b": Family(
        build=one_f_one_b,
        summary="one forward, one backward in turn",
        backward="B",
        warm_up="min(m, p-1-s)",
        peak="min(m, p-s)",
        formula=_EQUAL,
        bubble=bubble_formula,
        source="Narayanan et al. 2021",
    ),
    "1f1b_eager": Family(
        build=eager_one_f_one_b,
        summary="1F1B with twice the warm-up, to hide transfers",
        backward="B",
        warm_up="min(m, 2(p-1-s))",
        peak="min(m, 2(p-s)-1)",
        formula=_EQUAL,
        bubble=bubble_formula,
        source="Zhuang et al. 2023",
    ),
}


def schedule_names() -> tuple[str, ...]:
    """Return the names of all schedules.

    Examples
    --------
    >>> schedule_names()
    ('gpipe_forward', 'gpipe', '1f1b', '1f1b_eager')
    """
    return tuple(FAMILIES)


def build_schedule(
    name: str,
    ranks: int | None = None,
    microbatches: int | None = None,
    *,
    placement: Placement | None = None,
    **options: Any,
) -> Schedule:
    """Return a schedule by its name.

    Parameters
    ----------
    name
        One of `schedule_names()`.
    ranks
        Number of ranks p, each with one stage.
    microbatches
        Number of micro-batches m.
    placement
        Instead of `ranks`, where the stages live.
    options
        Those of the schedule: `pipesim schedules` lists them.

    Raises
    ------
    ScheduleError
        If the name or an option is unknown.
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
    if placement is None:
        placement = linear_placement(check_count("ranks", ranks))
    elif ranks is not None and ranks != placement.ranks:
        raise ValueError(f"ranks = {ranks} for a placement on {placement.ranks} ranks")
    microbatches = check_count("microbatches", microbatches)
    if placement.stages * microbatches > MOST_PAIRS:
        raise ScheduleError(
            f"{placement.stages} stages x {microbatches} micro-batches are more than "
            f"{MOST_PAIRS:,} pairs, which would not fit into memory"
        )
    built = family.build(placement, microbatches, **options)
    return replace(built, family=name)


def closed_form_bubble(schedule: Schedule) -> float | None:
    """Return the bubble fraction of equal stages under a schedule's family, None if it has none.

    Examples
    --------
    >>> closed_form_bubble(build_schedule("1f1b", ranks=4, microbatches=4)) == 3 / 7
    True
    """
    family = FAMILIES.get(schedule.family)
    return None if family is None else family.bubble(schedule.ranks, schedule.microbatches)
