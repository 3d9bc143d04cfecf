"""The state of a run under way: plain lists by op number, quicker to index than arrays."""

import numpy as np
import simpy

from pipesim.base.types import Progress
from pipesim.engine.trace import Spans
from pipesim.engine.workload import Workload
from pipesim.schedules.program.program import Program


class RunState:
    """The costs, inputs and times of every op during a run; times not yet known are NaN."""

    def __init__(
        self,
        workload: Workload,
        program: Program,
        progress: Progress | None = None,
    ) -> None:
        ops = len(workload.duration)
        self.duration: list[float] = workload.duration.tolist()
        self.producer: list[int] = workload.producer.tolist()
        self.consumer: list[int] = program.consumer.tolist()
        self.local_input: list[int] = workload.local_input.tolist()
        self.wire: list[float] = workload.wire.tolist()
        self.latency: list[float] = workload.latency.tolist()
        self.ready, self.start, self.end, self.departure, self.arrival = (
            [np.nan] * ops for _ in range(5)
        )
        instructions = len(program) if program.listed else 0
        self.enter, self.leave = ([np.nan] * instructions for _ in range(2))
        self.meets: list[bool] = workload.meets.tolist()
        self.bells: dict[int, simpy.Event] = {}  # triggered when a message arrives
        self.progress = progress
        self.done = 0

    def report(self, ops: int) -> None:
        """Report `ops` more ops as done to the progress hook."""
        self.done += ops
        if self.progress is not None:
            self.progress(self.done, len(self.end))

    def spans(self) -> Spans:
        """Return the times of the run as arrays."""
        times = self.ready, self.start, self.end, self.departure, self.arrival
        instructions = self.enter, self.leave
        return Spans(*map(np.array, (*times, *instructions)))
