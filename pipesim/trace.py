"""What an engine hands back, and the span table that people work with.

One row a span, sorted by (start, end, rank, resource, position in the order):

    rank        int32     that ran it; of a link row, the rank that sent it
    resource    category  compute, or link
    stage       int32
    chunk       int32     local index of the stage on its rank
    microbatch  int32
    slice       int32     of the micro-batch along the sequence; 0 where nothing is sliced
    kind        category  F, B, I, W; SEND_F (an activation), SEND_B (a gradient)
    group       int32     of the two rows of an overlapped pair; -1 of all others
    ready       float64   all inputs are there (0 for a source); for a link row: its op has ended
    start, end  float64   [ms]; a link row runs from departure to arrival
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipesim.arrays import FloatArray
from pipesim.ops import Kind
from pipesim.schedule import Schedule

if TYPE_CHECKING:
    import pandas as pd

RESOURCES = ("compute", "link")
KINDS = tuple(kind.name for kind in Kind)
COLUMNS = (
    "rank",
    "resource",
    "stage",
    "chunk",
    "microbatch",
    "slice",
    "kind",
    "group",
    "ready",
    "start",
    "end",
)


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """When every op of a schedule ran and when its output travelled; arrays (ops,) [ms].

    Parameters
    ----------
    ready
        All inputs of the op are there; 0 for a source.
    start, end
        Of the op.
    departure, arrival
        Of the message with its output; NaN where it sends none to another rank.
    """

    ready: FloatArray
    start: FloatArray
    end: FloatArray
    departure: FloatArray
    arrival: FloatArray


def span_table(schedule: Schedule, spans: Spans) -> "pd.DataFrame":
    """Return the trace of a run: one row a span, columns as above."""
    import pandas as pd

    chunk = schedule.placement.chunk_table[schedule.directions[schedule.microbatch], schedule.stage]
    sending = np.flatnonzero(~np.isnan(spans.departure))
    source = np.concatenate([np.arange(len(schedule)), sending])
    on_link = np.arange(len(source)) >= len(schedule)
    stage = schedule.stage[source]
    carried = np.where(schedule.kind[source] == Kind.F, Kind.SEND_F, Kind.SEND_B)
    columns = {
        "rank": schedule.rank[source],
        "resource": _category(on_link, RESOURCES),
        "stage": stage,
        "chunk": chunk[source],
        "microbatch": schedule.microbatch[source],
        "slice": schedule.slice[source],
        "kind": _category(np.where(on_link, carried, schedule.kind[source]), KINDS),
        "group": np.where(on_link, np.int32(-1), schedule.group[source]),
        "ready": np.concatenate([spans.ready, spans.end[sending]]),
        "start": np.concatenate([spans.start, spans.departure[sending]]),
        "end": np.concatenate([spans.end, spans.arrival[sending]]),
    }
    # The last key is the first to sort by; op numbers grow along each rank's order.
    row_order = np.lexsort((source, on_link, columns["rank"], columns["end"], columns["start"]))
    table = pd.DataFrame(columns, columns=list(COLUMNS))
    return table.iloc[row_order].reset_index(drop=True)


def _category(codes: npt.NDArray[Any], names: Sequence[str]) -> "pd.Categorical":
    import pandas as pd

    return pd.Categorical.from_codes(codes.astype(np.int8), categories=list(names))
