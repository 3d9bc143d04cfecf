"""The whole step: replicas of a pipeline side by side, then gradients, optimizer, parameters.

step = makespan + what the reductions that are left take + optimizer and gathers
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pipesim.base.errors import ScheduleError
from pipesim.base.ops import Kind
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.training import Training
from pipesim.run.resolve import ScheduleLike, resolve_schedule
from pipesim.run.run import Run
from pipesim.run.simulate import simulate
from pipesim.run.step_end import StepEnd, end_costs, last_backwards, ranks_through, step_end
from pipesim.run.step_table import end_columns, step_trace
from pipesim.schedules.order.schedule import Schedule

if TYPE_CHECKING:
    import pandas as pd

ONE_REPLICA = Training()


@dataclass(frozen=True, eq=False, repr=False)
class Step:
    """One simulated step of all replicas, to the end of the optimizer.

    Made by `simulate_step`. Numbers are worked out when they are asked for.

    Parameters
    ----------
    training
        The replicas, and what comes after the last backwards.
    runs
        One a replica; equal replicas share one.
    end
        When every part of the end runs.
    """

    training: Training
    runs: tuple[Run, ...]
    end: StepEnd

    @property
    def schedule(self) -> Schedule:
        """The order of the ops, the same in every replica."""
        return self.runs[0].schedule

    @property
    def makespan(self) -> float:
        """The longest of the replicas' makespans [ms]: compute only."""
        return max(run.makespan for run in self.runs)

    @property
    def slowest_replica(self) -> int:
        """The replica with the longest makespan, the first of several."""
        return max(range(len(self.runs)), key=lambda number: self.runs[number].makespan)

    @property
    def step_ms(self) -> float:
        """From the first start to the last end of everything [ms]."""
        return float(self.end.done.max()) - self._begin

    @property
    def period_ms(self) -> float:
        """How soon the same step may follow, its times unchanged [ms].

        The longest time from first start to last end on a rank. With a barrier that is the step,
        as the first rank waits for the last (if its own optimizer takes as long); without one,
        ranks that end early begin the next step early.
        """
        schedule = self.schedule
        begins = np.array([run.spans.start[schedule.offsets[:-1]] for run in self.runs])
        return float((self.end.done - begins).max())

    @property
    def exposed_reduction_ms(self) -> float:
        """How much later than the last op the last reduction ends [ms]."""
        return float(self.end.reduced.max()) - self._begin - self.makespan

    @property
    def update_ms(self) -> float:
        """What optimizer and gathers add after that [ms]: the rest of the step."""
        return self.step_ms - self.makespan - self.exposed_reduction_ms

    @cached_property
    def trace(self) -> "pd.DataFrame":
        """The traces of all replicas and of the step's end; columns as in `engine/trace.py`."""
        return step_trace(self.runs, self.end)

    @cached_property
    def ranks(self) -> "pd.DataFrame":
        """One row a replica and rank: replica, the columns of `Run.ranks`, and its end [ms].

        After its last op a rank has `wait_reduction`, for a reduction that others have not come
        to yet; `reduction`, the part of them that its compute does not hide; `wait_barrier`;
        `optimizer`; `gather`, of parameters, with the wait for the other replicas; `end`, when
        it is through. Of replicas that wait for each other, the one that waits least is slow.
        """
        import pandas as pd

        tables = [
            run.ranks.assign(**{name: values[number] for name, values in self._end.items()})
            for number, run in enumerate(self.runs)
        ]
        named = pd.concat(tables, keys=range(len(tables)), names=["replica", None])
        return named.reset_index("replica").reset_index(drop=True)

    def summary(self) -> dict[str, Any]:
        """Return all numbers of the step as plain values.

        The keys of `Run.summary`, for the slowest replica; then those of the step.
        """
        training = self.training
        wait = self._end["wait_reduction"] + self._end["wait_barrier"]
        return self.runs[self.slowest_replica].summary() | {
            "replicas": training.replicas,
            "zero": training.zero,
            "barrier": training.barrier,
            "overlap": training.overlap,
            "step_ms": self.step_ms,
            "period_ms": self.period_ms,
            "exposed_reduction_ms": self.exposed_reduction_ms,
            "update_ms": self.update_ms,
            "slowest_replica": self.slowest_replica,
            "per_replica": [
                {
                    "replica": number,
                    "makespan_ms": run.makespan,
                    "bubble_fraction": run.bubble_fraction,
                    "mean_wait_ms": float(wait[number].mean()),
                }
                for number, run in enumerate(self.runs)
            ],
        }

    @cached_property
    def _end(self) -> dict[str, Any]:
        return end_columns(self.end, self.schedule.placement)

    @property
    def _begin(self) -> float:
        return float(min(run.spans.begin for run in self.runs))

    def __repr__(self) -> str:
        return (
            f"Step({self.runs[0].program.title}, replicas={len(self.runs)}, "
            f"ranks={self.schedule.ranks}, microbatches={self.schedule.microbatches}, "
            f"step={self.step_ms:g} ms, makespan={self.makespan:g} ms)"
        )


def simulate_step(
    pipe: Pipeline | Sequence[Pipeline],
    schedule: ScheduleLike,
    microbatches: int | None = None,
    *,
    training: Training = ONE_REPLICA,
    options: Mapping[str, Any] | None = None,
    **simulate_options: Any,
) -> Step:
    """Return the step of all replicas of a pipeline, to the end of the optimizer.

    All run the same order; one that goes by the costs is made for the first replica. The stages'
    `param_bytes` are whole parameters: their gradients are reduced, and the runs' pipelines have
    what a rank holds of them (`Training.holding`). Gradients are reduced once a step, whatever
    the number of micro-batches. With ZeRO-3, gathering parameters within the ops is not timed.

    Parameters
    ----------
    pipe
        Stages, devices and links of every replica, or a sequence of one a replica. Either way
        `training.speed` is a factor on their devices.
    schedule, microbatches, options
        As for `simulate`; micro-batches of one replica.
    training
        The replicas, and what comes after the last backwards.
    simulate_options
        The other options of `simulate`: engine, protocol, queue_capacity, ...

    Raises
    ------
    ScheduleError
        As `simulate` does, and if the schedule has no backward, or keeps several versions of the
        parameters and so has no end of a step.
    ValueError
        If the pipelines are not as many as replicas or differ in their parameters, or the
        training has not one value a rank or stage where it needs one.
    DeadlockError
        If the run cannot go on.

    Examples
    --------
    >>> pipe = Pipeline.from_costs([1, 1], [2, 2], param_bytes=[1_000_000, 3_000_000])
    >>> training = Training(replicas=2, bandwidth_gb_s=1.0, optimizer_ms=0.5, speed=(1.0, 0.5))
    >>> step = simulate_step(pipe, "1f1b", 2, training=training)
    >>> [run.makespan for run in step.runs]
    [9.0, 18.0]
    >>> step
    Step(1f1b, replicas=2, ranks=2, microbatches=2, step=20 ms, makespan=18 ms)
    >>> step.ranks[["replica", "rank", "wait_reduction", "reduction", "wait_barrier", "end"]]
       replica  rank  wait_reduction  reduction  wait_barrier   end
    0        0     0             9.0        1.0           0.0  19.5
    1        0     1             7.0        3.0           2.0  19.5
    2        1     0             0.0        1.0           0.0  20.0
    3        1     1             0.0        3.0           2.0  20.0
    """
    pipes = _replicas(pipe, training)
    order = resolve_schedule(pipes[0], schedule, microbatches, options)
    reason = without_end(order)
    if reason is not None:
        raise ScheduleError(f"{reason}; run it with `simulate`")
    runs = _runs(pipes, order, training, simulate_options)
    end = step_end(
        np.array([last_backwards(run.program, run.spans) for run in runs]),
        np.array([ranks_through(run.program, run.spans) for run in runs]),
        order.placement.table,
        end_costs(training, pipes, order.placement),
        overlap=training.overlap,
        barrier=training.barrier,
    )
    return Step(training, runs, end)


def simulate_slowest(
    pipe: Pipeline, schedule: ScheduleLike, *, training: Training, **simulate_options: Any
) -> Run:
    """Return the run of the slowest replica, the first of several, without the end of the step.

    For schedules that have none, too. Parameters and errors are those of `simulate_step`.
    """
    pipes = _replicas(pipe, training)
    runs = _runs(pipes, resolve_schedule(pipes[0], schedule, None), training, simulate_options)
    return max(runs, key=lambda run: run.makespan)


def _replicas(pipe: Pipeline | Sequence[Pipeline], training: Training) -> list[Pipeline]:
    """Return the pipelines of all replicas, with their speeds and whole parameters."""
    whole = [pipe] * training.replicas if isinstance(pipe, Pipeline) else list(pipe)
    if len(whole) != training.replicas:
        raise ValueError(f"{len(whole)} pipelines for {training.replicas} replicas")
    _check_params(whole)
    return [training.replica(each, number) for number, each in enumerate(whole)]


def _runs(
    pipes: Sequence[Pipeline], order: Schedule, training: Training, how: Mapping[str, Any]
) -> tuple[Run, ...]:
    """Return the run of every replica; equal ones share one."""
    distinct: list[Pipeline] = []
    for each in pipes:
        if each not in distinct:
            distinct.append(each)
    made = [simulate(training.holding(each), order, **how) for each in distinct]
    return tuple(made[distinct.index(each)] for each in pipes)


def _check_params(pipes: Sequence[Pipeline]) -> None:
    sizes = [[stage.param_bytes for stage in pipe.stages] for pipe in pipes]
    for replica, other in enumerate(sizes):
        if other != sizes[0]:
            raise ValueError(
                f"replica {replica} has stages of {other} param_bytes, replica 0 of {sizes[0]}: "
                "replicas hold the same parameters, only their costs may differ"
            )


def without_end(schedule: Schedule) -> str | None:
    """Return why a schedule's step has no end with reductions and optimizer; None if it has."""
    if schedule.kinds == {Kind.F}:
        return f"{schedule.name} has no backward, so there is nothing to reduce or update"
    if max(schedule.weight_versions) > 1:
        return (
            f"{schedule.name} keeps {max(schedule.weight_versions)} versions of its parameters and "
            "updates them as it goes, so there is no end of a step"
        )
    return None
