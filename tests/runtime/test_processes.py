"""Real steps on processes: complete, in order, not quicker than can be; and nothing is left."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import pipesim as ps

torch = pytest.importorskip("torch", reason="pip install 'pipesim[torch]'")

from pipesim.runtime import (  # noqa: E402
    SleepingStage,
    WorkerError,
    measure_steps,
    real_step,
    sleeping_step,
    torch_order,
)

SPLIT = ps.Pipeline.from_costs([4, 6], input_grad=[5, 4], weight_grad=[3, 4])
TWO_EACH = {"input_grad": [5, 4, 3, 4], "weight_grad": [3, 4, 3, 2], "ranks": 2}
LOOPED = ps.Pipeline.from_costs([4, 6, 5, 4], **TWO_EACH)
V_SHAPED = ps.Pipeline.from_costs([4, 6, 5, 4], placement="v_shape", **TWO_EACH)
M = 4


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Return pipelines and what was measured on them, all on one start of two processes."""
    path = tmp_path_factory.mktemp("orders") / "mine.csv"
    ps.write_schedule(ps.build_schedule("1f1b_eager", 2, M), path)
    wanted = [
        (SPLIT, "ScheduleGPipe"),
        (SPLIT, "Schedule1F1B"),
        (SPLIT, path),
        (SPLIT, ps.build_schedule("zb_h1", 2, M)),
        (LOOPED, "ScheduleInterleaved1F1B"),
        (V_SHAPED, "ScheduleZBVZeroBubble"),
    ]
    steps = [sleeping_step(pipe, schedule, M) for pipe, schedule in wanted]
    found = measure_steps(steps, repeats=2)
    return [(pipe, step) for (pipe, _), step in zip(wanted, found, strict=True)]


def test_every_op_is_there_in_the_order_of_its_rank(measured):
    for _, step in measured:
        assert len(step.ops) == 2 * len(step.order)
        for (_, rank), ops in step.ops.groupby(["repeat", "rank"]):
            names = ops.stage.astype(str) + ops.kind + ops.microbatch.astype(str)
            assert names.tolist() == [str(op) for op in step.order.order(rank)]
            assert (ops.start.to_numpy()[1:] >= ops.end.to_numpy()[:-1]).all()
        assert step.ops.groupby("repeat").start.min().tolist() == [0, 0]
    assert [step.order.name for _, step in measured][2] == "mine"


def test_ops_take_their_time_and_wait_for_what_they_need(measured):
    for pipe, step in measured:
        costs = {"F": "forward_ms", "I": "input_grad_ms", "W": "weight_grad_ms"}
        for op in step.ops.itertuples():
            stage = pipe.stages[op.stage]
            parts = ["I", "W"] if op.kind == "B" else [op.kind]
            assert op.end - op.start >= sum(getattr(stage, costs[part]) for part in parts)
        ops = step.ops.set_index(["repeat", "kind", "stage", "microbatch"])
        for (repeat, kind, stage, m), op in ops.iterrows():
            if kind == "F" and stage > 0:
                assert op.start >= ops.end[repeat, "F", stage - 1, m]
            if kind == "W":
                assert op.start >= ops.end[repeat, "I", stage, m]


def test_the_step_takes_what_is_simulated_and_a_little_more(measured):
    for pipe, step in measured:
        nominal = ps.simulate(pipe, step.order, protocol=step.protocol).makespan
        assert step.makespan >= nominal * (1 - 1e-9)
        assert step.makespan <= 3 * nominal + 1000  # loose: it may be a busy machine
        for makespan, pipe_of_repeat in zip(step.makespans, step.pipelines(), strict=True):
            longest = ps.simulate(pipe_of_repeat, step.order).makespan
            assert nominal * (1 - 1e-9) <= longest <= makespan * (1 + 1e-9)
        assert "makespan=" in repr(step)


def test_overhead_and_latency_are_fitted_on_it(measured):
    pipe, step = measured[1]
    run = ps.MeasuredRun(
        pipe, step.order, step.makespan, protocol=step.protocol, end_ms=step.end_ms
    )
    fit = ps.fit_overhead([run])
    assert fit.overhead_ms > 0
    assert fit.latency_ms >= 0


def test_modules_that_compute_in_a_thread_and_nothing_is_left():
    before = listening_sockets()
    batch = torch.zeros(4, 8)
    modules = [torch.nn.Linear(8, 8) for _ in range(2)]
    step = real_step(modules, "Schedule1F1B", batch, batch, torch.nn.MSELoss(), microbatches=2)
    cores = sorted(os.sched_getaffinity(0))[:1] * 2 if hasattr(os, "sched_getaffinity") else None
    with ThreadPoolExecutor(1) as threads:
        (found,) = threads.submit(measure_steps, [step], repeats=1, cores=cores).result()
    assert found.makespan > 0
    assert found.pipelines()[0].ranks == 2
    assert multiprocessing.active_children() == []
    assert listening_sockets() == before


class Faulty(torch.nn.Module):
    """Fails on one rank, having written which process it runs in."""

    def __init__(self, folder, how=None):
        super().__init__()
        self.folder, self.how = folder, how
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, activation):
        (self.folder / str(os.getpid())).touch()
        if self.how == "raise":
            raise ZeroDivisionError("this stage is faulty")
        if self.how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "hang":
            time.sleep(60)
        return activation * self.weight


def faulty_step(folder, how):
    batch = torch.zeros(2, 1)
    modules = [Faulty(folder), Faulty(folder, how)]
    return real_step(modules, "ScheduleGPipe", batch, batch, torch.nn.MSELoss(), microbatches=2)


def check_all_gone(folder):
    pids = [int(path.name) for path in folder.iterdir()]
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert multiprocessing.active_children() == []


def test_a_worker_that_raises_ends_the_others_and_shows_its_traceback(tmp_path):
    with pytest.raises(WorkerError, match=r"(?s)rank 1 .*in forward.*this stage is faulty") as info:
        measure_steps([faulty_step(tmp_path, "raise")])
    assert info.value.rank == 1
    check_all_gone(tmp_path)


def test_a_worker_that_is_killed_is_named(tmp_path):
    with pytest.raises(WorkerError, match=r"(?s)rank 1 .*without a word, exit code -9"):
        measure_steps([faulty_step(tmp_path, "die")])
    check_all_gone(tmp_path)


def test_what_takes_too_long_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("pipesim.runtime.processes.processes.SLOWEST_START_S", 0.0)
    start = time.monotonic()
    with pytest.raises((TimeoutError, WorkerError)):
        measure_steps([faulty_step(tmp_path, "hang")], timeout_s=8)
    assert time.monotonic() - start < 50  # of the 60 that it would hang
    check_all_gone(tmp_path)


class Stopped(Exception):
    """What a handler of one's own makes of a signal."""


def stop(number, frame):
    raise Stopped


@pytest.mark.parametrize(
    ("number", "handler", "error"),
    [
        # Started in the background of a shell, this process would not listen to Ctrl-C.
        (signal.SIGINT, signal.default_int_handler, KeyboardInterrupt),
        (signal.SIGTERM, stop, Stopped),
    ],
    ids=["ctrl-c", "a handler of one's own"],
)
def test_a_signal_ends_them_all(tmp_path, number, handler, error):
    def interrupt():
        while not list(tmp_path.iterdir()):
            time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident, number)

    before = signal.signal(number, handler)
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(error):
            measure_steps([faulty_step(tmp_path, "hang")])
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)
    check_all_gone(tmp_path)


HANGING = """
import pathlib, sys
from pipesim.runtime import measure_steps
from tests.runtime.test_processes import faulty_step
measure_steps([faulty_step(pathlib.Path(sys.argv[1]), "hang")])
"""


def test_sigterm_ends_them_all(tmp_path):
    pids, temporary = tmp_path / "pids", tmp_path / "temporary"
    pids.mkdir()
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING, str(pids)],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"TMPDIR": str(temporary)},
    )
    try:
        limit = time.monotonic() + 60
        while not list(pids.iterdir()) and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.05)
        assert list(pids.iterdir())
        assert len(list(temporary.glob("pipesim-*"))) == 1
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
    check_all_gone(pids)
    assert list(temporary.glob("pipesim-*")) == []


def test_sigterm_is_put_back(measured):
    assert measured
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ("0F0,0F1,0B0\n1F0,1B0,1F1,1B1\n", ps.ScheduleError, "0B1"),
        ("0F0,0B0\n1F0,1B0\n2F0,2B0\n", ps.ScheduleError, "has 3 stages, but there are 2 modules"),
        ("0F0,0F1\n1F0,1F1\n", ps.ScheduleError, "there are no backwards"),
        ("0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n", ps.DeadlockError, "cannot go on"),
    ],
    ids=["missing backward", "wrong stage", "no backward", "hangs"],
)
def test_a_wrong_order_is_refused_before_any_process_starts(tmp_path, rows, error, message):
    path = tmp_path / "wrong.csv"
    path.write_text(rows)
    with pytest.raises(error, match=message):
        sleeping_step(SPLIT, path)
    assert multiprocessing.active_children() == []


def test_what_pytorch_does_not_take_is_refused():
    with pytest.raises(ps.ScheduleError, match="PyTorch does not load it: it knows no slices"):
        sleeping_step(SPLIT, ps.build_schedule("seq1f1b", 2, M))
    with pytest.raises(ps.ScheduleError, match="give one of ScheduleGPipe, Schedule1F1B"):
        sleeping_step(SPLIT, "1f1b", M)
    with pytest.raises(ps.ScheduleError, match="takes 2 micro-batches or more here, not 1"):
        sleeping_step(SPLIT, "Schedule1F1B", 1)
    with pytest.raises(ps.ScheduleError, match="3 stages on 2 ranks"):
        torch_order("ScheduleInterleaved1F1B", 3, 4, ranks=2)
    with pytest.raises(ValueError, match="stage 0 has no backward"):
        sleeping_step(ps.Pipeline.from_costs([1, 2]), "ScheduleGPipe", M)
    varying = ps.Pipeline.from_costs(np.ones((2, M)), np.ones((2, M)))
    with pytest.raises(ValueError, match="costs by micro-batch"):
        sleeping_step(varying, "ScheduleGPipe", M)
    batch = torch.zeros(5, 1)
    with pytest.raises(ps.ScheduleError, match="5 inputs and 5 targets do not go up evenly"):
        real_step([SleepingStage(1, 1)], "ScheduleGPipe", batch, batch, len, microbatches=2)


def test_an_order_has_its_own_ranks_and_micro_batches(tmp_path):
    order, batch = ps.build_schedule("1f1b", 2, M), torch.zeros(M, 8)
    modules = [torch.nn.Linear(8, 8) for _ in range(2)]
    ps.write_schedule(order, tmp_path / "order.csv")
    for schedule in (order, tmp_path / "order.csv"):
        assert sleeping_step(SPLIT, schedule, M).order.microbatches == M
        with pytest.raises(ps.ScheduleError, match="has 4 micro-batches, not 5"):
            sleeping_step(SPLIT, schedule, 5)
        with pytest.raises(ps.ScheduleError, match="has 2 ranks, not 1"):
            real_step(modules, schedule, batch, batch, len, ranks=1)


def test_steps_that_do_not_go_together():
    one, two = (
        sleeping_step(pipe, "ScheduleGPipe", M)
        for pipe in (ps.Pipeline.from_costs([1], [1]), SPLIT)
    )
    with pytest.raises(ValueError, match=r"steps on \[1, 2\] ranks"):
        measure_steps([one, two])
    with pytest.raises(ValueError, match=r"steps on \[\] ranks"):
        measure_steps([])
    with pytest.raises(ValueError, match="1 cores for 2 ranks"):
        measure_steps([two], cores=[0])


@pytest.mark.parametrize("timeout_s", [0, -5, float("inf"), float("nan"), 1e7, "10", True])
def test_a_timeout_that_is_none_is_refused(timeout_s):
    with pytest.raises(ValueError, match=f"timeout_s = '?{timeout_s}'? is no number of seconds"):
        measure_steps([sleeping_step(SPLIT, "ScheduleGPipe", M)], timeout_s=timeout_s)


def test_cores_that_cannot_be_had_are_refused(monkeypatch):
    step = sleeping_step(SPLIT, "ScheduleGPipe", M)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    with pytest.raises(ValueError, match=r"cores = \[0, 99\]: .* not use 99, only \[0, 1\]"):
        measure_steps([step], cores=[0, 99])
    monkeypatch.delattr(os, "sched_getaffinity")
    with pytest.raises(ValueError, match="this system keeps no process on a core; leave them out"):
        measure_steps([step], cores=[0, 1])


def test_what_cannot_be_sent_to_a_process_is_named():
    class Local(torch.nn.Linear):
        """Of a class that cannot be imported."""

    batch, loss = torch.zeros(4, 8), torch.nn.MSELoss()
    modules = [torch.nn.Linear(8, 8), Local(8, 8)]
    good = real_step(modules[:1] * 2, "ScheduleGPipe", batch, batch, loss, microbatches=2)
    bad = real_step(
        modules, "ScheduleGPipe", batch, batch, lambda output, target: output.sum(), microbatches=2
    )
    with pytest.raises(ValueError, match="put them at the top level of a module") as info:
        measure_steps([good, bad])
    first, second, _ = str(info.value).splitlines()
    assert first.startswith("step 1 (gpipe): stage 1 (Local) cannot be pickled: ")
    assert second.startswith("step 1 (gpipe): loss_fn cannot be pickled: ")
    assert multiprocessing.active_children() == []


UNGUARDED = """
import torch
from pipesim.runtime import measure_steps, real_step
batch, modules = torch.zeros(2, 8), [torch.nn.Linear(8, 8)]
step = real_step(modules, "ScheduleGPipe", batch, batch, torch.nn.MSELoss(), microbatches=2)
measure_steps([step])
"""


def test_a_script_without_a_guard_is_told_of_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert (
        'exit code 1; did the script call this outside of `if __name__ == "__main__":`?'
        in (done.stderr.splitlines()[-1])
    )


def listening_sockets():
    """Return the sockets of this process and its children on which somebody listens."""
    if not os.path.exists("/proc/self/net/tcp"):
        return set()
    listening = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/self/net/{table}") as lines:
            fields = [line.split() for line in lines][1:]
        listening |= {f"socket:[{line[9]}]" for line in fields if line[3] == "0A"}
    held = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            held.add(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue  # the one that listed them
    return held & listening
