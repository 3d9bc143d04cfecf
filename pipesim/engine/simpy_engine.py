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

import numpy as np
import simpy

from pipesim.engine.channels import Handover, Mailbox, Queue, Wire
from pipesim.engine.deadlock import deadlock_error
from pipesim.engine.run_state import RunState
from pipesim.engine.workload import Workload
from pipesim.progress import Progress
from pipesim.schedule import Schedule
from pipesim.trace import Spans

REPORT_EVERY = 1024  # ops of a rank between two calls of the progress hook


def rank_process(
    env: simpy.Environment, order: range, mailbox: Mailbox, run: RunState
) -> Generator[simpy.Event, None, None]:
    """Walk the ops of one rank: wait for the input, compute, pass the output on."""
    producer, local_input, start, end = run.producer, run.local_input, run.start, run.end
    for batch in _batches(order):
        for op in batch:
            ready = end[local_input[op]] if local_input[op] >= 0 else 0.0
            if producer[op] >= 0:
                if op not in mailbox.arrived:
                    yield mailbox.wait_for(op)
                ready = max(ready, mailbox.arrived.pop(op))
            run.ready[op] = ready

            queue = run.queue_out[op]
            if queue is not None:
                if not queue.free:
                    yield queue.room()
                queue.take()
            queue = run.queue_in[op]
            if queue is not None:
                queue.give_back()

            start[op] = env.now
            yield simpy.Timeout(env, run.duration[op])
            end[op] = env.now
            outlet = run.outlet[op]
            if outlet is not None:
                outlet.send(op)
        run.report(len(batch))


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
        order = range(schedule.offsets[rank], schedule.offsets[rank + 1])
        env.process(rank_process(env, order, mailbox, run))
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
    queues: dict[tuple[int, int], Queue] = {}
    for op in np.flatnonzero(workload.target >= 0).tolist():
        consumer = run.consumer[op]
        ends = int(schedule.stage[op]), int(schedule.stage[consumer])
        if ends not in queues:
            queues[ends] = Queue(env, capacity)
        run.queue_out[op] = run.queue_in[consumer] = queues[ends]


def _batches(order: range) -> Iterator[range]:
    for first in range(0, len(order), REPORT_EVERY):
        yield order[first : first + REPORT_EVERY]
