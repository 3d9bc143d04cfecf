"""Running an on-line policy: each rank chooses its next op from the ready ones.

The result is an order. The times of a run are those of the order, which are the same: an op that
a policy takes starts as soon as the op before it has ended and its inputs are there.
"""

from bisect import insort
from collections.abc import Generator
from functools import partial

import numpy as np
import simpy
from simpy.events import EventPriority

from pipesim.base.errors import DeadlockError, ScheduleError
from pipesim.base.ops import Kind
from pipesim.engine.reference.channels import Handover, Wire
from pipesim.engine.reference.run_state import RunState
from pipesim.engine.workload import bind
from pipesim.pipeline.pipeline import Pipeline
from pipesim.schedules.families.policies import Policy, RankState
from pipesim.schedules.order.dataflow import closes
from pipesim.schedules.order.schedule import Schedule
from pipesim.schedules.program.program import Program, bare_program

DECIDE = EventPriority(2)  # after all else of the same instant; SimPy's own are 0 and 1


class Desk:
    """The ready ops of one rank, in the order of micro-batches and stages."""

    def __init__(self, env: simpy.Environment, schedule: Schedule, missing: list[int]) -> None:
        self.env, self.schedule, self.missing = env, schedule, missing
        self.ready: list[tuple[int, int, int]] = []  # (micro-batch, stage, number of the op)
        self.bell = env.event()

    def put(self, op: int) -> None:
        """Receive one input of an op, which is ready after its last input."""
        self.missing[op] -= 1
        if self.missing[op] <= 0:
            named = self.schedule.op(op)
            insort(self.ready, (named.microbatch, named.stage, op))
            if not self.bell.triggered:
                self.bell.succeed()


def run_policy(policy: Policy, pipe: Pipeline, microbatches: int) -> Schedule:
    """Return the schedule in which a policy runs a pipeline.

    Raises
    ------
    ScheduleError
        If the policy chooses an op that is not ready, or the placement is bidirectional.
    DeadlockError
        If the policy lets every rank wait although ops are left.
    """
    if pipe.placement.directions > 1:
        raise ScheduleError(f"policy {policy.name!r} runs in one direction, not bidirectionally")
    template = _all_ops(policy, pipe, microbatches)
    program = bare_program(template)
    env = simpy.Environment()
    run = RunState(bind(program, pipe), program)
    missing = [(p >= 0) + (q >= 0) for p, q in zip(run.producer, run.local_input, strict=True)]
    desks = [Desk(env, template, missing) for _ in range(template.ranks)]
    outlets = _outlets(env, program, desks, run)
    orders: list[list[int]] = [[] for _ in desks]
    for rank, desk in enumerate(desks):
        for op in range(template.offsets[rank], template.offsets[rank + 1]):
            if not missing[op]:
                desk.put(op)
        env.process(_decide(env, policy, template, rank, desk, run, outlets, orders[rank]))
    env.run()
    done = np.array([len(order) for order in orders])
    left = np.flatnonzero(done < np.diff(template.offsets))
    if left.size:
        raise DeadlockError(
            f"policy {policy.name!r} lets rank {left[0]} and all others wait, although ops "
            "are left; if it limits what is in flight, which counts every stage of a "
            "micro-batch, allow more"
        )
    chosen = np.concatenate([np.array(order, dtype=np.int64) for order in orders])
    return Schedule(
        name=policy.name,
        remake=partial(run_policy, policy, microbatches=microbatches),
        placement=pipe.placement,
        microbatches=microbatches,
        stage=template.stage[chosen],
        kind=template.kind[chosen],
        microbatch=template.microbatch[chosen],
        offsets=template.offsets,
    )


def _decide(
    env: simpy.Environment,
    policy: Policy,
    schedule: Schedule,
    rank: int,
    desk: Desk,
    run: RunState,
    outlets: dict[int, Wire | Handover],
    order: list[int],
) -> Generator[simpy.Event, None, None]:
    """Run one rank: let the policy choose op after op, and append each to `order`."""
    first, last = int(schedule.offsets[rank]), int(schedule.offsets[rank + 1])
    followers: dict[int, list[int]] = {}
    for op in range(first, last):
        followers.setdefault(run.local_input[op], []).append(op)
    ends = closes(schedule)
    held, forwards = 0, int(np.count_nonzero(schedule.kind[first:last] == Kind.F))
    while len(order) < last - first:
        yield _after_all_else(env)
        ready = [schedule.op(op) for _, _, op in desk.ready]
        state = RankState(rank, schedule.ranks, env.now, held, forwards)
        choice = policy.choose(ready, state) if ready else None
        if choice is None:
            desk.bell = env.event()
            yield desk.bell
            continue
        if choice not in ready:
            raise ScheduleError(
                f"policy {policy.name!r} chose {choice!s} on rank {rank} at {env.now:g} ms, "
                f"which is not among the ready ops: {' '.join(map(str, ready))}"
            )
        _, _, op = desk.ready.pop(ready.index(choice))
        order.append(op)
        if choice.kind == Kind.F:
            held, forwards = held + 1, forwards - 1
        yield simpy.Timeout(env, run.duration[op])
        held -= int(ends[op])
        for follower in followers.get(op, ()):
            desk.put(follower)
        if op in outlets:
            outlets[op].send(op)


def _after_all_else(env: simpy.Environment) -> simpy.Event:
    """Return an event after all others of this instant, so that all ops that tie are ready."""
    event = env.event()
    event._ok, event._value = True, None  # as succeed() does, which takes no priority
    env.schedule(event, priority=DECIDE)
    return event


def _all_ops(policy: Policy, pipe: Pipeline, microbatches: int) -> Schedule:
    """Return the schedule of all ops of a run in some order, to bind the costs to."""
    kinds = (Kind.F, Kind.I, Kind.W) if policy.split else (Kind.F, Kind.B)

    def columns(rank: int) -> tuple[list[int], list[int], list[int]]:
        ops = [
            (stage, int(kind), number)
            for stage in pipe.placement.stages_of(rank)
            for kind in kinds
            for number in range(microbatches)
        ]
        return [s for s, _, _ in ops], [k for _, k, _ in ops], [n for _, _, n in ops]

    rank_ops = map(columns, range(pipe.placement.ranks))
    return Schedule.from_rank_ops(policy.name, pipe.placement, microbatches, rank_ops)


def _outlets(
    env: simpy.Environment,
    program: Program,
    desks: list[Desk],
    run: RunState,
) -> dict[int, Wire | Handover]:
    """Return the wire or handover of every op whose output is taken, by op number."""
    rank = program.order.rank
    ways: dict[tuple[int, int], Wire | Handover] = {}
    outlets = {}
    for op in np.flatnonzero(program.consumer >= 0).tolist():
        source, target = int(rank[op]), int(program.target[op])
        if (source, target) not in ways:
            ways[source, target] = (
                Handover(desks[source], run) if target < 0 else Wire(env, desks[target], run)
            )
        outlets[op] = ways[source, target]
    return outlets
