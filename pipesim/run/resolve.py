"""What people hand in as a schedule -> a Schedule."""

from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any, TypeAlias

from pipesim.base.checks import check_count
from pipesim.base.errors import ScheduleError
from pipesim.base.files import is_schedule_file
from pipesim.engine.reference.policy_engine import run_policy
from pipesim.files.schedule_csv.read import read_schedule
from pipesim.pipeline.pipeline import Pipeline
from pipesim.schedules.families.policies import Policy
from pipesim.schedules.families.registry import build_schedule, check_options, schedule_names
from pipesim.schedules.order.schedule import Schedule

ScheduleLike: TypeAlias = str | PathLike[str] | Schedule | Policy | Callable[..., Schedule]


def resolve_schedule(
    pipe: Pipeline,
    schedule: ScheduleLike,
    microbatches: int | None,
    options: Mapping[str, Any] | None = None,
) -> Schedule:
    """Return the Schedule that a name, a file, a function or a Schedule stands for on a pipeline.

    Raises
    ------
    ConfigError
        If it is a file that cannot be read.
    ScheduleError
        If it is unknown, takes no such options, or has another number of micro-batches.
    """
    options = dict(options or {})
    if is_schedule_file(schedule):
        if options:
            raise ScheduleError(f"{schedule} is a schedule file and takes no options")
        schedule = read_schedule(schedule)
    if isinstance(schedule, Schedule):
        if microbatches not in (None, schedule.microbatches):
            raise ScheduleError(
                f"{schedule.name} has {schedule.microbatches} micro-batches, not {microbatches}"
            )
        if options:
            raise ScheduleError(f"{schedule.name} is built already and takes no options")
        return schedule
    if microbatches is None:
        microbatches = pipe.microbatches
    if isinstance(schedule, Policy):
        if options:
            raise ScheduleError(f"policy {schedule.name!r} takes no options")
        return run_policy(schedule, pipe, check_count("microbatches", microbatches))
    if not callable(schedule) and not isinstance(schedule, str):
        raise TypeError(
            f"{schedule!r} is no schedule: give a name, a file, a Schedule or a function"
        )
    if isinstance(schedule, str):
        if schedule in schedule_names():  # or else the builder complains of the name
            check_options(schedule, options)
        return build_schedule(schedule, microbatches=microbatches, pipeline=pipe, **options)
    built = schedule(pipe.placement, check_count("microbatches", microbatches), **options)
    if not isinstance(built, Schedule):
        raise ScheduleError(f"{schedule!r} returned {type(built).__name__}, not a Schedule")
    return built
