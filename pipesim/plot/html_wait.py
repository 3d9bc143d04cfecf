"""What a page tells of the wait before each op: how long, why, and for what."""

from typing import Any

import numpy as np

from pipesim.metrics import input_times, previous_ends
from pipesim.run import Run


def waits(run: Run) -> dict[str, Any]:
    """Return what is told of the idle time before each op, as columns, arrays (ops,).

    `waited` is how long the rank was idle before [ms], and there is a column of its parts for
    each cause of the run, by the name of the cause. `source`, `source_kind` and `source_rank` are
    those of the op of another stage whose output came in that time: it is of the same
    micro-batch, and its stage is -1 where there is none.
    """
    schedule, spans = run.schedule, run.spans
    idle_since = previous_ends(schedule, spans)
    idle_since[schedule.offsets[:-1]] = spans.begin
    waited = np.maximum(spans.start - idle_since, 0.0)
    producer = run.workload.producer
    remote = (producer >= 0) & (input_times(run.workload, spans) > idle_since) & (waited > 0)
    known = np.where(remote, producer, 0)
    columns = {
        "waited": waited,
        "source": np.where(remote, schedule.stage[known], -1).astype(np.int32),
        "source_kind": schedule.kind[known].astype(np.int32),
        "source_rank": np.where(remote, schedule.rank[known], -1).astype(np.int32),
    }
    second = np.flatnonzero(run.workload.second)
    for cause, found in run.idle_spans.items():
        lasting = np.flatnonzero((found.before >= 0) & (found.end > found.start))
        if lasting.size:
            part = np.zeros(len(schedule), dtype=np.float32)
            part[found.before[lasting]] = found.end[lasting] - found.start[lasting]
            part[second] = part[second - 1]  # a pair waits together
            columns[cause] = part
    return columns
