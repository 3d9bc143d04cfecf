"""The reference engine: every rank is a SimPy process that walks its order of ops.

    rank 0                              rank 1
    for op in order:                    for op in order:
        wait for its input  <- mailbox      wait for its input  <- mailbox
        compute             -- wire --->    compute

A micro-batch is a message that flows from op to op: when an op ends, its output goes onto the
wire to the rank of the op that takes it, and lands in that rank's mailbox under that op's
number. Keyed like this, a rank gets the input it needs whatever the order of arrival. Sending
never occupies a rank. With bounded queues, an op starts only when there is room for its output.
"""

from collections.abc import Generator, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import simpy

from pipesim.engine.channels import Handover, Mailbox, Queue, Wire
from pipesim.engine.deadlock import deadlock_error
from pipesim.engine.run_state import RunState
from pipesim.engine.workload import Workload
from pipesim.progress import Progress
from pipesim.schedule import Schedule
from pipesim.trace import Spans

REPORT_EVERY = 1024  # steps of a rank between two calls of the progress hook

Step: TypeAlias = tuple[int, ...]  # the number of an op, or those of an overlapped pair


def rank_process(
    env: simpy.Environment, steps: Sequence[Step], mailbox: Mailbox, run: RunState
) -> Generator[simpy.Event, None, None]:
    """Walk the steps of one rank: wait for the input, compute, pass the output on.

    A step is an op, or an overlapped pair of a forward and a backward, which starts when both
    inputs are there and passes both outputs on at its end.
    """
    producer, local_input, start, end = run.producer, run.local_input, run.start, run.end
    for batch in _batches(steps):
        for step in batch:
            ready = 0.0
            for op in step:
                if local_input[op] >= 0:
                    ready = max(ready, end[local_input[op]])
                if producer[op] >= 0:
                    if op not in mailbox.arrived:
                        yield mailbox.wait_for(op)
                    ready = max(ready, mailbox.arrived.pop(op))
            if run.bounded:
                for op in step:
                    queue = run.queue_out[op]
                    if queue is not None:
                        if not queue.free:
                            yield queue.room()
                        queue.take()
                for op in step:
                    queue = run.queue_in[op]
                    if queue is not None:
                        queue.give_back()

            now = env.now
            for op in step:
                run.ready[op] = ready
                start[op] = now
            yield simpy.Timeout(env, run.duration[step[0]])
            now = env.now
            for op in step:
                end[op] = now
                outlet = run.outlet[op]
                if outlet is not None:
                    outlet.send(op)
        run.report(sum(map(len, batch)))


def run_simpy(
    schedule: Schedule,
    workload: Workload,
    *,
    queue_capacity: int | None = None,
    progress: Progress | None = None,
) -> Spans:
    """Return when every op of a schedule ran.

    Parameters
    ----------
    schedule
        The order of every rank.
    workload
        The same schedule bound to the costs of a pipeline.
    queue_capacity
        Messages that fit between two stages on different ranks, in each direction; None: any.
    progress
        Called now and then with the number of ops done and of all ops.

    Raises
    ------
    DeadlockError
        If the run cannot go on; it names what every stuck rank waits for.
    """
    env = simpy.Environment()
    run = RunState(workload, progress)
    mailboxes = [Mailbox(env) for _ in range(schedule.ranks)]
    _connect(env, schedule, workload, mailboxes, run)
    if queue_capacity is not None:
        _bound_queues(env, schedule, workload, queue_capacity, run)
    for rank, mailbox in enumerate(mailboxes):
        steps = _steps(schedule.offsets[rank], schedule.offsets[rank + 1], workload)
        env.process(rank_process(env, steps, mailbox, run))
    env.run()
    spans = run.spans()
    if np.isnan(spans.end).any():
        raise deadlock_error(schedule, workload, spans)
    return spans


def _connect(
    env: simpy.Environment,
    schedule: Schedule,
    workload: Workload,
    mailboxes: Sequence[Mailbox],
    run: RunState,
) -> None:
    """Give every op whose output is taken its way out: one wire a directed pair of ranks."""
    outlets: dict[tuple[int, int], Wire | Handover] = {}
    passing = np.flatnonzero(workload.consumer >= 0)
    pairs = zip(schedule.rank[passing].tolist(), workload.target[passing].tolist(), strict=True)
    for op, (source, target) in zip(passing.tolist(), pairs, strict=True):
        if (source, target) not in outlets:
            outlets[source, target] = (
                Handover(mailboxes[source], run)
                if target < 0
                else Wire(env, mailboxes[target], run)
            )
        run.outlet[op] = outlets[source, target]


def _bound_queues(
    env: simpy.Environment, schedule: Schedule, workload: Workload, capacity: int, run: RunState
) -> None:
    """Put a queue between each two stages on different ranks, one for each direction of flow."""
    run.bounded = True
    queues: dict[tuple[int, int, int], Queue] = {}
    for op in np.flatnonzero(workload.target >= 0).tolist():
        consumer = run.consumer[op]
        direction = int(schedule.directions[schedule.microbatch[op]])
        boundary = int(schedule.stage[op]), int(schedule.stage[consumer]), direction
        if boundary not in queues:
            queues[boundary] = Queue(env, capacity)
        run.queue_out[op] = run.queue_in[consumer] = queues[boundary]


def _steps(first: int, last: int, workload: Workload) -> list[Step]:
    second = workload.second[first:last]
    steps: list[Step] = [(op,) for op in (first + np.flatnonzero(~second)).tolist()]
    if second.any():  # put each second op of a pair to its first
        for op in (first + np.flatnonzero(second)).tolist():
            place = op - first - int(np.count_nonzero(second[: op - first])) - 1
            steps[place] = (op - 1, op)
    return steps


def _batches(steps: Sequence[Step]) -> Iterator[Sequence[Step]]:
    for first in range(0, len(steps), REPORT_EVERY):
        yield steps[first : first + REPORT_EVERY]
