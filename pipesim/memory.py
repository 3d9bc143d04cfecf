"""Spans -> what each stage holds over time: micro-batches in flight, and their bytes.

A (stage, micro-batch) pair is in flight from the start of its F to the end of its last backward
part; where a schedule has forwards only, to the end of its F. At equal times what ends frees its
place before what starts takes one.
"""

from typing import TYPE_CHECKING

import numpy as np

from pipesim.pipeline import Pipeline
from pipesim.schedule import Schedule
from pipesim.trace import Spans

if TYPE_CHECKING:
    import pandas as pd


def in_flight_table(schedule: Schedule, pipe: Pipeline, spans: Spans) -> "pd.DataFrame":
    """Return what every stage holds over time, one row a change.

    Columns: `stage`, `rank`, `time` [ms], `in_flight` (micro-batches held from that time on)
    and `stash_bytes` (in_flight x the stage's stash), sorted by stage and time.
    """
    import pandas as pd

    opens, closes = np.flatnonzero(schedule.opens()), np.flatnonzero(schedule.closes())
    op = np.concatenate([opens, closes])
    time = np.concatenate([spans.start[opens], spans.end[closes]])
    change = np.repeat([1, -1], [len(opens), len(closes)])
    order = np.lexsort((change, time, schedule.stage[op]))
    stage, time, change = schedule.stage[op][order], time[order], change[order]
    # Every stage starts from and returns to nothing, so one running sum serves them all.
    held = np.cumsum(change)
    last_at_its_time = np.ones(len(op), dtype=bool)
    last_at_its_time[:-1] = (np.diff(time) != 0) | (np.diff(stage) != 0)
    stash = np.array([s.stash_bytes for s in pipe.stages], dtype=np.int64)
    table = {
        "stage": stage,
        "rank": np.asarray(schedule.placement.rank_of)[stage],
        "time": time,
        "in_flight": held,
        "stash_bytes": held * stash[stage],
    }
    return pd.DataFrame({name: column[last_at_its_time] for name, column in table.items()})


def peak_stash_bytes(schedule: Schedule, pipe: Pipeline) -> tuple[int, ...]:
    """Return the most bytes of stash that each rank holds at once.

    On one rank ops follow each other, so that its order alone decides.
    """
    stash = np.array([stage.stash_bytes for stage in pipe.stages], dtype=np.int64)[schedule.stage]
    opened = np.cumsum(schedule.opens() * stash)
    closed = np.cumsum(schedule.closes() * stash)
    held = opened - closed + schedule.closes() * stash
    return tuple(int(most) for most in np.maximum.reduceat(held, schedule.offsets[:-1]))


def param_bytes(schedule: Schedule, pipe: Pipeline) -> tuple[int, ...]:
    """Return the bytes of parameters on each rank."""
    totals = [0] * schedule.ranks
    for stage, rank in zip(pipe.stages, schedule.placement.rank_of, strict=True):
        totals[rank] += stage.param_bytes
    return tuple(totals)
