"""Is there an op whose start takes a rank over the memory of its device?

Whether, and at which op of each rank, follows from the order alone; the times of the run only say
which rank comes first.
"""

import numpy as np

from pipesim.base.errors import MemoryLimitError
from pipesim.base.text import count_text, size_text
from pipesim.base.types import FloatArray, IntArray
from pipesim.pipeline.pipeline import Pipeline
from pipesim.run.memory import StateBytes, byte_changes, state_by_rank
from pipesim.schedules.order.dataflow import closes, held_by_op, opens
from pipesim.schedules.order.schedule import Schedule

NO_OP = -1  # what a rank holds all the time is too much already


def ops_over_limit(schedule: Schedule, pipe: Pipeline) -> dict[int, int]:
    """Return the ranks that go over their limits, each with the number of the first op over it.

    `NO_OP` where parameters, gradients and optimizer do so alone.
    """
    if all(device.memory_bytes is None for device in pipe.devices):
        return {}
    state, held = _state_and_activations(schedule, pipe)
    found = {}
    for rank, device in enumerate(pipe.devices):
        limit = device.memory_bytes
        if limit is None:
            continue
        first, end = schedule.offsets[rank : rank + 2]
        over = np.flatnonzero(held[first:end] + state.total[rank] > limit)
        if state.total[rank] > limit:
            found[rank] = NO_OP
        elif over.size:
            found[rank] = int(first + over[0])
    return found


def check_memory_limit(schedule: Schedule, pipe: Pipeline, start: FloatArray) -> None:
    """Check that no rank goes over the memory of its device.

    Parameters
    ----------
    schedule, pipe
        What was run.
    start
        When every op started [ms], array (ops,).

    Raises
    ------
    MemoryLimitError
        At the first op, in time, that takes a rank over its limit; ties by rank.
    """
    found = ops_over_limit(schedule, pipe)
    if not found:
        return
    when = {rank: start.min() if op == NO_OP else start[op] for rank, op in found.items()}
    rank = min(found, key=lambda rank: (when[rank], found[rank] != NO_OP, rank))
    raise _error(schedule, pipe, rank, found[rank], float(when[rank]))


def _error(schedule: Schedule, pipe: Pipeline, rank: int, op: int, time: float) -> MemoryLimitError:
    state, activations = _state_and_activations(schedule, pipe)
    held = 0 if op == NO_OP else int(activations[op])
    total = int(state.total[rank]) + held
    limit = pipe.devices[rank].memory_bytes
    assert limit is not None
    size, most = _told_apart(total, limit)
    parts = {
        "parameters": state.params[rank],
        "gradients": state.grads[rank],
        "optimizer": state.optimizer[rank],
        "activations": held,
    }
    made_of = " + ".join(f"{name} {size_text(part)}" for name, part in parts.items() if part)
    if op == NO_OP:
        name, what = None, f"before its first op it holds {size}"
        way = "more ranks, another split (pipesim split), ZeRO over replicas"
    else:
        name = str(schedule.op(op))
        what = f"{name} at {time:g} ms takes it to {size}"
        flights = held_by_op(schedule, opens(schedule).astype(int), closes(schedule).astype(int))
        made_of += f" of {count_text(int(flights[op]), 'micro-batch')} in flight"
        way = (
            "a schedule with fewer micro-batches in flight, another split (pipesim split), "
            "recompute, more ranks"
        )
    return MemoryLimitError(
        f"rank {rank} goes over its memory limit: {what}, its device has {most}\n"
        f"{made_of}\n"
        f"ways out: {way}; --no-memory-limit (memory_limit=False) runs it all the same",
        rank,
        name,
        time,
        total,
        limit,
    )


def _state_and_activations(schedule: Schedule, pipe: Pipeline) -> tuple[StateBytes, IntArray]:
    held = held_by_op(schedule, *byte_changes(schedule, pipe))
    return state_by_rank(schedule, pipe), held


def _told_apart(size: int, limit: int) -> tuple[str, str]:
    """Return two numbers of bytes as texts, with as many digits as tell one from the other."""
    for digits in range(4, 16):
        texts = size_text(size, digits), size_text(limit, digits)
        if texts[0] != texts[1]:
            break
    return texts
