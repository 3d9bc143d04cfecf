"""Spans -> numbers: busy and idle time of each rank, idle by cause, bubbles.

Everything on a rank between the first start of the run and its last end is busy or idle, and
every idle stretch has one cause:

    fill            before the rank's first op
    wait_forward    waiting for an activation
    wait_gradient   waiting for a gradient
    queue_full      the input was there, but no room for the output (bounded queues)
    drain           after the rank's last op

Idle time is defined as the sum of these parts. Exposed communication is the part of the two
waits in which the message was under way already.
"""

from dataclasses import dataclass

import numpy as np

from pipesim.arrays import FloatArray
from pipesim.engine.workload import Workload
from pipesim.ops import Kind
from pipesim.schedule import Schedule
from pipesim.trace import Spans

IDLE_CAUSES = ("fill", "wait_forward", "wait_gradient", "queue_full", "drain")


@dataclass(frozen=True, slots=True, eq=False)
class RankTimes:
    """Where each rank's time went; arrays (ranks,) [ms], `makespan` one number [ms]."""

    makespan: float
    busy: FloatArray
    span: FloatArray  # first start to last end on the rank
    fill: FloatArray
    wait_forward: FloatArray
    wait_gradient: FloatArray
    queue_full: FloatArray
    drain: FloatArray
    exposed_communication: FloatArray

    @property
    def idle(self) -> FloatArray:
        """Idle time, the sum of its parts by cause."""
        parts: list[FloatArray] = [getattr(self, cause) for cause in IDLE_CAUSES]
        return np.sum(parts, axis=0)

    @property
    def bubble_fraction(self) -> FloatArray:
        """Idle share of the makespan of each rank."""
        return self.idle / self.makespan if self.makespan > 0 else np.zeros_like(self.busy)

    @property
    def bubble(self) -> float:
        """Bubble fraction: idle / (p x makespan)."""
        return float(self.bubble_fraction.mean())

    @property
    def bubble_ratio(self) -> float:
        """Bubble ratio: idle / busy, both summed over the ranks."""
        return float(self.idle.sum() / self.busy.sum()) if self.makespan > 0 else 0.0

    @property
    def span_bubble(self) -> float:
        """Span bubble: 1 - sum of busy / (p x largest span of a rank)."""
        if self.makespan == 0:
            return 0.0
        return float(1 - self.busy.sum() / (len(self.busy) * self.span.max()))

    @property
    def balance(self) -> float:
        """Mean work over largest work of a rank: what unequal ranks leave of the time."""
        return float(self.busy.mean() / self.busy.max()) if self.makespan > 0 else 1.0

    @property
    def filled(self) -> float:
        """Largest work of a rank over the makespan; balance x filled = 1 - bubble fraction."""
        return float(self.busy.max() / self.makespan) if self.makespan > 0 else 1.0


def rank_times(schedule: Schedule, workload: Workload, spans: Spans) -> RankTimes:
    """Return where each rank's time went."""
    rank, first_op, last_op = schedule.rank, schedule.offsets[:-1], schedule.offsets[1:] - 1
    begin, finish = spans.start.min(), spans.end.max()

    def per_rank(values: FloatArray) -> FloatArray:
        return np.bincount(rank, weights=values, minlength=schedule.ranks)

    previous_end = np.empty(len(schedule))
    previous_end[1:] = spans.end[:-1]
    previous_end[first_op] = spans.start[first_op]  # what is before the first op is fill
    wait = np.maximum(np.minimum(spans.ready, spans.start) - previous_end, 0.0)
    for_activation = schedule.kind == Kind.F
    return RankTimes(
        makespan=float(finish - begin),
        busy=per_rank(spans.end - spans.start),
        span=spans.end[last_op] - spans.start[first_op],
        fill=spans.start[first_op] - begin,
        wait_forward=per_rank(np.where(for_activation, wait, 0.0)),
        wait_gradient=per_rank(np.where(for_activation, 0.0, wait)),
        queue_full=per_rank(np.maximum(spans.start - previous_end - wait, 0.0)),
        drain=finish - spans.end[last_op],
        exposed_communication=per_rank(_under_way(workload, spans, previous_end, wait)),
    )


def _under_way(
    workload: Workload, spans: Spans, previous_end: FloatArray, wait: FloatArray
) -> FloatArray:
    """Return the part of each op's wait in which its message had been produced already."""
    remote = (workload.producer >= 0) & (workload.target[workload.producer] >= 0)
    produced = np.where(remote, spans.end[workload.producer], np.inf)
    return np.minimum(wait, np.maximum(spans.ready - np.maximum(previous_end, produced), 0.0))
