"""Steps of PyTorch's own pipelining, run on a process a rank and measured op by op.

The processes talk over gloo on the loopback interface and find each other through a file, so that
no port has to be agreed on. Whatever happens, none of them is left when a call returns.
"""

import multiprocessing
import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from pipesim.checks import check_count
from pipesim.engine.deadlock import check_deadlock
from pipesim.errors import PipesimError, ScheduleError
from pipesim.io.files import is_schedule_file
from pipesim.io.torch_export import export_notes, write_schedule
from pipesim.io.torch_schedule import read_schedule
from pipesim.lowering import lower
from pipesim.pipeline import Pipeline
from pipesim.runtime.measured import MeasuredStep, measured_step
from pipesim.runtime.sleeping import sleeping_stage
from pipesim.runtime.worker import RankJob, work
from pipesim.schedule import Schedule
from pipesim.schedules import build_schedule

GRACE_S = 2.0  # for the cause of a failure to show, when the first complaint is a lost connection
SLOWEST_START_S = 90.0  # of all processes together: each imports PyTorch

# Gloo moves a message once its receive is posted, and PyTorch posts it about where a send arises.
PROTOCOL = "posted"

# Schedule class in PyTorch -> our name of its order, and options.
TORCH_CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "ScheduleGPipe": ("gpipe", {"order": "fifo"}),
    "Schedule1F1B": ("1f1b", {}),
    "ScheduleInterleaved1F1B": ("interleaved", {"grouping": "pytorch"}),
    "ScheduleInterleavedZeroBubble": ("interleaved_zb", {}),
    "ScheduleLoopedBFS": ("looped_bfs", {}),
    "ScheduleZBVZeroBubble": ("zb_v", {}),
}


class WorkerError(PipesimError, RuntimeError):
    """A process of a real pipeline that failed; the message ends with its traceback.

    Parameters
    ----------
    rank
        Its rank.
    reason
        Its traceback, or how it ended.
    """

    def __init__(self, rank: int, reason: str) -> None:
        self.rank, self.reason = rank, reason
        super().__init__(rank, reason)

    def __str__(self) -> str:
        return f"rank {self.rank} failed, and all were ended:\n{self.reason}"


@dataclass(frozen=True, slots=True, eq=False)
class RealStep:
    """A step to be run on processes: modules, an order, a batch. `real_step` makes one.

    Parameters
    ----------
    stages
        The module of every stage; each takes what the one before puts out.
    order
        In which each rank runs its ops.
    inputs, targets
        The whole batch, which is cut into micro-batches along its first dimension.
    loss_fn
        (output, target) -> loss.
    torch_class
        The class of PyTorch's that runs it, one of `TORCH_CLASSES`; "" for its runtime for files.

    Raises
    ------
    ScheduleError
        If the order is nothing that PyTorch takes, or does not fit the stages or the batch.
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
        Needed with a name only; ranks are by default as many as stages.

    Raises
    ------
    ScheduleError, DeadlockError
        As for `RealStep`; or if there is no such class.
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
    return RealStep(tuple(stages), schedule, inputs, targets, loss_fn, name)


def torch_order(
    torch_class: str, stages: int, microbatches: int | None, *, ranks: int | None = None
) -> Schedule:
    """Return the order in which a schedule class of PyTorch's runs the ops.

    Parameters
    ----------
    torch_class
        One of `TORCH_CLASSES`.
    stages, microbatches
        How many.
    ranks
        By default as many as stages.

    Raises
    ------
    ScheduleError
        If it is none of these, or does not take so many.

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

    Speeds, overheads, links and sizes of the pipeline are not imitated: what is there, is.

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
    if isinstance(schedule, Schedule):
        microbatches = schedule.microbatches
    elif is_schedule_file(schedule):
        schedule = read_schedule(schedule)
        microbatches = schedule.microbatches
    batch = torch.zeros(check_count("microbatches", microbatches), 1)
    return real_step(
        modules, schedule, batch, batch, first_sum, ranks=pipe.ranks, microbatches=microbatches
    )


def first_sum(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the sum of an output, as a loss that takes no time."""
    return output.sum()


def measure_steps(
    steps: Sequence[RealStep],
    *,
    repeats: int = 3,
    cores: Sequence[int] | None = None,
    timeout_s: float = 120.0,
) -> list[MeasuredStep]:
    """Run steps on a process a rank, in turns, and return what was measured.

    Each is run once before, untimed; then all of them once, all of them again, and so on.
    Processes are started by `spawn`, so a script that calls this does so below
    `if __name__ == "__main__":`, and modules and losses are of classes and functions that can be
    imported.

    Parameters
    ----------
    steps
        All on the same number of ranks, which are started once.
    repeats
        Times that each step is measured.
    cores
        The core that each rank is kept on, where the system can do that; by default any.
    timeout_s
        For all of it, beside the start of the processes.

    Raises
    ------
    ValueError
        If the steps have different numbers of ranks, or `cores` another.
    WorkerError
        If a process fails; the others are ended.
    TimeoutError
        If it takes too long; all are ended.
    """
    counts = sorted({step.order.ranks for step in steps})
    if len(counts) != 1:
        raise ValueError(f"steps on {counts} ranks: give at least one, all on the same number")
    ranks = counts[0]
    if cores is not None and len(cores) != ranks:
        raise ValueError(f"{len(cores)} cores for {ranks} ranks")
    check_count("repeats", repeats)
    with TemporaryDirectory(prefix="pipesim-") as folder:
        jobs = _pickled_jobs(steps, ranks, Path(folder))
        arguments = [
            (folder, None if cores is None else cores[rank], timeout_s) for rank in range(ranks)
        ]
        records = _run_processes(jobs, repeats, arguments, SLOWEST_START_S + timeout_s)
    return [
        measured_step(step.order, PROTOCOL, [of_rank[number] for of_rank in records])
        for number, step in enumerate(steps)
    ]


def _pickled_jobs(steps: Sequence[RealStep], ranks: int, folder: Path) -> list[bytes]:
    """Return what each rank is to do; by the plain pickle, which shares no memory of tensors."""
    jobs: list[list[RankJob]] = [[] for _ in range(ranks)]
    for number, step in enumerate(steps):
        path = folder / f"{number}.csv"
        write_schedule(step.order, path)
        for rank, of_rank in enumerate(jobs):
            held = [s for s, owner in enumerate(step.order.placement.rank_of) if owner == rank]
            of_rank.append(
                RankJob(
                    {stage: step.stages[stage] for stage in held},
                    step.order.stages,
                    step.order.microbatches,
                    step.torch_class,
                    str(path),
                    step.inputs,
                    step.targets,
                    step.loss_fn,
                )
            )
    return [pickle.dumps(of_rank) for of_rank in jobs]


def _run_processes(
    jobs: list[bytes], repeats: int, arguments: list[tuple[Any, ...]], limit_s: float
) -> Any:
    """Return what every process answers; whatever happens, none is left afterwards."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        processes: list[BaseProcess] = []
        answers: list[Connection] = []
        stack.callback(_end_all, processes)
        for rank, (pickled, rest) in enumerate(zip(jobs, arguments, strict=True)):
            ours, theirs = context.Pipe(duplex=False)
            stack.callback(ours.close)
            process = context.Process(
                target=work,
                args=(rank, len(jobs), pickled, repeats, theirs, *rest),
                daemon=True,
                name=f"pipesim rank {rank}",
            )
            process.start()
            theirs.close()  # so that the end of the process shows as the end of its answers
            processes.append(process)
            answers.append(ours)
        return _collect(processes, answers, time.monotonic() + limit_s)


def _collect(processes: list[BaseProcess], answers: list[Connection], deadline: float) -> list[Any]:
    """Wait for all answers; on the first failure only so long that its cause can show."""
    results: dict[int, Any] = {}
    failures: list[tuple[float, int, str]] = []  # when, which rank, what
    waiting = dict(zip(answers, range(len(answers)), strict=True))
    while waiting:
        ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
        if not ready and failures:
            break
        if not ready:
            late = sorted(waiting.values())
            raise TimeoutError(f"ranks {late} have not finished in time; all were ended")
        for connection in [one for one in waiting if one in ready]:
            rank = waiting.pop(connection)
            try:
                word, when, what = connection.recv()
            except EOFError:  # it could not even say why: that is the cause, others lost it
                processes[rank].join(GRACE_S)
                code = processes[rank].exitcode
                word, when, what = "failed", 0.0, f"it ended without a word, exit code {code}"
            if word == "done":
                results[rank] = what
            else:
                failures.append((when, rank, what))
                deadline = min(deadline, time.monotonic() + GRACE_S)
    if failures:
        _, rank, reason = min(failures)
        raise WorkerError(rank, reason)
    return [results[rank] for rank in range(len(answers))]


def _end_all(processes: list[BaseProcess]) -> None:
    """End processes that still run, and wait until they are gone."""
    for process in processes:
        process.join(0.0 if process.exitcode is not None else 1.0)
        if process.is_alive():
            process.kill()
    for process in processes:
        process.join()
        process.close()
