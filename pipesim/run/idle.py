"""Spans -> numbers: busy and idle time of each rank, idle by cause, bubbles.

Everything on a rank between the first start of the run and its last end is busy or idle, and
every idle stretch has one cause of `CAUSES`. What reports, charts and pages say of a cause stands
there; only its colour and hatch are elsewhere, in `pipesim/plot/style.py`.

Idle time is defined as the sum of these parts. Exposed communication is the part of the waits in
which the message was under way already, and of the blocked time that in which one travelled.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from pipesim.base.ops import Kind
from pipesim.base.types import BoolArray, FloatArray, Int32Array, IntArray
from pipesim.engine.trace import Spans
from pipesim.engine.workload import Workload
from pipesim.run.shares import run_shares
from pipesim.schedules.order.dataflow import second_of_pair
from pipesim.schedules.order.schedule import Schedule
from pipesim.schedules.program.program import Program
from pipesim.schedules.program.text import COMPUTE

Feature: TypeAlias = Literal["protocol", "bounded queues"]


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause of idle time, how it is measured, and what is said of it."""

    key: str  # the field of `RankTimes`, the column of `run.ranks`; with _ms in JSON
    words: str  # on charts and pages
    column: str  # its head in the report
    measured: str  # from when to when a rank is idle for this cause
    # How the report says which message the rank waits for, "" if it waits for none. Exposed
    # communication is part of the causes that have one.
    message: str = ""
    # Whether it ends as the op's input comes: pages then name the input instead of the cause.
    ends_with_input: bool = False
    # The feature without which no run has it, None if any run may have it. On the ladder the rung
    # of that feature shows on the rank that is idle the longest for this cause.
    only_with: Feature | None = None


# In the order of legends and columns. Each is also a field of `RankTimes`, and is measured in
# `idle_spans`.
CAUSES = (
    Cause(
        key="fill",
        words="fill",
        column="fill",
        measured="From the first start of the run to the start of the rank's first op.",
        ends_with_input=True,
    ),
    Cause(
        key="wait_forward",
        words="waits for activation",
        column="wait F",
        measured="From when the rank is free until the activation is there that its next op needs.",
        message="for an activation",
        ends_with_input=True,
    ),
    Cause(
        key="wait_gradient",
        words="waits for gradient",
        column="wait B",
        measured="From when the rank is free until the gradient is there that its next op needs.",
        message="for a gradient",
        ends_with_input=True,
    ),
    Cause(
        key="blocked",
        words="blocked in a transfer",
        column="blocked",
        measured="From the end of an op until the sends and receives after it let the rank go on.",
        message="in a send or receive",
        only_with="protocol",
    ),
    Cause(
        key="queue_full",
        words="queue full",
        column="queue full",
        measured="From when rank and input are ready until there is room for the op's output.",
        only_with="bounded queues",
    ),
    Cause(
        key="drain",
        words="drain",
        column="drain",
        measured="From the end of the rank's last op to the last end of the run.",
    ),
)
IDLE_CAUSES = tuple(cause.key for cause in CAUSES)


def causes_of(program: Program, queue_capacity: int | None) -> tuple[Cause, ...]:
    """Return the causes that a run can have, in the order of `CAUSES`."""
    there = {None: True, "protocol": program.listed, "bounded queues": queue_capacity is not None}
    return tuple(cause for cause in CAUSES if there[cause.only_with])


@dataclass(frozen=True, slots=True, eq=False)
class RankTimes:
    """Where each rank's time went; arrays (ranks,) [ms], `makespan` one number [ms]."""

    makespan: float
    busy: FloatArray
    span: FloatArray  # first start to last end on the rank
    fill: FloatArray
    wait_forward: FloatArray
    wait_gradient: FloatArray
    blocked: FloatArray
    queue_full: FloatArray
    drain: FloatArray
    exposed_communication: FloatArray

    @property
    def idle(self) -> FloatArray:
        """Idle time, the sum of its parts by cause."""
        total: FloatArray = np.sum([getattr(self, cause) for cause in IDLE_CAUSES], axis=0)
        return total

    @property
    def bubble_fraction(self) -> FloatArray:
        """Idle share of the makespan of each rank."""
        return self.idle / self.makespan if self.makespan > 0 else np.zeros_like(self.busy)

    @property
    def shares(self) -> dict[str, float | None]:
        """Bubbles, balance and filling by name, as `run_shares` has them; None for NaN."""
        makespan = np.array([self.makespan])
        found = run_shares(makespan, self.span[np.newaxis], self.busy[np.newaxis])
        return {
            name: None if np.isnan(share[0]) else float(share[0]) for name, share in found.items()
        }


@dataclass(frozen=True, slots=True, eq=False)
class IdleSpans:
    """Idle stretches of one cause; arrays (stretches,): `rank`, `start` and `end` [ms].

    And `before`, the number of the op that each comes before; -1 after the last op of a rank.
    """

    rank: Int32Array
    before: IntArray
    start: FloatArray
    end: FloatArray


def idle_spans(program: Program, workload: Workload, spans: Spans) -> dict[str, IdleSpans]:
    """Return the idle stretches of every rank by cause, in the order of `IDLE_CAUSES`."""
    schedule = program.order
    rank, first_op, last_op = schedule.rank, schedule.offsets[:-1], schedule.offsets[1:] - 1
    every_rank = np.arange(schedule.ranks, dtype=np.int32)
    begin = np.full(schedule.ranks, spans.begin)
    finish = np.full(schedule.ranks, spans.end.max())
    stops = previous_ends(schedule, spans)
    free = _free_since(program, spans, stops)
    got_input = np.clip(spans.ready, free, spans.start)
    # Of an overlapped pair the wait counts once, and for the input that came last.
    once, every_op = ~workload.second, np.ones(len(schedule), dtype=bool)
    for_activation = schedule.kind == Kind.F
    second = np.flatnonzero(workload.second)
    if second.size:
        inputs = input_times(workload, spans)
        late = np.where(inputs[second] > inputs[second - 1], second, second - 1)
        for_activation[second - 1] = schedule.kind[late] == Kind.F

    def between(which: BoolArray, start: FloatArray, end: FloatArray) -> IdleSpans:
        idle = np.flatnonzero(which & once & (end > start))
        return IdleSpans(rank[idle], idle, start[idle], end[idle])

    return {
        "fill": IdleSpans(every_rank, first_op, begin, spans.start[first_op]),
        "wait_forward": between(for_activation, free, got_input),
        "wait_gradient": between(~for_activation, free, got_input),
        "blocked": between(every_op, stops, free),
        "queue_full": between(every_op, got_input, spans.start),
        "drain": IdleSpans(every_rank, np.full(schedule.ranks, -1), spans.end[last_op], finish),
    }


def rank_times(program: Program, workload: Workload, spans: Spans) -> RankTimes:
    """Return busy time, span, and idle time by cause of each rank."""
    schedule = program.order

    def per_rank(rank: Int32Array, values: FloatArray) -> FloatArray:
        sums = np.bincount(rank, weights=values, minlength=schedule.ranks)
        return np.asarray(sums, dtype=np.float64)  # without stretches bincount gives ints

    first_op, last_op = schedule.offsets[:-1], schedule.offsets[1:] - 1
    idle = {
        cause: per_rank(found.rank, found.end - found.start)
        for cause, found in idle_spans(program, workload, spans).items()
    }
    return RankTimes(
        makespan=float(spans.end.max() - spans.begin),
        busy=workload.busy,
        span=spans.end[last_op] - spans.start[first_op],
        exposed_communication=per_rank(schedule.rank, _exposed(program, workload, spans))
        + per_rank(program.rank, _exposed_while_blocked(program, spans)),
        **idle,
    )


def previous_ends(schedule: Schedule, spans: Spans) -> FloatArray:
    """Return when the op before ended on the rank; of a rank's first op, its own start."""
    previous_end = np.empty(len(schedule))
    previous_end[1:] = spans.end[:-1]
    second = np.flatnonzero(second_of_pair(schedule))
    previous_end[second] = previous_end[second - 1]
    first_op = schedule.offsets[:-1]
    previous_end[first_op] = spans.start[first_op]
    return previous_end


def input_times(workload: Workload, spans: Spans) -> FloatArray:
    """Return when the input of each op from another stage was there; 0 for a source."""
    source = workload.producer
    arrival = np.where(np.isnan(spans.arrival), spans.end, spans.arrival)
    return np.asarray(np.where(source >= 0, arrival[source], 0.0), dtype=np.float64)


def waits(
    program: Program,
    workload: Workload,
    spans: Spans,
    idle: Mapping[str, IdleSpans],
) -> dict[str, Any]:
    """Return the idle time before each op by cause, and what it waited for: arrays (ops,).

    `waited` is how long the rank was idle before [ms], and there is a column of its parts for
    each cause of the run, by the name of the cause. `source`, `source_kind` and `source_rank` are
    those of the op of another stage whose output came in that time: it is of the same
    micro-batch, and its stage is -1 where there is none.
    """
    schedule = program.order
    idle_since = previous_ends(schedule, spans)
    idle_since[schedule.offsets[:-1]] = spans.begin
    waited = np.maximum(spans.start - idle_since, 0.0)
    producer = workload.producer
    remote = (producer >= 0) & (input_times(workload, spans) > idle_since) & (waited > 0)
    known = np.where(remote, producer, 0)
    columns = {
        "waited": waited,
        "source": np.where(remote, schedule.stage[known], -1).astype(np.int32),
        "source_kind": schedule.kind[known].astype(np.int32),
        "source_rank": np.where(remote, schedule.rank[known], -1).astype(np.int32),
    }
    second = np.flatnonzero(workload.second)
    for cause, found in idle.items():
        lasting = np.flatnonzero((found.before >= 0) & (found.end > found.start))
        if lasting.size:
            part = np.zeros(len(schedule), dtype=np.float32)
            part[found.before[lasting]] = found.end[lasting] - found.start[lasting]
            part[second] = part[second - 1]  # a pair waits together
            columns[cause] = part
    return columns


def _free_since(program: Program, spans: Spans, stops: FloatArray) -> FloatArray:
    """Return when the rank was through with all that it does before each op, array (ops,).

    That is when the op before ended (`stops`), or when the transfers between them let it go on.
    """
    if not program.listed:
        return stops
    instruction = program.instruction_of_op
    before = spans.leave[instruction - 1]
    first = np.isin(instruction, program.offsets[:-1])
    free: FloatArray = np.where(first | np.isnan(before), stops, np.minimum(before, spans.start))
    return np.maximum(free, stops)


def _exposed_while_blocked(program: Program, spans: Spans) -> FloatArray:
    """Return the part of each instruction that blocks in which a message of it travelled.

    Array (instructions,); 0 before the first op of a rank and after its last.
    """
    exposed = np.zeros(len(program))
    if not program.listed:
        return exposed
    item = np.flatnonzero(
        (program.action != COMPUTE) & program.blocking[program.instruction_of_item]
    )
    instruction = program.instruction_of_item[item]
    # Of each instruction the union of the times in which its messages travel.
    message = program.number[item]
    begin = np.maximum(spans.departure[message], spans.enter[instruction])
    end = np.minimum(spans.arrival[message], spans.leave[instruction])
    order = np.lexsort((begin, instruction))
    instruction, begin, end = instruction[order], begin[order], end[order]
    same = np.append(False, np.diff(instruction) == 0)
    until = np.array(end)  # the latest end so far in the instruction
    for place in np.flatnonzero(same).tolist():
        until[place] = max(until[place], until[place - 1])
    since = np.where(same, np.maximum(begin, np.append(0.0, until[:-1])), begin)
    travel = np.maximum(end - since, 0.0)
    computing = np.cumsum(program.computes)  # of all ranks so far
    done = computing[program.offsets[1:] - 1]
    begun = np.append(0, done[:-1])
    between = (computing > begun[program.rank]) & (computing < done[program.rank])
    np.add.at(exposed, instruction, travel)
    return np.where(between, exposed, 0.0)


def _exposed(program: Program, workload: Workload, spans: Spans) -> FloatArray:
    """Return the part of each op's wait in which its message had been produced already."""
    schedule = program.order
    remote = (workload.producer >= 0) & (program.target[workload.producer] >= 0)
    produced = np.where(remote, spans.end[workload.producer], np.inf)
    free = _free_since(program, spans, previous_ends(schedule, spans))
    waiting_since = np.maximum(free, produced)
    arrived = np.minimum(input_times(workload, spans), spans.start)
    exposed = np.maximum(arrived - waiting_since, 0.0)
    second = np.flatnonzero(workload.second)
    # A pair waits for both of its messages at once: the longer exposure counts.
    exposed[second - 1] = np.maximum(exposed[second - 1], exposed[second])
    exposed[second] = 0.0
    return np.asarray(exposed, dtype=np.float64)
