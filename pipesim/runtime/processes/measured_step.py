"""A measured step: start and end of every op as it really ran, in the terms of a simulated run."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from pipesim.base.ops import Kind
from pipesim.base.types import FloatArray
from pipesim.pipeline.pipeline import Pipeline
from pipesim.schedules.order.schedule import Schedule

if TYPE_CHECKING:
    import pandas as pd

Records = Sequence[tuple[int, str, int, int, int]]  # stage, kind, micro-batch, start, end [ns]


@dataclass(frozen=True, eq=False, repr=False)
class MeasuredStep:
    """Start and end of every op of a real step [ms], in each of its repeats.

    Parameters
    ----------
    order
        The order that was run.
    protocol
        The protocol of its messages, one of `pipesim.schedules.program.lowering`.
    start, end
        Start and end of every op from the first start of each repeat [ms], arrays (repeats, ops)
        in the order of the schedule.
    """

    order: Schedule
    protocol: str
    start: FloatArray
    end: FloatArray

    @property
    def makespans(self) -> FloatArray:
        """Last end minus first start of each repeat [ms], array (repeats,)."""
        longest: FloatArray = self.end.max(axis=1) - self.start.min(axis=1)
        return longest

    @property
    def makespan(self) -> float:
        """Median of the makespans [ms]."""
        return float(np.median(self.makespans))

    @property
    def end_ms(self) -> FloatArray:
        """End of every op from the first start, median over the repeats; array (ops,) [ms]."""
        ends: FloatArray = np.median(self.end, axis=0)
        return ends

    @cached_property
    def ops(self) -> "pd.DataFrame":
        """Table, one row an op and repeat: repeat, rank, stage, kind, microbatch, start, end [ms].

        In the order in which each rank ran them, with the columns of a simulated run's trace.
        """
        import pandas as pd

        repeats, ops = self.start.shape
        kinds = np.array([kind.name for kind in Kind])[self.order.kind]
        columns = {
            "rank": self.order.rank,
            "stage": self.order.stage,
            "kind": kinds,
            "microbatch": self.order.microbatch,
        }
        table = pd.DataFrame({name: np.tile(column, repeats) for name, column in columns.items()})
        table.insert(0, "repeat", np.repeat(np.arange(repeats), ops))
        return table.assign(start=self.start.ravel(), end=self.end.ravel())

    def pipelines(self) -> list[Pipeline]:
        """Return one pipeline a repeat, whose costs are the measured times of the ops.

        A whole backward counts as I, with a W that takes no time.
        """
        return [self._pipeline(took) for took in self.end - self.start]

    def _pipeline(self, took: FloatArray) -> Pipeline:
        shape = self.order.stages, self.order.microbatches
        costs = {kind: np.zeros(shape) for kind in (Kind.F, Kind.I, Kind.W)}
        for kind in (Kind.F, Kind.B, Kind.I, Kind.W):
            which = self.order.kind == kind
            place = self.order.stage[which], self.order.microbatch[which]
            costs[Kind.I if kind == Kind.B else kind][place] = took[which]
        return Pipeline.from_costs(
            costs[Kind.F],
            input_grad=costs[Kind.I],
            weight_grad=costs[Kind.W],
            placement=self.order.placement,
        )

    def __repr__(self) -> str:
        return (
            f"MeasuredStep({self.order.name}, ranks={self.order.ranks}, "
            f"microbatches={self.order.microbatches}, makespan={self.makespan:.1f} ms, "
            f"repeats={len(self.start)})"
        )


def measured_step(
    order: Schedule, protocol: str, records: Sequence[Sequence[Records]]
) -> MeasuredStep:
    """Return the measured step, from the records of each rank and repeat.

    Raises
    ------
    RuntimeError
        If a rank has run other ops than the order says, or in another order.
    """
    for rank, repeats in enumerate(records):
        expected = [(op.stage, op.kind.name, op.microbatch) for op in order.order(rank)]
        for ops in repeats:
            ran = [op[:3] for op in ops]
            if ran != expected:
                raise RuntimeError(
                    f"rank {rank} ran {_text(ran)}, but {order.name} has {_text(expected)}"
                )
    times = np.array(
        [[op[3:] for of_rank in repeat for op in of_rank] for repeat in zip(*records, strict=True)],
        dtype=np.int64,
    )
    since = (times - times[..., 0].min(axis=1)[:, np.newaxis, np.newaxis]) / 1e6
    return MeasuredStep(order, protocol, since[..., 0], since[..., 1])


def _text(ops: Sequence[tuple[int, str, int]]) -> str:
    return " ".join(f"{stage}{kind}{microbatch}" for stage, kind, microbatch in ops)
