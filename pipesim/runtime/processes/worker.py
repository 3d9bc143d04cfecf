"""One process of a real pipeline: its rank's stages under PyTorch's schedules, each op timed.

Every process reads the same clock, CLOCK_MONOTONIC, so that times of different ranks compare.
"""

import gc
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

from pipesim.runtime.processes.sleeping import SleepingStage

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"

Record = tuple[int, str, int, int, int]  # stage, kind, micro-batch, start, end [ns]


class RankJob(NamedTuple):
    """The job of one rank in a step: the same for all ranks, but for the stages.

    Parameters
    ----------
    stages
        Number -> module, of the stages on this rank.
    num_stages, microbatches
        Number of stages and of micro-batches of the whole pipeline.
    torch_class
        Name of the schedule's class in PyTorch, or "" for an order from a file.
    order
        Path of that file.
    inputs, targets, loss_fn
        Inputs, targets and loss of the whole batch.
    """

    stages: dict[int, nn.Module]
    num_stages: int
    microbatches: int
    torch_class: str
    order: str
    inputs: torch.Tensor
    targets: torch.Tensor
    loss_fn: Callable[..., Any]


class TimedStage(PipelineStage):
    """PyTorch's stage, which records the start and the end of each of its ops."""

    records: list[Record]

    def forward_one_chunk(self, chunk: int, *args: Any, **kwargs: Any) -> Any:
        """Run F of a micro-batch."""
        return self._timed("F", chunk, super().forward_one_chunk, args, kwargs)

    def backward_one_chunk(self, chunk: int, *args: Any, **kwargs: Any) -> Any:
        """Run B or I of a micro-batch."""
        kind = "B" if kwargs.get("full_backward", True) else "I"
        return self._timed(kind, chunk, super().backward_one_chunk, args, kwargs)

    def backward_weight_one_chunk(self, chunk: int, *args: Any, **kwargs: Any) -> Any:
        """Run W of a micro-batch."""
        return self._timed("W", chunk, super().backward_weight_one_chunk, args, kwargs)

    def _timed(self, kind: str, chunk: int, run: Callable[..., Any], args: Any, named: Any) -> Any:
        start = time.monotonic_ns()
        result = run(chunk, *args, **named)
        self.records.append((self.stage_index, kind, chunk, start, time.monotonic_ns()))
        return result


def work(
    rank: int,
    ranks: int,
    pickled: bytes,
    repeats: int,
    answers: Connection,
    folder: str,
    core: int | None,
    timeout_s: float,
) -> None:
    """Run the jobs of one rank and send their records, or the traceback of what went wrong."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        if core is not None:
            os.sched_setaffinity(0, {core})
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
        store = dist.FileStore(str(Path(folder) / "store"), ranks)
        limit = timedelta(seconds=timeout_s)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
        records = _run(pickle.loads(pickled), repeats)
        dist.destroy_process_group()
        answers.send(("done", time.monotonic(), records))
    except BaseException:
        answers.send(("failed", time.monotonic(), traceback.format_exc()))
        answers.close()
        os._exit(1)  # at once: threads of the transfers may wait for others


def _end_with_parent() -> None:
    """End this process when its parent is gone, for whatever reason."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _run(jobs: list[RankJob], repeats: int) -> list[list[list[Record]]]:
    """Return the records of each job and repeat.

    The jobs run in turns, so that what disturbs the machine for a while disturbs all of them alike.
    """
    runs = [_runner(job) for job in jobs]
    for run in runs:
        run()  # connections are made, shapes are found
    gc.collect()
    gc.freeze()  # from here on there is little to look through while ops are timed
    turns = [[run() for run in runs] for _ in range(repeats)]
    return [list(of_job) for of_job in zip(*turns, strict=True)]


def _runner(job: RankJob) -> Callable[[], list[Record]]:
    """Return a function that runs one step of a job and returns its records."""
    stages = [_timed_stage(module, number, job) for number, module in sorted(job.stages.items())]
    schedule = _schedule(job, stages)
    inputs = (job.inputs,) if 0 in job.stages else ()
    target = {"target": job.targets} if job.num_stages - 1 in job.stages else {}

    def run() -> list[Record]:
        records: list[Record] = []
        for stage in stages:
            stage.records = records
            stage.submod.zero_grad()
        dist.barrier()
        schedule.step(*inputs, **target)
        dist.barrier()  # whoever is done first leaves the cores to the others
        return records

    return run


def _timed_stage(module: nn.Module, number: int, job: RankJob) -> TimedStage:
    builder = (lambda: module.weight_grad) if isinstance(module, SleepingStage) else None
    stage = TimedStage(module, number, job.num_stages, torch.device("cpu"), dw_builder=builder)
    stage.records = []
    return stage


def _schedule(job: RankJob, stages: list[TimedStage]) -> Any:
    if not job.torch_class:
        runtime = schedules._PipelineScheduleRuntime(stages, job.microbatches, job.loss_fn)
        runtime._load_csv(job.order)
        return runtime
    kind = getattr(schedules, job.torch_class)
    single = issubclass(kind, schedules.PipelineScheduleSingle)
    return kind(stages[0] if single else stages, job.microbatches, job.loss_fn)
