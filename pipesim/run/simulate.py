"""The one front door: a schedule, a pipeline and an engine -> a Run."""

from collections.abc import Mapping
from typing import Any

from pipesim.base.checks import check_amount, check_count, hint
from pipesim.base.errors import UnsupportedByEngine
from pipesim.base.types import Progress
from pipesim.pipeline.pipeline import Pipeline
from pipesim.run.memory_limit import check_memory_limit
from pipesim.run.resolve import ScheduleLike, resolve_schedule
from pipesim.run.run import ENGINES, Run
from pipesim.schedules.families.policies import Policy
from pipesim.schedules.program.lowering import PROTOCOLS


def simulate(
    pipe: Pipeline,
    schedule: ScheduleLike,
    microbatches: int | None = None,
    *,
    engine: str = "simpy",
    protocol: str = "eager",
    queue_capacity: int | None = None,
    eager_limit_bytes: int | None = None,
    options: Mapping[str, Any] | None = None,
    memory_limit: bool = True,
    progress: Progress | None = None,
) -> Run:
    """Return the run of a schedule on a pipeline.

    Parameters
    ----------
    pipe
        Stages, devices and links.
    schedule
        A name, a Schedule, the path of a schedule file (`read_schedule`; a text that ends in
        .csv is one), a function `(placement, microbatches, **options) -> Schedule`, or a Policy
        that decides on line.
    microbatches
        Number of micro-batches m; with a Schedule or a file it may be left out and must not
        differ.
    engine
        "simpy", the reference, or "replay", compiled code that gives the same times to the last
        bit, many times faster.
    protocol
        "eager": sending never occupies a rank. Of the others, under which sends and receives are
        instructions of the ranks, `pipesim.schedules.program.lowering` tells.
    queue_capacity
        Messages that fit between two stages on different ranks, in each direction; None: any.
    eager_limit_bytes
        Under any other protocol than "eager": messages up to this size never wait for their
        receivers; None: all do.
    options
        Options of the schedule, where it is given by name or as a function.
    memory_limit
        Whether no rank may go over the `memory_bytes` of its device.
    progress
        Called now and then with the number of ops done and of all ops.

    Raises
    ------
    ScheduleError
        If the schedule is unknown or does not fit the pipeline.
    ValueError
        If a count, the engine or the protocol is not one of those allowed.
    ConfigError
        If the schedule is a file that cannot be read.
    UnsupportedByEngine
        If the schedule is a policy and the engine is not "simpy".
    DeadlockError
        If the run cannot go on.
    MemoryLimitError
        If a rank goes over the memory of its device: at the first op that takes one there.

    Examples
    --------
    >>> pipe = Pipeline.from_costs(forward=[1, 1, 1, 2], backward=[2, 2, 2, 4])
    >>> run = simulate(pipe, "1f1b", microbatches=8)
    >>> run.makespan, round(run.bubble_fraction, 4), round(run.closed_form, 4)
    (57.0, 0.4737, 0.2727)
    """
    if engine not in ENGINES:
        raise ValueError(f"engine {engine!r} is unknown; {hint(engine, ENGINES)}")
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol {protocol!r} is unknown; {hint(protocol, PROTOCOLS)}")
    if queue_capacity is not None:
        queue_capacity = check_count("queue_capacity", queue_capacity)
    check_eager_limit(protocol, eager_limit_bytes)
    if engine != "simpy" and isinstance(schedule, Policy):
        raise UnsupportedByEngine(
            f"policy {schedule.name!r} decides on line, which engine {engine!r} cannot; run it "
            "with engine 'simpy', and the order that it took, `run.order()`, with any"
        )
    order = resolve_schedule(pipe, schedule, microbatches, options)
    run = Run.of(
        order,
        pipe,
        engine=engine,
        protocol=protocol,
        queue_capacity=queue_capacity,
        eager_limit_bytes=eager_limit_bytes,
        progress=progress,
    )
    if memory_limit:
        check_memory_limit(order, pipe, run.spans.start)
    return run


def check_eager_limit(protocol: str, limit: int | None) -> None:
    """Check that a limit goes with a protocol.

    Raises
    ------
    ValueError
        If it is no size, or no message of the protocol blocks anyhow.
    """
    if limit is None:
        return
    check_amount("eager_limit_bytes", limit)
    if protocol == "eager":
        raise ValueError(
            f"eager_limit_bytes = {limit}: with protocol 'eager' no message waits for its "
            "receiver; leave it out, or choose another protocol"
        )
