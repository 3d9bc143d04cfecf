"""Several schedules on the stages of one pipeline, the shortest step first.

Where a schedule takes fewer stages a rank than there are, neighbouring ones are merged; of the
options each gets those that it has. Asynchronous schedules run several batches in one go: their
step is the part of one batch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pipesim.base.checks import hint
from pipesim.base.errors import DeadlockError, MemoryLimitError, ScheduleError
from pipesim.base.files import is_schedule_file
from pipesim.base.ops import Kind
from pipesim.base.types import Progress
from pipesim.files.schedule_csv.read import read_schedule
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.training import Training
from pipesim.run.resolve import resolve_schedule
from pipesim.run.run import Run
from pipesim.run.simulate import simulate
from pipesim.run.step import simulate_slowest, simulate_step, without_end
from pipesim.schedules.families.facts import Family
from pipesim.schedules.families.registry import FAMILIES
from pipesim.schedules.order.schedule import Schedule

if TYPE_CHECKING:
    import pandas as pd

Chosen: TypeAlias = Mapping[str, str | Schedule]  # schedules by the name that tells them apart


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Runs of several schedules on one pipeline, and why others could not be run.

    Parameters
    ----------
    runs
        The shortest step first, then by memory; forward-only ones last. Of several replicas the
        slowest one's.
    microbatches
        Number of micro-batches of one batch.
    step_ms
        The step of one batch by schedule [ms]; with reductions and optimizer for those `ended`.
    ended
        The schedules whose step has an end: without `training` none.
    unfit
        Why each of the others could not be run.
    """

    runs: tuple[Run, ...]
    microbatches: int
    step_ms: Mapping[str, float]
    ended: frozenset[str]
    unfit: Mapping[str, Exception]

    def bound_ms(self, run: Run) -> float:
        """Return the lower bound of a batch's part of a run [ms]."""
        return run.lower_bound * self.microbatches / run.schedule.microbatches

    @property
    def table(self) -> "pd.DataFrame":
        """One row a schedule, as `compare` returns it."""
        import pandas as pd

        rows: list[dict[str, Any]] = [
            {
                "schedule": run.schedule.name,
                "stages": run.schedule.stages,
                "step_ms": self.step_ms[run.schedule.name],
                "inflation": run.inflation,
                "bubble_fraction": run.bubble_fraction,
                "span_bubble": run.span_bubble,
                "closed_form_bubble_fraction": run.closed_form,
                "lower_bound_ms": self.bound_ms(run),
                "held": held_microbatches(run),
                "peak_stash_bytes": max(run.ranks.peak_stash_bytes),
                "peak_memory_bytes": max(run.peak_memory),
                "error": None,
            }
            for run in self.runs
        ]
        rows += [{"schedule": n, "error": reason(error)} for n, error in self.unfit.items()]
        return pd.DataFrame(rows)


def compare(
    pipe: Pipeline,
    schedules: Iterable[str | PathLike[str] | Schedule],
    microbatches: int | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    training: Training | None = None,
    progress: Progress | None = None,
    **how: Any,
) -> "pd.DataFrame":
    """Return a table of several schedules on one pipeline, the shortest step first.

    Columns: schedule, stages, step_ms (of one batch), inflation, bubble_fraction, span_bubble,
    closed_form_bubble_fraction, lower_bound_ms, held (micro-batches in flight at most, on the
    rank that holds the most), peak_stash_bytes, peak_memory_bytes, and error: why a schedule
    could not be run, which then has no numbers and stands last.

    Parameters
    ----------
    pipe
        Stages, devices and links. Neighbouring stages are merged for a schedule that takes fewer.
    schedules
        Names, paths of schedule files, or Schedules.
    microbatches
        Number of micro-batches m of one batch; by default that of the first Schedule or file.
    options
        Options of the schedules: each gets those that it has.
    training
        How the pipeline is trained: the steps then have their reductions and optimizer.
    progress
        Called now and then with the ops done and all ops of the schedule under way.
    how
        As for `simulate`: engine, protocol, queue_capacity, eager_limit_bytes, memory_limit.

    Raises
    ------
    ScheduleError
        If a name is unknown.
    ConfigError
        If a file cannot be read.
    ValueError
        If there are no schedules, or `how` is not as for `simulate`.

    Examples
    --------
    >>> pipe = Pipeline.from_costs([1, 1, 1, 2], input_grad=[1, 1, 1, 2], weight_grad=[1, 1, 1, 2])
    >>> table = compare(pipe, ["gpipe", "1f1b", "zb_h1", "zb_v"], microbatches=8)
    >>> table[["schedule", "step_ms", "held"]]
      schedule  step_ms  held
    0    zb_h1     51.0   4.0
    1     1f1b     57.0   4.0
    2    gpipe     57.0   8.0
    3     zb_v      NaN   NaN
    >>> print(table.error[3])
    zb_v needs 2 stages a rank, the pipeline has 4 stages on 4 ranks; ...
    """
    chosen = choose_schedules(schedules)
    return compare_runs(
        pipe, chosen, microbatches, options=options, training=training, progress=progress, **how
    ).table


def choose_schedules(schedules: Iterable[str | PathLike[str] | Schedule]) -> Chosen:
    """Return schedules by name; files are read, and called by their paths if their names clash.

    Raises
    ------
    ScheduleError
        If a name is unknown.
    ConfigError
        If a file cannot be read.
    ValueError
        If there is none.
    """
    wanted: list[str | Schedule] = [
        entry if isinstance(entry, Schedule) else fspath(entry) for entry in schedules
    ]
    if not wanted:
        raise ValueError(f"schedules: give at least one; {hint('', FAMILIES, 'or a file')}")
    stems = [Path(name).stem for name in wanted if isinstance(name, str)]
    chosen: dict[str, str | Schedule] = {}
    for entry in wanted:
        if isinstance(entry, Schedule):
            chosen[entry.name] = entry
        elif entry in FAMILIES:
            chosen[entry] = entry
        elif is_schedule_file(entry):
            read = read_schedule(entry)
            twice = stems.count(read.name) > 1
            chosen[fspath(entry)] = read.relabelled(name=fspath(entry)) if twice else read
        else:
            raise ScheduleError(f"unknown schedule {entry!r}; {hint(entry, FAMILIES, 'or a file')}")
    return chosen


def compare_runs(
    pipe: Pipeline,
    chosen: Chosen,
    microbatches: int | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    training: Training | None = None,
    progress: Progress | None = None,
    **how: Any,
) -> Comparison:
    """Return the runs of several schedules on one pipeline; the arguments are as for `compare`."""
    if microbatches is None:  # the costs or a schedule say it, which then all others follow
        given = (s.microbatches for s in chosen.values() if isinstance(s, Schedule))
        microbatches = next(given, None)
    runs: list[Run] = []
    unfit: dict[str, Exception] = {}
    ends: dict[str, float] = {}
    for name, schedule in chosen.items():
        family = FAMILIES.get(name)
        try:
            fitting = pipe if family is None else _regrouped(pipe, family)
            own = {} if family is None else family.options
            taken = {k: v for k, v in (options or {}).items() if k in own}
            order = resolve_schedule(fitting, schedule, microbatches, taken)
            if training is None:
                run = simulate(fitting, order, progress=progress, **how)
            elif without_end(order) is not None:
                run = simulate_slowest(fitting, order, training=training, progress=progress, **how)
            else:
                step = simulate_step(fitting, order, training=training, progress=progress, **how)
                run = step.runs[step.slowest_replica]
                ends[order.name] = step.step_ms - step.makespan
        except (DeadlockError, MemoryLimitError, ScheduleError, ValueError) as error:
            unfit[name] = error
        else:
            runs.append(run)
    of_a_batch = microbatches or (runs[0].schedule.microbatches if runs else 0)
    steps = {
        run.schedule.name: run.makespan * of_a_batch / run.schedule.microbatches
        + ends.get(run.schedule.name, 0.0)
        for run in runs
    }
    runs.sort(key=lambda run: _place(run, steps[run.schedule.name]))
    return Comparison(tuple(runs), of_a_batch, steps, frozenset(ends), unfit)


def held_microbatches(run: Run) -> float:
    """Return the most that a rank holds, in micro-batches of all its stages."""
    schedule = run.schedule
    copies = schedule.placement.directions
    parts = schedule.stages // schedule.ranks * schedule.slices
    return max(schedule.peak_in_flight()) / (parts if copies == 1 else 1)


def reason(error: Exception) -> str:
    """Return why a schedule could not be run, in one line."""
    lines = str(error).splitlines()
    return f"hangs: {lines[1].strip()}" if isinstance(error, DeadlockError) else lines[0]


def _regrouped(pipe: Pipeline, family: Family) -> Pipeline:
    chunks = family.chunks
    if chunks is None or len(pipe.stages) % (pipe.ranks * chunks):
        return pipe
    return pipe.regroup(chunks)


def _place(run: Run, step_ms: float) -> tuple[bool, float, int, float]:
    """Return what runs are sorted by: the time of a batch, then memory.

    What runs forwards only is no rival of the others and comes last.
    """
    step = float(f"{step_ms:.9g}")  # rounding makes no winner
    forward_only = run.schedule.kinds == {Kind.F}
    return forward_only, step, max(run.ranks.peak_stash_bytes), held_microbatches(run)
