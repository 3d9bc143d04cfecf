"""The result of an engine, `Spans`, and the span table made from it.

One row a span, sorted by (start, end, replica, rank, resource, position in the order):

    rank        int32     rank that ran it; for a link row, the rank that sent
    resource    category  compute; link; exchange, the rank itself held by a transfer that blocks;
                          network of a rank, on which its collectives go one after the other
    stage       int32     stage of the op; for a receive, the one that receives
    chunk       int32     local index of the stage on its rank
    microbatch  int32     -1 for the rows of a step's end
    slice       int32     slice of the micro-batch along the sequence; 0 if it is not sliced
    kind        category  F, B, I, W, R; SEND_F (an activation), SEND_B (a gradient); RECV_F,
                          RECV_B; at a step's end REDUCE, TIED (gradients), OPTIMIZER, GATHER
                          (parameters)
    group       int32     number of an overlapped pair's two rows, or of the transfers that a rank
                          starts together; -1 for all others
    ready       float64   all inputs are there (0 for a source); link: its op has ended; exchange:
                          its start; network: this rank is ready, others may not be
    start, end  float64   [ms]; a link row runs from departure to arrival, an exchange from when
                          the rank comes to it to when the rank goes on
    replica     int32     copy of the pipeline; 0 where there is one
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipesim.base.ops import Kind
from pipesim.base.types import FloatArray, IntArray
from pipesim.schedules.order.schedule import Schedule
from pipesim.schedules.program.program import Program
from pipesim.schedules.program.text import COMPUTE, RECV

if TYPE_CHECKING:
    import pandas as pd

RESOURCES = ("compute", "link", "exchange", "network")
END_KINDS = ("REDUCE", "TIED", "OPTIMIZER", "GATHER")
KINDS = (*(kind.name for kind in Kind), *END_KINDS)
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
    "replica",
)


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """The times of every op of a schedule and of its output's message; arrays (ops,) [ms].

    Parameters
    ----------
    ready
        Time at which all inputs of the op are there; 0 for a source.
    start, end
        Start and end of the op.
    departure, arrival
        Departure and arrival of the message with its output; NaN if it sends none to another
        rank.
    enter, leave
        Times at which a rank comes to an instruction of transfers and goes on, arrays
        (instructions,); NaN for those that compute. Empty if transfers are no instructions.
    """

    ready: FloatArray
    start: FloatArray
    end: FloatArray
    departure: FloatArray
    arrival: FloatArray
    enter: FloatArray
    leave: FloatArray

    @property
    def begin(self) -> float:
        """The first start of the run [ms]."""
        return float(self.start.min())


def span_table(program: Program, spans: Spans) -> "pd.DataFrame":
    """Return the span table of a run: one row a span, columns as above."""
    import pandas as pd

    schedule = program.order
    op = np.arange(len(schedule))
    sending = np.flatnonzero(~np.isnan(spans.departure))
    item = np.flatnonzero(
        (program.action != COMPUTE) & program.blocking[program.instruction_of_item]
    )
    instruction, message = program.instruction_of_item[item], program.number[item]
    receives = program.action[item] == RECV
    # The op whose stage a row has, and the op whose message it is.
    named = np.concatenate([op, sending, np.where(receives, program.consumer[message], message)])
    carried = np.concatenate([op, sending, message])
    resource = np.repeat(np.arange(3), [len(op), len(sending), len(item)])
    code = np.array([[Kind.SEND_F, Kind.SEND_B], [Kind.RECV_F, Kind.RECV_B]])
    end = np.concatenate([np.zeros(len(op) + len(sending), dtype=int), receives])
    kind = np.where(
        resource == 0,
        schedule.kind[carried],
        code[end, (schedule.kind[carried] != Kind.F).astype(int)],
    )
    ranks = [schedule.rank, schedule.rank[sending], program.rank[instruction]]
    direction = schedule.directions[schedule.microbatch]
    chunk = schedule.placement.chunk_table[direction, schedule.stage]
    enter, leave = (times[instruction] for times in (spans.enter, spans.leave))
    columns = {
        "rank": np.concatenate(ranks),
        "resource": category(resource, RESOURCES),
        "stage": schedule.stage[named],
        "chunk": chunk[named],
        "microbatch": schedule.microbatch[carried],
        "slice": schedule.slice[carried],
        "kind": category(kind, KINDS),
        "group": np.concatenate(
            [schedule.group, np.full(len(sending), -1), _groups(schedule, instruction)]
        ).astype(np.int32),
        "ready": np.concatenate([spans.ready, spans.end[sending], enter]),
        "start": np.concatenate([spans.start, spans.departure[sending], enter]),
        "end": np.concatenate([spans.end, spans.arrival[sending], leave]),
        "replica": np.zeros(len(resource), dtype=np.int32),
    }
    position = np.concatenate([op, sending, item])
    # The last key is the first to sort by; positions grow along each rank's order.
    row_order = np.lexsort((position, resource, columns["rank"], columns["end"], columns["start"]))
    table = pd.DataFrame(columns, columns=list(COLUMNS))
    return table.iloc[row_order].reset_index(drop=True)


def _groups(schedule: Schedule, instruction: IntArray) -> IntArray:
    """Return the group of each item: a number if its instruction has several items, else -1."""
    _, which, count = np.unique(instruction, return_inverse=True, return_counts=True)
    several = count > 1
    numbers = np.where(several, int(schedule.group.max()) + np.cumsum(several), -1)
    found: IntArray = numbers[which]
    return found


def category(codes: npt.NDArray[Any], names: Sequence[str]) -> "pd.Categorical":
    """Return codes as a categorical column with these names."""
    import pandas as pd

    return pd.Categorical.from_codes(codes.astype(np.int8), categories=list(names))
