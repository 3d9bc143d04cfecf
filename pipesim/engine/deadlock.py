"""Telling who waits for whom when a run cannot go on."""

import numpy as np

from pipesim.engine.workload import Workload
from pipesim.errors import DeadlockError
from pipesim.ops import Kind
from pipesim.schedule import Schedule
from pipesim.trace import Spans

SHOWN = 16  # stuck ranks in the message


def deadlock_error(schedule: Schedule, workload: Workload, spans: Spans) -> DeadlockError:
    """Return the error that names, for each stuck rank, its op and what that op waits for."""
    lines = []
    for rank in range(schedule.ranks):
        first, last = int(schedule.offsets[rank]), int(schedule.offsets[rank + 1])
        waiting = np.flatnonzero(np.isnan(spans.start[first:last]))
        if waiting.size:
            op = first + int(waiting[0])
            place = f"rank {rank} at {schedule.op(op)}, op {op - first + 1} of its {last - first}"
            lines.append(f"  {place}: waits for {_awaited(schedule, workload, spans, op)}")
    if len(lines) > SHOWN:
        lines[SHOWN:] = [f"  and {len(lines) - SHOWN} more ranks"]
    return DeadlockError(
        f"{schedule.name} cannot go on: the ranks that are left wait for each other\n"
        + "\n".join(lines)
    )


def _awaited(schedule: Schedule, workload: Workload, spans: Spans, op: int) -> str:
    source = int(workload.producer[op])
    if source >= 0 and np.isnan(spans.end[source]):
        carried = "activation" if schedule.kind[op] == Kind.F else "gradient"
        rank = int(schedule.rank[source])
        place = source - int(schedule.offsets[rank]) + 1
        return f"the {carried} from {schedule.op(source)}, op {place} of rank {rank}"
    consumer = int(workload.consumer[op])
    return (
        f"room in the queue from stage {int(schedule.stage[op])} "
        f"to stage {int(schedule.stage[consumer])}"
    )
