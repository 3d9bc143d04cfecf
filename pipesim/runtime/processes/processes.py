"""Steps of PyTorch's own pipelining, run on a process a rank and measured op by op.

The processes talk over gloo on the loopback interface and find each other through a file, so that
no port has to be agreed on. Whatever happens, none of them is left when a call returns.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NoReturn

from pipesim.base.checks import check_count, is_number, shown
from pipesim.base.errors import PipesimError
from pipesim.runtime.processes.measured_step import MeasuredStep, measured_step
from pipesim.runtime.processes.rank_jobs import pickled_jobs
from pipesim.runtime.processes.torch_steps import RealStep
from pipesim.runtime.processes.worker import work

GRACE_S = 2.0  # for the cause of a failure to show, when the first complaint is a lost connection
SLOWEST_START_S = 90.0  # of all processes together: each imports PyTorch
LONGEST_S = 1e6  # which the system can still wait for at once

# Added when a process dies at its start, as where the script, imported again, has no guard.
NO_GUARD = (
    '; did the script call this outside of `if __name__ == "__main__":`? What it printed says more'
)

# Gloo moves a message once its receive is posted, and PyTorch posts it about where a send arises.
PROTOCOL = "posted"


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


def measure_steps(
    steps: Sequence[RealStep],
    *,
    repeats: int = 3,
    cores: Sequence[int] | None = None,
    timeout_s: float = 120.0,
) -> list[MeasuredStep]:
    """Return steps as measured, run in turns with a process a rank.

    Each is run once before, untimed; then all of them once, all of them again, and so on.
    Processes are started by `spawn`, so a script that calls this does so below
    `if __name__ == "__main__":`, and modules and losses are of classes and functions that can be
    imported. In the main thread, SIGTERM ends them before this process, unless there is a handler
    for it already.

    Parameters
    ----------
    steps
        Steps on the same number of ranks, whose processes are started once.
    repeats
        Number of measurements of each step.
    cores
        The core that each rank is kept on, where the system can do that; by default any.
    timeout_s
        Limit for all repeats of all steps, beside the start of the processes; above 0 and at most
        10^6.

    Raises
    ------
    ValueError
        If the steps have different numbers of ranks, or `cores` another; if this process may not
        use a core, a module, loss or batch cannot be pickled, or `repeats` or `timeout_s` is out of
        range.
    WorkerError
        If a process fails; the others are ended.
    TimeoutError
        If it takes too long; all are ended.
    """
    counts = sorted({step.order.ranks for step in steps})
    if len(counts) != 1:
        raise ValueError(f"steps on {counts} ranks: give at least one, all on the same number")
    ranks = counts[0]
    _check_cores(cores, ranks)
    check_count("repeats", repeats)
    if not is_number(timeout_s) or not 0 < timeout_s <= LONGEST_S:
        raise ValueError(f"timeout_s = {timeout_s!r} is no number of seconds above 0, up to 10^6")
    with _clearing_away(), TemporaryDirectory(prefix="pipesim-") as folder:
        jobs = pickled_jobs(steps, ranks, Path(folder))
        arguments = [
            (folder, None if cores is None else cores[rank], timeout_s) for rank in range(ranks)
        ]
        records = _run_processes(jobs, repeats, arguments, SLOWEST_START_S + timeout_s)
    return [
        measured_step(step.order, PROTOCOL, [of_rank[number] for of_rank in records])
        for number, step in enumerate(steps)
    ]


def _check_cores(cores: Sequence[int] | None, ranks: int) -> None:
    if cores is None:
        return
    if len(cores) != ranks:
        raise ValueError(f"{len(cores)} cores for {ranks} ranks")
    if not hasattr(os, "sched_getaffinity"):
        raise ValueError("cores: this system keeps no process on a core; leave them out")
    allowed = os.sched_getaffinity(0)
    for core in cores:
        if core not in allowed:
            raise ValueError(
                f"cores = {list(cores)}: this process may not use {core}, only "
                f"{shown(sorted(allowed))}"
            )


@contextmanager
def _clearing_away() -> Iterator[None]:
    """Turn SIGTERM into SystemExit for a while, so that the processes are ended before this one."""
    in_main = threading.current_thread() is threading.main_thread()  # no other may set handlers
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def end(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # a second one would disturb the clearing away
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _run_processes(
    jobs: list[bytes], repeats: int, arguments: list[tuple[Any, ...]], limit_s: float
) -> Any:
    """Return the answers of all processes; whatever happens, none is left afterwards."""
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
    """Return the answers of all ranks; after a failure, wait only until its cause can show."""
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
                hint = NO_GUARD if code == 1 else ""
                word, when = "failed", 0.0
                what = f"it ended without a word, exit code {code}{hint}"
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
