"""Steps that PyTorch's own pipelining is to run: modules, an order, a batch; all checked before."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch
from torch import nn

from pipesim.base.checks import check_count
from pipesim.base.errors import ScheduleError
from pipesim.base.files import is_schedule_file
from pipesim.engine.graph.deadlock import check_deadlock
from pipesim.files.schedule_csv.read import read_schedule
from pipesim.files.schedule_csv.write import export_notes
from pipesim.pipeline.pipeline import Pipeline
from pipesim.runtime.processes.sleeping import sleeping_stage
from pipesim.schedules.families.registry import build_schedule
from pipesim.schedules.order.schedule import Schedule
from pipesim.schedules.program.lowering import lower

# Schedule class in PyTorch -> our name of its order, and options.
TORCH_CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "ScheduleGPipe": ("gpipe", {"order": "fifo"}),
    "Schedule1F1B": ("1f1b", {}),
    "ScheduleInterleaved1F1B": ("interleaved", {"grouping": "pytorch"}),
    "ScheduleInterleavedZeroBubble": ("interleaved_zb", {}),
    "ScheduleLoopedBFS": ("looped_bfs", {}),
    "ScheduleZBVZeroBubble": ("zb_v", {}),
}


@dataclass(frozen=True, slots=True, eq=False)
class RealStep:
    """A step to be run on processes: modules, an order, a batch. `real_step` makes one.

    Parameters
    ----------
    stages
        The module of every stage; each takes the output of the one before.
    order
        The order in which each rank runs its ops.
    inputs, targets
        The whole batch, which is cut into micro-batches along its first dimension.
    loss_fn
        (output, target) -> loss.
    torch_class
        The class of PyTorch's that runs it, one of `TORCH_CLASSES`; "" for its runtime for files.

    Raises
    ------
    ScheduleError
        If PyTorch does not take the order, or it does not fit the stages or the batch.
    DeadlockError
        If it cannot go on.
    """

    stages: Sequence[nn.Module]
    order: Schedule
    inputs: torch.Tensor
    targets: torch.Tensor
    loss_fn: Callable[..., Any]
    torch_class: str = ""

    def __post_init__(self) -> None:
        name, m = self.order.name, self.order.microbatches
        if self.order.stages != len(self.stages):
            raise ScheduleError(
                f"{name} has {self.order.stages} stages, but there are {len(self.stages)} modules"
            )
        if len(self.inputs) % m or len(self.targets) % m:
            raise ScheduleError(
                f"{len(self.inputs)} inputs and {len(self.targets)} targets do not go up evenly "
                f"in the {m} micro-batches of {name}"
            )
        if self.order.separate_recompute:
            raise ScheduleError(f"{name} recomputes apart from the backward; PyTorch does not")
        for note in export_notes(self.order):
            if note.startswith("PyTorch"):
                raise ScheduleError(f"{name}: {note}")
        check_deadlock(lower(self.order, "eager"))


def real_step(
    stages: Sequence[nn.Module],
    schedule: str | PathLike[str] | Schedule,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    loss_fn: Callable[..., Any],
    *,
    ranks: int | None = None,
    microbatches: int | None = None,
) -> RealStep:
    """Return a step of modules to be run on processes.

    Where an order splits the backward, PyTorch does nothing in I of the first stage and all in its
    W, for nobody asks for the gradient of the model's input; `SleepingStage` keeps the two apart.

    Parameters
    ----------
    stages, inputs, targets, loss_fn
        As for `RealStep`.
    schedule
        An order, a schedule file, or the name of a class of PyTorch's, one of `TORCH_CLASSES`.
        An order or a file is run by PyTorch's runtime for files.
    ranks, microbatches
        Needed with a name only, and no others than an order's own; ranks are by default as many
        as stages.

    Raises
    ------
    ScheduleError, DeadlockError
        As for `RealStep`; or if there is no such class, or the order has other numbers of
        ranks or micro-batches than given.
    ConfigError
        If the file cannot be read.

    Examples
    --------
    >>> batch = torch.zeros(3, 8)
    >>> modules = [nn.Linear(8, 8), nn.Linear(8, 8)]
    >>> step = real_step(modules, "Schedule1F1B", batch, batch, nn.MSELoss(), microbatches=3)
    >>> print(step.order)
    1f1b: 2 ranks, 3 micro-batches
    rank 0 | F0 F1 .  B0 F2 B1 .  B2
    rank 1 | .  F0 B0 F1 B1 F2 B2 .
    """
    name = ""
    if is_schedule_file(schedule):
        schedule = read_schedule(schedule)
    elif not isinstance(schedule, Schedule):
        name = str(schedule)
        schedule = torch_order(name, len(stages), microbatches, ranks=ranks)
    for asked, own, what in (
        (microbatches, schedule.microbatches, "micro-batches"),
        (ranks, schedule.ranks, "ranks"),
    ):
        if asked not in (None, own):
            raise ScheduleError(f"{schedule.name} has {own} {what}, not {asked}")
    return RealStep(tuple(stages), schedule, inputs, targets, loss_fn, name)


def torch_order(
    torch_class: str, stages: int, microbatches: int | None, *, ranks: int | None = None
) -> Schedule:
    """Return the order of the ops in a schedule class of PyTorch's.

    Parameters
    ----------
    torch_class
        One of `TORCH_CLASSES`.
    stages, microbatches
        Number of stages, and of micro-batches.
    ranks
        Number of ranks; by default as many as stages.

    Raises
    ------
    ScheduleError
        If it is none of these classes, or does not take these numbers.

    Examples
    --------
    >>> torch_order("ScheduleGPipe", 2, 3)
    Schedule('gpipe', ranks=2, stages=2, microbatches=3, ops=12)
    """
    if torch_class not in TORCH_CLASSES:
        known = ", ".join(TORCH_CLASSES)
        raise ScheduleError(
            f"{torch_class!r} is no schedule class of PyTorch's that is known here; give one of "
            f"{known}, a Schedule, or a file that ends in .csv"
        )
    ours, options = TORCH_CLASSES[torch_class]
    ranks = check_count("ranks", stages if ranks is None else ranks)
    if stages % ranks:
        raise ScheduleError(f"{stages} stages on {ranks} ranks: {torch_class} places equally many")
    if ours in ("interleaved", "interleaved_zb", "looped_bfs"):
        options = {"chunks": stages // ranks, **options}
    m = check_count("microbatches", microbatches)
    if torch_class == "Schedule1F1B" and m < ranks:
        raise ScheduleError(f"Schedule1F1B takes {ranks} micro-batches or more here, not {m}")
    return build_schedule(ours, ranks, m, **options)


def sleeping_step(
    pipe: Pipeline, schedule: str | PathLike[str] | Schedule, microbatches: int | None = None
) -> RealStep:
    """Return a step of stages that sleep for as long as those of a pipeline take.

    Speeds, overheads, links and sizes of the pipeline are not imitated: those of the machine hold.

    Parameters
    ----------
    pipe
        The costs, one number a stage.
    schedule, microbatches
        As for `real_step`.

    Raises
    ------
    ScheduleError, DeadlockError, ConfigError
        As `real_step`.
    ValueError
        If a stage has no backward, or costs by micro-batch.

    Examples
    --------
    >>> pipe = Pipeline.from_costs(forward=[10, 20], backward=[20, 40])
    >>> sleeping_step(pipe, "ScheduleGPipe", 4).order
    Schedule('gpipe', ranks=2, stages=2, microbatches=4, ops=16)
    """
    modules = [sleeping_stage(stage, number) for number, stage in enumerate(pipe.stages)]
    if is_schedule_file(schedule):
        schedule = read_schedule(schedule)
    given = isinstance(schedule, Schedule)
    count = schedule.microbatches if isinstance(schedule, Schedule) else microbatches
    batch = torch.zeros(check_count("microbatches", count), 1)
    return real_step(
        modules,
        schedule,
        batch,
        batch,
        first_sum,
        ranks=None if given else pipe.ranks,
        microbatches=microbatches,
    )


def first_sum(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the sum of an output, as a loss that takes no time."""
    return output.sum()
