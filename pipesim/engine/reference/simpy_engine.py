"""The reference engine: every rank is a SimPy process that walks its order of ops.

    rank 0                              rank 1
    for op in order:                    for op in order:
        wait for its input  <- mailbox      wait for its input  <- mailbox
        compute             -- wire --->    compute

A micro-portion is a message that flows from op to op: when an op ends, its output goes onto the
wire to the rank of the op that takes it, and lands in that rank's mailbox under that op's
number. Keyed like this, a rank gets the input it needs whatever the order of arrival. With
bounded queues, an op starts only when there is room for its output.

By itself sending never occupies a rank. Under a protocol in which sends and receives are
instructions, those that stand between two ops of the rank are performed between them.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import simpy

from pipesim.base.types import Progress
from pipesim.engine.graph.deadlock import deadlock_error
from pipesim.engine.graph.event_graph import event_graph
from pipesim.engine.reference.channels import Exchange, Handover, Mailbox, MeetingWire, Queue, Wire
from pipesim.engine.reference.run_state import RunState
from pipesim.engine.trace import Spans
from pipesim.engine.workload import Workload
from pipesim.schedules.program.program import Program
from pipesim.schedules.program.text import RECV, SEND

REPORT_EVERY = 1024  # steps of a rank between two calls of the progress hook

# The number of an op, or the two of an overlapped pair, and the transfers that come before.
Step: TypeAlias = tuple[tuple[int, ...], Sequence[Exchange]]


class Wiring:
    """The way out of each op's output, by op number, and the bounded queues around the op."""

    def __init__(self, ops: int) -> None:
        self.outlet: list[Wire | Handover | None] = [None] * ops
        self.queue_in: list[Queue | None] = [None] * ops  # the queue of its input
        self.queue_out: list[Queue | None] = [None] * ops  # the queue of its output
        self.bounded = False  # whether there are queues


def rank_process(
    env: simpy.Environment,
    steps: Sequence[Step],
    last: Sequence[Exchange],
    mailbox: Mailbox,
    wiring: Wiring,
    run: RunState,
) -> Generator[simpy.Event, None, None]:
    """Walk the steps of one rank: wait for the input, compute, pass the output on.

    A step is an op, or an overlapped pair of a forward and a backward, which starts when both
    inputs are there and passes both outputs on at its end. Before it come the transfers that
    stand before it in the rank's instructions; the `last` ones come after all steps.
    """
    producer, local_input, start, end = run.producer, run.local_input, run.start, run.end
    for portion in _portions(steps):
        for step, exchanges in portion:
            for exchange in exchanges:
                yield from exchange.perform()
            ready = 0.0
            for op in step:
                if local_input[op] >= 0:
                    ready = max(ready, end[local_input[op]])
                if producer[op] >= 0:
                    if op not in mailbox.arrived:
                        yield mailbox.wait_for(op)
                    ready = max(ready, mailbox.arrived.pop(op))
            if wiring.bounded:
                for op in step:
                    queue = wiring.queue_out[op]
                    if queue is not None:
                        if not queue.free:
                            yield queue.room()
                        queue.take()
                for op in step:
                    queue = wiring.queue_in[op]
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
                outlet = wiring.outlet[op]
                if outlet is not None:
                    outlet.send(op)
        run.report(sum(len(step) for step, _ in portion))
    for exchange in last:
        yield from exchange.perform()


def run_simpy(
    program: Program,
    workload: Workload,
    *,
    queue_capacity: int | None = None,
    progress: Progress | None = None,
) -> Spans:
    """Return the times of every op of a program.

    Parameters
    ----------
    program
        Instructions of every rank, made from a schedule.
    workload
        The same schedule bound to the costs of a pipeline.
    queue_capacity
        Messages that fit between two stages on different ranks, in each direction; None: any.
    progress
        Called now and then with the number of ops done and of all ops.

    Raises
    ------
    DeadlockError
        If the run cannot go on; it names the ranks that wait for each other.
    """
    env = simpy.Environment()
    run = RunState(workload, program, progress)
    mailboxes = [Mailbox(env) for _ in range(program.ranks)]
    wires = _wires(env, program, mailboxes, run)
    exchanges = _exchanges(env, program, wires, run)
    wiring = _wiring(program, mailboxes, wires, run)
    if queue_capacity is not None:
        _bound_queues(env, program, queue_capacity, wiring)
    for rank, mailbox in enumerate(mailboxes):
        steps, last = _steps(program, rank, exchanges)
        env.process(rank_process(env, steps, last, mailbox, wiring, run))
    env.run()
    spans = run.spans()
    if np.isnan(spans.end).any() or np.isnan(spans.leave[list(exchanges)]).any():
        raise deadlock_error(
            event_graph(program, queue_capacity=queue_capacity, meets=workload.meets)
        )
    return spans


def _wires(
    env: simpy.Environment, program: Program, mailboxes: Sequence[Mailbox], run: RunState
) -> dict[tuple[int, int], Wire]:
    """Return the wires by pair (sending rank, receiving rank) that messages go between."""
    kind = MeetingWire if program.listed else Wire
    there = program.source >= 0
    pairs = np.unique(np.stack([program.source[there], program.target[there]]), axis=1)
    return {(a, b): kind(env, mailboxes[b], run) for a, b in pairs.T.tolist()}


def _wiring(
    program: Program,
    mailboxes: Sequence[Mailbox],
    wires: Mapping[tuple[int, int], Wire],
    run: RunState,
) -> Wiring:
    """Return the wiring of a program, with the ways of all outputs that leave by themselves."""
    wiring = Wiring(len(program.consumer))
    rank, target = program.order.rank.tolist(), program.target.tolist()
    by_itself = not program.listed
    handovers = [Handover(mailbox, run) for mailbox in mailboxes]
    for op in np.flatnonzero(program.consumer >= 0).tolist():
        if target[op] < 0:
            wiring.outlet[op] = handovers[rank[op]]
        elif by_itself:
            wiring.outlet[op] = wires[rank[op], target[op]]
    return wiring


def _exchanges(
    env: simpy.Environment,
    program: Program,
    wires: Mapping[tuple[int, int], Wire],
    run: RunState,
) -> dict[int, Exchange]:
    """Return the exchanges: the instructions that send and receive, by number."""
    found = {}
    source, target = program.source.tolist(), program.target.tolist()
    action, number = program.action.tolist(), program.number.tolist()
    for instruction in np.flatnonzero(~program.computes).tolist():
        items = [(action[item], number[item]) for item in program.items(instruction)]
        ends: dict[int, list[tuple[MeetingWire, int]]] = {SEND: [], RECV: []}
        for end, op in items:
            wire = wires[source[op], target[op]]
            assert isinstance(wire, MeetingWire)
            ends[end].append((wire, op))
        awaited = [op for end, op in items if end == RECV or run.meets[op]]
        found[instruction] = Exchange(
            env,
            instruction,
            ends[SEND],
            ends[RECV],
            awaited if program.blocking[instruction] else (),
            run,
        )
    return found


def _bound_queues(env: simpy.Environment, program: Program, capacity: int, wiring: Wiring) -> None:
    """Put a queue between each two stages on different ranks for each direction of flow."""
    schedule = program.order
    wiring.bounded = True
    queues: dict[tuple[int, int, int], Queue] = {}
    for op in np.flatnonzero(program.source >= 0).tolist():
        consumer = int(program.consumer[op])
        direction = int(schedule.directions[schedule.microbatch[op]])
        boundary = int(schedule.stage[op]), int(schedule.stage[consumer]), direction
        if boundary not in queues:
            queues[boundary] = Queue(env, capacity)
        wiring.queue_out[op] = wiring.queue_in[consumer] = queues[boundary]


def _steps(
    program: Program, rank: int, exchanges: Mapping[int, Exchange]
) -> tuple[list[Step], Sequence[Exchange]]:
    """Return the steps of a rank, and its exchanges after the last step."""
    first, last = program.offsets[[rank, rank + 1]].tolist()
    bounds = program.item_offsets[first : last + 1]
    number = program.number[bounds[0] : bounds[-1]].tolist()
    if not exchanges:
        return [(tuple(number[i:j]), ()) for i, j in pairwise((bounds - bounds[0]).tolist())], ()
    steps: list[Step] = []
    before: Sequence[Exchange] = ()
    for instruction, (begin, end) in enumerate(pairwise((bounds - bounds[0]).tolist()), first):
        if instruction in exchanges:
            before = (*before, exchanges[instruction])
        else:
            steps.append((tuple(number[begin:end]), before))
            before = ()
    return steps, before


def _portions(steps: Sequence[Step]) -> Iterator[Sequence[Step]]:
    for first in range(0, len(steps), REPORT_EVERY):
        yield steps[first : first + REPORT_EVERY]
