"""One schedule on many pipelines at once: the numbers of `Run.summary`, one row a pipeline.

The pipelines have the same stages, ranks and links between ranks in common; what differs is what
things cost. Everything but the times of the ops themselves is array arithmetic over all of them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from pipesim.base.checks import check_count
from pipesim.base.types import FloatArray
from pipesim.engine.graph.event_graph import cached_graph
from pipesim.engine.op_costs import check_fit, is_uniform, messages_of, op_times
from pipesim.engine.replay.cost_index import cost_index
from pipesim.engine.replay.replay import make_plan
from pipesim.engine.workload import meeting
from pipesim.pipeline.components import SIZE_FIELDS
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.variants import bases
from pipesim.run.equal_stages import equal_stages
from pipesim.run.lower_bound import makespan_bounds
from pipesim.run.memory import peak_memory_bytes
from pipesim.run.memory_limit import check_memory_limit, ops_over_limit
from pipesim.run.shares import idle_times, ratio, run_shares
from pipesim.run.simulate import check_eager_limit
from pipesim.schedules.families.registry import closed_form_bubbles
from pipesim.schedules.order.schedule import Schedule
from pipesim.schedules.program.lowering import lower

T = TypeVar("T")

METRICS = (
    "makespan_ms",
    "inflation",
    "bubble_fraction",
    "bubble_ratio",
    "span_bubble",
    "closed_form_bubble_fraction",
    "excess_bubble_fraction",
    "lower_bound_ms",
    "balance",
    "filling",
    "peak_memory_bytes",
)
MOST_TIMES = 2**24  # durations that are worked out together, at most one for every op and run


class Ends(NamedTuple):
    """When K runs began and ended [ms]: arrays (K,), and (K, ranks) twice.

    And when their ops did where that was asked for, arrays (K, ops); or else (K, 0).
    """

    makespan: FloatArray
    first_start: FloatArray
    last_end: FloatArray
    op_start: FloatArray
    op_end: FloatArray


def simulate_many(
    schedule: Schedule,
    pipelines: Sequence[Pipeline],
    *,
    ops: bool = False,
    memory_limit: bool = True,
    **how: Any,
) -> dict[str, FloatArray]:
    """Return the numbers of the runs of a schedule on each of some pipelines.

    One array (K,) for each of `METRICS`, named as in `Run.summary`, NaN where that has None; and
    `busy_ms` and `idle_ms`, arrays (K, ranks). The makespan is the same to the bit, the others
    differ by the rounding of sums. The numbers of a pipeline do not depend on those that it
    comes with.

    Parameters
    ----------
    schedule
        The order to run. One that goes by the costs is taken as it is; so give it its pipeline
        alone.
    pipelines
        Each with the schedule's stages and ranks.
    ops
        Whether to return `start_ms` and `end_ms` of every op, too, arrays (K, ops).
    memory_limit
        Whether no rank may go over the `memory_bytes` of its device.
    how
        As for `simulate`: protocol, queue_capacity, eager_limit_bytes. The engine is "replay".

    Raises
    ------
    ScheduleError
        If the schedule does not fit the pipelines.
    ValueError
        If the protocol or a limit is not one of those allowed.
    DeadlockError
        If a run cannot go on.
    MemoryLimitError
        If a rank of any of them goes over the memory of its device: of the first one.

    Examples
    --------
    >>> from pipesim.schedules.families.registry import build_schedule
    >>> slow = [Pipeline.from_costs([1, 1, 1, f], [2, 2, 2, 2 * f]) for f in (1, 2)]
    >>> numbers = simulate_many(build_schedule("1f1b", ranks=4, microbatches=8), slow)
    >>> numbers["makespan_ms"].tolist()
    [33.0, 57.0]
    """
    if not len(pipelines):
        none = np.zeros((0, schedule.ranks))
        return {name: np.zeros(0) for name in METRICS} | {"busy_ms": none, "idle_ms": none}
    over = first_over_limit(schedule, pipelines) if memory_limit else None
    if over is not None:  # which of its ops is the first takes the times of this one
        start = _run_ends(schedule, [pipelines[over]], ops=True, **how).op_start
        check_memory_limit(schedule, pipelines[over], start[0])
    ends = _run_ends(schedule, pipelines, ops=ops, **how)
    busy = op_times(schedule, pipelines).busy(schedule.ranks)
    equal = equal_stages(schedule, pipelines)
    even = _remade_ends(schedule, equal).makespan
    columns = run_shares(ends.makespan, ends.last_end - ends.first_start, busy)
    columns |= {"makespan_ms": ends.makespan, "busy_ms": busy}
    columns["idle_ms"] = idle_times(ends.makespan, busy)
    columns["inflation"] = ratio(ends.makespan, even, nothing=np.nan)
    columns["closed_form_bubble_fraction"] = closed_form_bubbles(schedule, equal)
    columns["excess_bubble_fraction"] = (
        columns["bubble_fraction"] - columns["closed_form_bubble_fraction"]
    )
    columns["lower_bound_ms"] = makespan_bounds(schedule, pipelines)
    columns["peak_memory_bytes"] = peak_memory(schedule, pipelines)
    numbers = {name: columns[name] for name in (*METRICS, "busy_ms", "idle_ms")}
    return numbers | ({"start_ms": ends.op_start, "end_ms": ends.op_end} if ops else {})


def makespans(schedule: Schedule, pipelines: Sequence[Pipeline], **how: Any) -> FloatArray:
    """Return the makespan of a schedule on each of some pipelines [ms], array (K,).

    The same bits as `simulate` gives; a schedule that goes by the costs is made anew for each.

    Parameters
    ----------
    schedule, pipelines, how
        As for `simulate_many`.

    Raises
    ------
    ScheduleError, ValueError, DeadlockError
        As `simulate_many`.
    """
    return _remade_ends(schedule, pipelines, **how).makespan


def _run_ends(
    schedule: Schedule,
    pipelines: Sequence[Pipeline],
    *,
    ops: bool = False,
    protocol: str = "eager",
    queue_capacity: int | None = None,
    eager_limit_bytes: int | None = None,
) -> Ends:
    """Run a schedule on each pipeline, a block of them at once."""
    for pipe in bases(pipelines):
        check_fit(schedule, pipe)
    if queue_capacity is not None:
        check_count("queue_capacity", queue_capacity)
    check_eager_limit(protocol, eager_limit_bytes)
    groups = _groups(schedule, pipelines, sizes=eager_limit_bytes is not None)
    if len(groups) > 1:
        rules = {"queue_capacity": queue_capacity, "eager_limit_bytes": eager_limit_bytes}
        each = [
            _run_ends(schedule, [pipelines[n] for n in g], ops=ops, protocol=protocol, **rules)
            for g in groups
        ]
        back = np.argsort(np.concatenate(groups))
        return Ends(*(column[back] for column in _joined(each)))
    base = bases(pipelines)[0]
    program = lower(schedule, protocol)
    meets = meeting(program, base, eager_limit_bytes)
    links = (link for pipe in bases(pipelines) for link in pipe.links.values())
    wires = any(link.bandwidth_gb_s is not None for link in links)
    graph = cached_graph(program, queue_capacity=queue_capacity, meets=meets, wires=wires)
    plan, parts = None, []
    together = max(1, MOST_TIMES // len(schedule))
    for first in range(0, len(pipelines), together):
        some = pipelines[first : first + together]
        times = op_times(schedule, some)
        if plan is None:
            entries = times.duration.shape[1]
            plan = make_plan(graph, cost_index(program, times.entry, entries, wires=wires))
        wire, latency = messages_of(program, some, plan.index.messages)
        costs = plan.index.cost_sets(times.duration, wire, latency)
        ends = plan.run(costs)
        both = [plan.op_times(np.ascontiguousarray(one)) for one in costs.T] if ops else []
        of_ops = np.array(both) if ops else np.zeros((len(some), 2, 0))
        whole = ends.makespan, ends.first_start.T, ends.last_end.T
        parts.append(Ends(*whole, of_ops[:, 0], of_ops[:, 1]))
    return _joined(parts)


def _groups(
    schedule: Schedule, pipelines: Sequence[Pipeline], *, sizes: bool
) -> Sequence[Sequence[int]]:
    """Return the numbers of the pipelines that one plan can run, group by group.

    Those whose costs vary over micro-batches have cost sets of another form; and where a limit
    decides which messages block, those that send other `sizes` have another graph.
    """
    groups: dict[Any, list[int]] = {}
    for number, pipe in enumerate(bases(pipelines)):
        sent = tuple(stage.output_bytes for stage in pipe.stages) if sizes else ()
        groups.setdefault((is_uniform(schedule, [pipe]), sent), []).append(number)
    return list(groups.values())


def _joined(parts: Sequence[Ends]) -> Ends:
    return Ends(*map(np.concatenate, zip(*parts, strict=True)))


def _remade_ends(schedule: Schedule, pipelines: Sequence[Pipeline], **how: Any) -> Ends:
    """Run a schedule on each pipeline; anew for its costs, where it goes by them."""
    if schedule.remake is None:
        return _run_ends(schedule, pipelines, **how)
    each = [_run_ends(schedule.made_for(pipe), [pipe], **how) for pipe in pipelines]
    return _joined(each)


def peak_memory(schedule: Schedule, pipelines: Sequence[Pipeline]) -> FloatArray:
    """Return the most bytes that any rank holds at once, array (K,)."""
    peaks = _once_per_sizes(pipelines, lambda pipe: float(peak_memory_bytes(schedule, pipe).max()))
    return np.broadcast_to(np.array(peaks), (len(pipelines),))


def first_over_limit(schedule: Schedule, pipelines: Sequence[Pipeline]) -> int | None:
    """Return the number of the first pipeline with a rank over its device's memory, or None.

    Raises
    ------
    ScheduleError
        If the schedule does not fit the pipelines.
    """
    for pipe in bases(pipelines):
        check_fit(schedule, pipe)
    over = _once_per_sizes(pipelines, lambda pipe: bool(ops_over_limit(schedule, pipe)))
    return over.index(True) if True in over else None


def _once_per_sizes(pipelines: Sequence[Pipeline], of: Callable[[Pipeline], T]) -> list[T]:
    """Apply `of` to each pipeline, once per distinct set of sizes."""
    known: dict[Any, T] = {}
    found = []
    for pipe in bases(pipelines):
        names = (*SIZE_FIELDS, "input_grad_frees_bytes")
        sizes = [getattr(stage, name) for stage in pipe.stages for name in names]
        key = (*sizes, *(device.memory_bytes for device in pipe.devices))
        if key not in known:
            known[key] = of(pipe)
        found.append(known[key])
    return found
