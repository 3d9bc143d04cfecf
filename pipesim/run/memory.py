"""Spans -> what each stage and each rank holds over time: micro-batches in flight, bytes.

A (stage, micro-batch) pair, or a slice of it, is in flight from the start of its F to the end of
its last backward part; where a schedule has forwards only, to the end of its F. Of its stash, F
takes all when it starts; I frees the part that only I needs, or takes more, and W the rest, when
they end. What is rebuilt, B or I takes when it starts and frees when it ends, but for what it
leaves to W. In a schedule with R it is R that takes it, and where there is none F, which then has
kept it. At equal times what ends frees its place before what starts takes one.

Besides, a rank holds all the time the parameters of its stages, in as many versions as the schedule
has of them, their gradients and the state of the optimizer.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from pipesim.base.ops import COMPUTE_KINDS, Kind
from pipesim.base.types import IntArray
from pipesim.engine.trace import Spans
from pipesim.pipeline.pipeline import Pipeline
from pipesim.schedules.order.dataflow import closes, opens, peak_by_rank, second_of_pair
from pipesim.schedules.order.schedule import Schedule

if TYPE_CHECKING:
    import pandas as pd


MOST_TAKEN = 4e18  # bytes of all ops together; running sums of them fit into 63 bits


class StateBytes(NamedTuple):
    """Bytes that the ranks hold all the time, arrays (ranks,)."""

    params: IntArray
    grads: IntArray
    optimizer: IntArray

    @property
    def total(self) -> IntArray:
        """All of them together, array (ranks,)."""
        total: IntArray = self.params + self.grads + self.optimizer
        return total


def in_flight_table(schedule: Schedule, pipe: Pipeline, spans: Spans) -> "pd.DataFrame":
    """Return what every stage holds over time, one row a change.

    Columns: `stage`, `rank`, `time` [ms], `in_flight` (micro-batches, or slices of them, held from
    that time on) and `stash_bytes`, sorted by stage, rank and time. A stage with a copy for
    either direction has rows for both.
    """
    import pandas as pd

    taken, freed = byte_changes(schedule, pipe)
    count = np.concatenate([opens(schedule).astype(np.int64), -closes(schedule).astype(np.int64)])
    size = np.concatenate([taken, -freed])
    changing = np.flatnonzero((count != 0) | (size != 0))
    op, at_end = changing % len(schedule), changing >= len(schedule)
    time = np.where(at_end, spans.end[op], spans.start[op])
    stage, rank = schedule.stage[op], schedule.rank[op]
    order = np.lexsort((~at_end, time, rank, stage))
    stage, rank, time, changing = stage[order], rank[order], time[order], changing[order]
    # Every stage starts from and returns to nothing, so one running sum serves them all.
    last_at_its_time = np.ones(len(time), dtype=bool)
    last_at_its_time[:-1] = (np.diff(time) != 0) | (np.diff(stage) != 0) | (np.diff(rank) != 0)
    table = {
        "stage": stage,
        "rank": rank,
        "time": time,
        "in_flight": np.cumsum(count[changing]),
        "stash_bytes": np.cumsum(size[changing]),
    }
    return pd.DataFrame({name: column[last_at_its_time] for name, column in table.items()})


def flight_noun(schedule: Schedule) -> str:
    """Return what a rank has in flight, one of them in words.

    A micro-batch, where it comes by each rank once; else a pair of it with a stage. Where
    micro-batches are sliced, it is the slices that are counted.

    Examples
    --------
    >>> from pipesim.schedules.families.registry import build_schedule
    >>> [flight_noun(build_schedule(name, 2, 4)) for name in ("1f1b", "interleaved", "seq1f1b")]
    ['micro-batch', '(stage, micro-batch) pair', 'slice']
    """
    part = "slice" if schedule.slices > 1 else "micro-batch"
    placement = schedule.placement
    return f"(stage, {part}) pair" if placement.stages > placement.ranks else part


def in_flight_of_ranks(table: "pd.DataFrame") -> "pd.DataFrame":
    """Return what every rank has in flight over time, of all its stages; one row a change.

    Columns: `rank`, `time` [ms], `in_flight`, sorted by rank and time.

    Parameters
    ----------
    table
        As `in_flight_table` returns it.
    """
    import pandas as pd

    held = table["in_flight"].to_numpy()
    own = table[["stage", "rank"]].to_numpy()
    continued = (own[1:] == own[:-1]).all(axis=1)
    change = held - np.append(0, np.where(continued, held[:-1], 0))
    rank, time = table["rank"].to_numpy(), table["time"].to_numpy()
    order = np.lexsort((time, rank))
    rank, time = rank[order], time[order]
    last = np.append((np.diff(rank) != 0) | (np.diff(time) != 0), True)
    # Every rank starts from and returns to nothing, so one running sum serves them all.
    columns = {"rank": rank, "time": time, "in_flight": np.cumsum(change[order])}
    return pd.DataFrame({name: column[last] for name, column in columns.items()})


def byte_changes(schedule: Schedule, pipe: Pipeline) -> tuple[IntArray, IntArray]:
    """Return the bytes of stash that each op takes when it starts and frees when it ends.

    Arrays (ops,). Of a sliced micro-batch every slice holds an equal part, in whole bytes: the
    first ones hold what is left over.

    Raises
    ------
    ValueError
        If all that is ever taken is more than can be added up.
    """

    def part(name: str) -> IntArray:
        total = np.array([getattr(stage, name) for stage in pipe.stages], dtype=np.int64)
        whole, left = np.divmod(total[schedule.stage], schedule.slices)
        share: IntArray = whole + (schedule.slice < left)
        return share

    stash, early = part("stash_bytes"), part("input_grad_frees_bytes")
    rebuilt = part("rebuilt_bytes")
    kind = schedule.kind
    whole, first, rest = (kind == of for of in (Kind.B, Kind.I, Kind.W))
    rebuilds = whole | first
    if schedule.separate_recompute:
        kept = schedule.numbers()[Kind.R, schedule.stage, schedule.unit] < 0
        rebuilds = (kind == Kind.R) | opens(schedule) & kept
    more = np.maximum(-early - rebuilt, 0)  # that I leaves to W
    taken = np.where(opens(schedule), stash, 0)
    taken = taken + np.where(rebuilds, rebuilt, 0) + np.where(first, more, 0)
    total = float(taken.sum(dtype=np.float64))
    if total > MOST_TAKEN:
        raise ValueError(
            f"the activations of all ops come to {total:.3g} bytes, more than 4 x 10^18: "
            "give smaller stash_bytes"
        )
    freed = np.where(closes(schedule), np.where(rest, stash - early, stash), 0)
    freed = freed + np.where(whole, rebuilt, 0) + np.where(first, rebuilt + more + early, 0)
    return taken, freed


def peak_stash_bytes(schedule: Schedule, pipe: Pipeline) -> tuple[int, ...]:
    """Return the most bytes of stash that each rank holds at once."""
    sizes = ("stash_bytes", "input_grad_frees_bytes", "rebuilt_bytes")
    if not any(getattr(stage, name) for stage in pipe.stages for name in sizes):
        return (0,) * schedule.ranks
    return peak_by_rank(schedule, *byte_changes(schedule, pipe))


def state_by_rank(schedule: Schedule, pipe: Pipeline) -> StateBytes:
    """Return what each rank holds all the time: every copy of a stage, every version of weights."""
    totals = np.zeros((3, schedule.ranks), dtype=np.int64)
    versions = np.array(schedule.weight_versions, dtype=np.int64)
    params, grads, optimizer = (
        np.array([getattr(stage, name) for stage in pipe.stages], dtype=np.int64)
        for name in ("param_bytes", "grad_bytes", "optimizer_bytes")
    )
    held = np.array([params * versions, grads, optimizer])
    for rank_of in schedule.placement.table:
        for total, of_stages in zip(totals, held, strict=True):
            np.add.at(total, rank_of, of_stages)
    return StateBytes(*totals)


def peak_memory_bytes(schedule: Schedule, pipe: Pipeline) -> IntArray:
    """Return the most bytes that each rank holds at once of all that it holds, array (ranks,)."""
    peak: IntArray = state_by_rank(schedule, pipe).total + peak_stash_bytes(schedule, pipe)
    return peak


def memory_table(schedule: Schedule, pipe: Pipeline, spans: Spans) -> "pd.DataFrame":
    """Return what every rank holds over time, one row a change.

    Columns: `rank`, `time` [ms], `op` whose start or end it is, and in bytes what is held from
    then on: `params`, `grads`, `optimizer`, `activations`, `total`. The first row of a rank, at
    the begin of the run and with no op, has what it holds all the time. Sorted by rank, time and
    the rank's order; of two changes at one time both are there, what ends before what starts.
    """
    import pandas as pd

    taken, freed = byte_changes(schedule, pipe)
    number = np.arange(len(schedule))
    # A place in line for the begin of each rank, and the start and the end of every op; of a pair
    # the second starts before the first ends.
    starts = 4 * number - 3 * second_of_pair(schedule)
    place = np.concatenate([4 * schedule.offsets[:-1] - 1, starts, 4 * number + 2])
    change = np.concatenate([np.zeros(schedule.ranks, dtype=np.int64), taken, -freed])
    begins = np.full(schedule.ranks, spans.begin)
    time = np.concatenate([begins, spans.start, spans.end])
    rank = np.concatenate([np.arange(schedule.ranks), schedule.rank, schedule.rank])
    op = np.concatenate([np.full(schedule.ranks, -1), number, number])
    row = np.argsort(place, kind="stable")
    row = row[(change[row] != 0) | (op[row] < 0)]
    state = state_by_rank(schedule, pipe)
    # All that a rank takes it frees, so one running sum serves all ranks.
    activations = np.cumsum(change[row])
    rank = rank[row].astype(np.int32)
    texts = np.append(op_texts(schedule), "")  # the last is that of no op
    return pd.DataFrame(
        {
            "rank": rank,
            "time": time[row],
            "op": texts[op[row]],
            "params": state.params[rank],
            "grads": state.grads[rank],
            "optimizer": state.optimizer[rank],
            "activations": activations,
            "total": state.total[rank] + activations,
        }
    )


def op_texts(schedule: Schedule) -> npt.NDArray[np.str_]:
    """Return every op as text, such as 2F0, or 2F0.1 for the second slice, array (ops,)."""
    kinds = np.array([kind.name for kind in COMPUTE_KINDS])
    parts = [schedule.stage.astype(str), kinds[schedule.kind], schedule.microbatch.astype(str)]
    if schedule.slices > 1:
        slices = np.array(["", *(f".{number}" for number in range(1, schedule.slices))])
        parts.append(slices[schedule.slice])
    texts = parts[0]
    for part in parts[1:]:
        texts = np.char.add(texts, part)
    return texts
