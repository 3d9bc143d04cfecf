"""A simulated step and all its numbers."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipesim.base.types import Progress
from pipesim.engine.critical.critical_path import (
    Criticality,
    critical_path_table,
    criticality,
    slack_table,
)
from pipesim.engine.critical.sensitivity import sensitivity_table
from pipesim.engine.graph.event_graph import cached_graph
from pipesim.engine.reference.simpy_engine import run_simpy
from pipesim.engine.replay.replay import run_replay
from pipesim.engine.trace import Spans, span_table
from pipesim.engine.workload import Workload, bind
from pipesim.pipeline.pipeline import Pipeline
from pipesim.run.equal_stages import equal_stages
from pipesim.run.idle import IdleSpans, RankTimes, idle_spans, rank_times
from pipesim.run.lower_bound import makespan_bounds
from pipesim.run.memory import in_flight_table, memory_table, peak_memory_bytes
from pipesim.run.rank_table import UNITLESS, rank_columns
from pipesim.schedules.families.registry import closed_form_bubble
from pipesim.schedules.order.schedule import Schedule
from pipesim.schedules.program.lowering import lower
from pipesim.schedules.program.program import Program

if TYPE_CHECKING:
    import pandas as pd

ENGINES = {"simpy": run_simpy, "replay": run_replay}


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """One simulated step: when every op ran, and every number that follows from it.

    Made by `simulate`. Numbers are worked out when they are asked for.
    """

    program: Program
    pipeline: Pipeline
    workload: Workload
    spans: Spans
    queue_capacity: int | None = None
    eager_limit_bytes: int | None = None
    engine: str = "simpy"

    @classmethod
    def of(
        cls,
        order: Schedule,
        pipe: Pipeline,
        *,
        engine: str = "simpy",
        protocol: str = "eager",
        queue_capacity: int | None = None,
        eager_limit_bytes: int | None = None,
        progress: Progress | None = None,
    ) -> "Run":
        """Return the run of an order on a pipeline; the arguments are those of `simulate`."""
        program = lower(order, protocol)
        workload = bind(program, pipe, eager_limit_bytes)
        spans = ENGINES[engine](program, workload, queue_capacity=queue_capacity, progress=progress)
        return cls(program, pipe, workload, spans, queue_capacity, eager_limit_bytes, engine)

    @property
    def schedule(self) -> Schedule:
        """The order of the ops."""
        return self.program.order

    @cached_property
    def rank_times(self) -> RankTimes:
        """Busy and idle time of each rank, idle by cause."""
        return rank_times(self.program, self.workload, self.spans)

    @cached_property
    def idle_spans(self) -> dict[str, IdleSpans]:
        """Idle stretches of every rank by cause, in the order of `pipesim.run.idle.IDLE_CAUSES`."""
        return idle_spans(self.program, self.workload, self.spans)

    @property
    def makespan(self) -> float:
        """Last end minus first start of compute over all ranks [ms]."""
        return float(self.spans.end.max() - self.spans.begin)

    @property
    def bubble_fraction(self) -> float:
        """Idle / (p x makespan)."""
        return self._share("bubble_fraction")

    @property
    def bubble_ratio(self) -> float | None:
        """Idle / busy, both summed over the ranks; None if transfers are all that takes time."""
        return self.rank_times.shares["bubble_ratio"]

    @property
    def span_bubble(self) -> float | None:
        """1 - sum of busy / (p x largest rank span), the Zero Bubble paper's rate.

        None if transfers are all that takes time.
        """
        return self.rank_times.shares["span_bubble"]

    def _share(self, name: str) -> float:
        share = self.rank_times.shares[name]
        return 0.0 if share is None else share  # these there are for every run

    @property
    def balance(self) -> float:
        """Mean work / largest work of a rank; balance x filling = 1 - bubble fraction."""
        return self._share("balance")

    @property
    def filling(self) -> float:
        """Largest work of a rank / makespan; balance x filling = 1 - bubble fraction."""
        return self._share("filling")

    @property
    def closed_form(self) -> float | None:
        """Bubble fraction of equal stages under this schedule; None where no formula is known."""
        return closed_form_bubble(self.schedule, lambda: self.equal_stages.pipeline)

    @property
    def excess_bubble(self) -> float | None:
        """Bubble fraction minus the closed form; it can be negative. None without closed form."""
        return None if self.closed_form is None else self.bubble_fraction - self.closed_form

    @cached_property
    def lower_bound(self) -> float:
        """Makespan [ms] that no order of the same ops on the same stages can go below."""
        return float(makespan_bounds(self.schedule, [self.pipeline])[0])

    @property
    def above_lower_bound(self) -> float:
        """How far the makespan is above the lower bound [ms]; 0 but for rounding if it is met."""
        return self.makespan - self.lower_bound

    @cached_property
    def equal_stages(self) -> "Run":
        """The same schedule on equal stages of the same mean cost, without transfers.

        The same order, but where the schedule goes by the costs.
        """
        equal = equal_stages(self.schedule, [self.pipeline])[0]
        return Run.of(self.schedule.made_for(equal), equal, engine=self.engine)

    @property
    def inflation(self) -> float | None:
        """Makespan / makespan with equal stages and no transfers; None if that is 0."""
        equal = self.equal_stages.makespan
        return self.makespan / equal if equal > 0 else None

    @cached_property
    def trace(self) -> "pd.DataFrame":
        """One row a span; columns as `pipesim.engine.trace` describes them."""
        return span_table(self.program, self.spans)

    @cached_property
    def in_flight(self) -> "pd.DataFrame":
        """Micro-batches and stash bytes that every stage holds over time, one row a change."""
        return in_flight_table(self.schedule, self.pipeline, self.spans)

    @cached_property
    def memory(self) -> "pd.DataFrame":
        """What every rank holds over time in bytes, one row a change.

        Columns: rank, time [ms], op whose start or end it is, params, grads, optimizer,
        activations, total; the first row of a rank is what it holds all the time.

        Examples
        --------
        >>> from pipesim.run.simulate import simulate
        >>> pipe = Pipeline.from_costs([1, 1], [2, 2], stash_bytes=10, param_bytes=100)
        >>> memory = simulate(pipe, "1f1b", microbatches=2).memory
        >>> memory.loc[memory["rank"] == 0, ["time", "op", "activations", "total"]]
           time   op  activations  total
        0   0.0                 0    100
        1   0.0  0F0           10    110
        2   1.0  0F1           20    120
        3   6.0  0B0           10    110
        4   9.0  0B1            0    100
        """
        return memory_table(self.schedule, self.pipeline, self.spans)

    @cached_property
    def peak_memory(self) -> tuple[int, ...]:
        """The most bytes that each rank holds at once: all the time, and of activations."""
        return tuple(peak_memory_bytes(self.schedule, self.pipeline).tolist())

    @cached_property
    def ranks(self) -> "pd.DataFrame":
        """One row a rank: busy, idle and its causes [ms], bubble fraction, peaks held."""
        import pandas as pd

        return pd.DataFrame(
            rank_columns(self.schedule, self.pipeline, self.rank_times, self.peak_memory)
        )

    @cached_property
    def criticality(self) -> Criticality:
        """The event graph of the run, and how much later each of its times may be."""
        graph = cached_graph(
            self.program,
            queue_capacity=self.queue_capacity,
            meets=self.workload.meets,
            wires=bool(self.workload.wire.any()),
        )
        return criticality(graph, self.workload)

    @cached_property
    def critical_path(self) -> "pd.DataFrame":
        """The chain of ops and transfers that makes the step as long as it is, in time order.

        One row a piece, each starts when the one before ends: op (`0F3`, `0SEND_F3`), number (of
        the op, or of the one whose output is sent), rank (that sends), resource (compute, link),
        kind, stage, microbatch, slice, start, end, ms; and ties, how many other things were as
        late: where all are 0, this is the only such path.
        Of several, one is taken by the rule of `engine/critical/critical_path.py`. An
        overlapped pair is one row by its first op; transfers that take no time are left out.

        Examples
        --------
        >>> from pipesim.run.simulate import simulate
        >>> pipe = Pipeline.from_costs(forward=[1, 3], backward=[2, 4], latency_ms=0.5)
        >>> simulate(pipe, "1f1b", microbatches=2).critical_path[["op", "start", "ms", "ties"]]
               op  start   ms  ties
        0     0F0    0.0  1.0     0
        1  0SEND_F0    1.0  0.5     0
        2     1F0    1.5  3.0     0
        3     1B0    4.5  4.0     0
        4     1F1    8.5  3.0     0
        5     1B1   11.5  4.0     0
        6  1SEND_B1   15.5  0.5     0
        7     0B1   16.0  2.0     0
        """
        return critical_path_table(self.criticality)

    @cached_property
    def slack(self) -> "pd.DataFrame":
        """How much later each op may end, all else unchanged, without a longer step [ms].

        One row an op in the order of the schedule: rank, stage, kind, microbatch, slice, start,
        end, slack; and critical, whether it is on some longest path: then its slack is 0.0.

        Examples
        --------
        >>> from pipesim.run.simulate import simulate
        >>> pipe = Pipeline.from_costs(forward=[1, 3], backward=[2, 4], latency_ms=0.5)
        >>> slack = simulate(pipe, "1f1b", microbatches=2).slack
        >>> slack.loc[slack["rank"] == 0, ["kind", "microbatch", "end", "slack", "critical"]]
          kind  microbatch   end  slack  critical
        0    F           0   1.0    0.0      True
        1    F           1   2.0    6.0     False
        2    B           0  11.0    5.0     False
        3    B           1  18.0    0.0      True
        """
        return slack_table(self.criticality)

    @cached_property
    def sensitivity(self) -> "pd.DataFrame":
        """What the step gains and loses as each cost changes: derivatives of the makespan.

        One row a parameter: its name (a key of the config), its value (of costs for each
        micro-batch, the mean), and for each `unit` [ms] that is taken off it, gain_ms that the
        step gets shorter; for each that is added, loss_ms that it gets longer. Of a speed the
        unit is 1 % faster or slower. The two differ where several paths are critical: all of
        them must get shorter, or one longer. They hold for changes so small that no other path
        becomes critical; where the value is 0 nothing can be gained. Paths tie if their lengths
        differ by rounding only, 1e-12 of the makespan.

        Examples
        --------
        >>> from pipesim.run.simulate import simulate
        >>> pipe = Pipeline.from_costs(forward=[1, 3], backward=[2, 4], latency_ms=0.5)
        >>> simulate(pipe, "1f1b", microbatches=2).sensitivity
                       parameter  value unit  gain_ms  loss_ms
        0   stages.forward_ms[0]    1.0   ms     1.00     1.00
        1   stages.forward_ms[1]    3.0   ms     2.00     2.00
        2  stages.backward_ms[0]    2.0   ms     1.00     1.00
        3  stages.backward_ms[1]    4.0   ms     2.00     2.00
        4       devices.speed[0]    1.0  1 %     0.03     0.03
        5       devices.speed[1]    1.0  1 %     0.14     0.14
        6  links.latency_ms."0->1"  0.5   ms     1.00     1.00
        7  links.latency_ms."1->0"  0.5   ms     1.00     1.00
        """
        return sensitivity_table(self.criticality, self.pipeline, self.workload)

    def order(self) -> Schedule:
        """Return the order that was run, as a Schedule that stays as it is for any costs."""
        return self.schedule.relabelled()

    def summary(self) -> dict[str, Any]:
        """Return all numbers of the run as plain values: what `pipesim run --json` prints."""
        of_ranks = rank_columns(self.schedule, self.pipeline, self.rank_times, self.peak_memory)
        columns = {
            name if name in UNITLESS else f"{name}_ms": list(values)
            for name, values in of_ranks.items()
        }
        return {
            "schedule": self.schedule.name,
            "protocol": self.program.protocol,
            "ranks": self.schedule.ranks,
            "stages": self.schedule.stages,
            "microbatches": self.schedule.microbatches,
            "makespan_ms": self.makespan,
            "inflation": self.inflation,
            "bubble_fraction": self.bubble_fraction,
            "bubble_ratio": self.bubble_ratio,
            "span_bubble": self.span_bubble,
            "closed_form_bubble_fraction": self.closed_form,
            "excess_bubble_fraction": self.excess_bubble,
            "lower_bound_ms": self.lower_bound,
            "above_lower_bound_ms": self.above_lower_bound,
            "balance": self.balance,
            "filling": self.filling,
            "peak_memory_bytes": max(self.peak_memory),
            "total_param_bytes": sum(of_ranks["param_bytes"]),
            "total_grad_bytes": sum(of_ranks["grad_bytes"]),
            "total_optimizer_bytes": sum(of_ranks["optimizer_bytes"]),
            "per_rank": [
                dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
            ],
        }

    def __repr__(self) -> str:
        return (
            f"Run({self.program.title}, ranks={self.schedule.ranks}, "
            f"microbatches={self.schedule.microbatches}, makespan={self.makespan:g} ms, "
            f"bubble={self.bubble_fraction:.1%})"
        )
