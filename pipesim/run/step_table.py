"""The end of a step as tables: its rows of the trace, and what each rank does and waits for."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipesim.base.types import FloatArray
from pipesim.engine.trace import COLUMNS, KINDS, RESOURCES, category
from pipesim.pipeline.placement import Placement
from pipesim.run.run import Run
from pipesim.run.step_end import StepEnd

if TYPE_CHECKING:
    import pandas as pd

END_COLUMNS = ("wait_reduction", "reduction", "wait_barrier", "optimizer", "gather", "end")


def step_trace(runs: Sequence[Run], end: StepEnd) -> "pd.DataFrame":
    """Return the traces of all replicas and of the step's end, one row a span.

    What one copy does alone is no collective and has no row, nor has an optimizer without time.
    """
    import pandas as pd

    placement = runs[0].schedule.placement
    table, stages = placement.table, placement.stages
    shape = (len(runs), *table.shape)
    replica, direction, stage = (index.ravel() for index in np.indices(shape))

    def rows(kind: str, times: Iterable[FloatArray], which: slice = slice(None)) -> "pd.DataFrame":
        """Return a row for each copy of some stages, from when it is ready, starts and ends."""
        times = [np.broadcast_to(x, shape)[:, :, which].ravel() for x in times]
        picked = np.isin(stage, np.arange(stages)[which])
        count = np.count_nonzero(picked)
        resource = "compute" if kind == "OPTIMIZER" else "network"
        columns = {
            "rank": table[direction, stage][picked],
            "resource": category(np.full(count, RESOURCES.index(resource)), RESOURCES),
            "stage": stage[picked],
            "chunk": placement.chunk_table[direction, stage][picked],
            "microbatch": np.full(count, -1),
            "slice": np.zeros(count),
            "kind": category(np.full(count, KINDS.index(kind)), KINDS),
            "group": np.full(count, -1),
            **dict(zip(("ready", "start", "end"), times, strict=True)),
            "replica": replica[picked],
        }
        return pd.DataFrame(columns).astype(
            {name: np.int32 for name, column in columns.items() if name in _WHOLE}
        )

    parts = [run.trace.assign(replica=np.int32(number)) for number, run in enumerate(runs)]
    if len(runs) * placement.directions > 1:
        parts.append(rows("REDUCE", end.reduce))
    if not np.isnan(end.tied_end).all():
        start, finish = end.tied_start[:, :, np.newaxis], end.tied_end[:, :, np.newaxis]
        first_and_last = slice(0, None, stages - 1)
        parts.append(rows("TIED", (end.reduce.end, start, finish), first_and_last))
    updates = rows("OPTIMIZER", (end.reduced[:, table], end.optimizer_start, end.optimizer_end))
    parts.append(updates[updates.end > updates.start])
    if end.gather is not None:
        parts.append(rows("GATHER", end.gather))
    whole = pd.concat([part for part in parts if len(part)], ignore_index=True)
    keys = [whole[name] for name in ("rank", "replica", "end", "start")]
    row_order = np.lexsort((whole.resource.cat.codes, *keys))  # stable: rows of a run keep theirs
    return whole[list(COLUMNS)].iloc[row_order].reset_index(drop=True)


_WHOLE = ("rank", "stage", "chunk", "microbatch", "slice", "group", "replica")


def end_columns(end: StepEnd, placement: Placement) -> dict[str, FloatArray]:
    """Return what each rank of each replica does once it is through with its ops.

    Columns `END_COLUMNS`, arrays (replicas, ranks) [ms]; but for the last they add up to the time
    from when the rank is through with its ops to its end.
    """
    reduction = _exposed(end, placement)
    columns = (
        np.maximum(end.reduced - end.through - reduction, 0.0),
        reduction,
        end.began - end.reduced,
        end.updated - end.began,
        end.done - end.updated,
        end.done,
    )
    return dict(zip(END_COLUMNS, columns, strict=True))


def _exposed(end: StepEnd, placement: Placement) -> FloatArray:
    """Return for how long reductions run on each rank that is through with its ops [ms]."""
    table, last = placement.table, placement.stages - 1
    exposed = np.zeros_like(end.through)
    for replica, rank in np.ndindex(exposed.shape):
        spans = []
        for way, stage in np.argwhere(table == rank).tolist():
            spans.append((end.reduce.start[stage], end.reduce.end[stage]))
            if stage in (0, last) and not np.isnan(end.tied_end[replica, way]):
                spans.append((end.tied_start[replica, way], end.tied_end[replica, way]))
        until = end.through[replica, rank]
        for start, finish in sorted(spans):
            exposed[replica, rank] += max(0.0, finish - max(start, until))
            until = max(until, finish)
    return exposed
