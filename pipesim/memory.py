"""Spans -> what each stage holds over time: micro-batches in flight, and their bytes.

A (stage, micro-batch) pair, or a slice of it, is in flight from the start of its F to the end of
its last backward part; where a schedule has forwards only, to the end of its F. Of its stash, F
takes all when it starts; I frees the part that only I needs, or takes more, and W the rest, when
they end. What is rebuilt, B or I takes when it starts and frees when it ends, but for what it
leaves to W. In a schedule with R it is R that takes it, and where there is none F, which then has
kept it. At equal times what ends frees its place before what starts takes one.
"""

from typing import TYPE_CHECKING

import numpy as np

from pipesim.arrays import IntArray
from pipesim.dataflow import closes, op_numbers, opens, peak_by_rank
from pipesim.ops import Kind
from pipesim.pipeline import Pipeline
from pipesim.schedule import Schedule
from pipesim.trace import Spans

if TYPE_CHECKING:
    import pandas as pd


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


def byte_changes(schedule: Schedule, pipe: Pipeline) -> tuple[IntArray, IntArray]:
    """Return the bytes of stash that each op takes when it starts and frees when it ends.

    Arrays (ops,). Of a sliced micro-batch every slice holds an equal part, in whole bytes: the
    first ones hold what is left over.
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
        kept = op_numbers(schedule)[Kind.R, schedule.stage, schedule.unit] < 0
        rebuilds = (kind == Kind.R) | opens(schedule) & kept
    more = np.maximum(-early - rebuilt, 0)  # that I leaves to W
    taken = np.where(opens(schedule), stash, 0)
    taken = taken + np.where(rebuilds, rebuilt, 0) + np.where(first, more, 0)
    freed = np.where(closes(schedule), np.where(rest, stash - early, stash), 0)
    freed = freed + np.where(whole, rebuilt, 0) + np.where(first, rebuilt + more + early, 0)
    return taken, freed


def peak_stash_bytes(schedule: Schedule, pipe: Pipeline) -> tuple[int, ...]:
    """Return the most bytes of stash that each rank holds at once."""
    sizes = ("stash_bytes", "input_grad_frees_bytes", "rebuilt_bytes")
    if not any(getattr(stage, name) for stage in pipe.stages for name in sizes):
        return (0,) * schedule.ranks
    return peak_by_rank(schedule, *byte_changes(schedule, pipe))


def param_bytes(schedule: Schedule, pipe: Pipeline) -> tuple[int, ...]:
    """Return the bytes of parameters on each rank: every copy and every version of a stage."""
    totals = [0] * schedule.ranks
    for rank_of in schedule.placement.table.tolist():
        for stage, rank in enumerate(rank_of):
            totals[rank] += pipe.stages[stage].param_bytes * schedule.weight_versions[stage]
    return tuple(totals)
