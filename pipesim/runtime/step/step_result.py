"""The result of a real step: its loss, the bytes its ranks held, and its simulated run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from pipesim.pipeline.training import Training
from pipesim.run.run import Run
from pipesim.run.simulate import simulate
from pipesim.run.step import Step, simulate_step
from pipesim.runtime.step.execution import Measured
from pipesim.runtime.step.measured_pipeline import measured_pipeline
from pipesim.schedules.order.schedule import Schedule


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """The result of a real step: its loss, and its simulated run with a device for each rank.

    Parameters
    ----------
    loss
        Loss of the whole batch.
    run
        The simulated run of the measured times; for several replicas that of the slowest. Its
        `pipeline` has every stage's costs, one a micro-batch, and bytes; for a stage that
        recomputes also the time that this adds, `recompute_ms`, and the bytes not kept,
        `rebuilt_bytes`.
    peak_activation_bytes
        Most bytes that each rank has held for its backwards at once, counted by storages;
        parameters, their gradients and messages that nobody has taken yet do not count. The
        largest of several replicas. None if they were not counted.
    peak_in_flight
        The most (stage, micro-batch) pairs that each rank has held at once.
    step
        The simulated step of all replicas, where there are several.
    """

    loss: float
    run: Run
    peak_activation_bytes: tuple[int, ...] | None
    peak_in_flight: tuple[int, ...]
    step: Step | None = None


def step_result(
    schedule: Schedule, stages: Sequence[nn.Module], measured: Sequence[Measured], counted: bool
) -> StepResult:
    """Return the result of a step, from what was measured of each replica.

    Parameters
    ----------
    counted
        Whether the bytes of activations were counted.
    """
    pipes = [measured_pipeline(schedule, stages, each, counted) for each in measured]
    step = None
    if len(pipes) == 1:
        run = simulate(pipes[0], schedule)
    else:
        step = simulate_step(pipes, schedule, training=Training(replicas=len(pipes)))
        run = step.runs[step.slowest_replica]
    return StepResult(
        loss=float(torch.stack([part for each in measured for part in each.losses]).sum()),
        run=run,
        peak_activation_bytes=_largest(each.peak_bytes for each in measured) if counted else None,
        peak_in_flight=_largest(each.peak_in_flight for each in measured),
        step=step,
    )


def _largest(rows: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(max(column) for column in zip(*rows, strict=True))
