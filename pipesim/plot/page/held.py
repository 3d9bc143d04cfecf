"""What a page shows of what the ranks hold over time: micro-batches in flight, and bytes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pipesim.base.text import plural, size_text
from pipesim.base.types import FloatArray, IntArray
from pipesim.run.memory import flight_noun, in_flight_of_ranks
from pipesim.run.run import Run

if TYPE_CHECKING:
    import pandas as pd


class Held(NamedTuple):
    """What every rank holds of one unit over time.

    Parameters
    ----------
    words
        What it is.
    curves
        A table a rank, `time` [ms] and `held`, a row a change, cut to the part that is shown.
    peaks
        What each rank holds at most in the whole run, as text.
    highest
        What any rank holds at most in the whole run: one scale for all.
    """

    words: str
    curves: list[dict[str, Any]]
    peaks: list[str]
    highest: int


def held_by_ranks(run: Run, begin: float, end: float) -> dict[str, Held]:
    """Return what the ranks hold from `begin` to `end` [ms]: "in flight", and "bytes" if any."""
    counted = plural(flight_noun(run.schedule))
    table = in_flight_of_ranks(run.in_flight)
    found = {"in flight": _held(run, table, "in_flight", f"{counted} in flight", str, begin, end)}
    if max(run.peak_memory) > 0:
        found["bytes"] = _held(run, run.memory, "total", "bytes held", size_text, begin, end)
    return found


def _held(
    run: Run,
    table: "pd.DataFrame",
    column: str,
    words: str,
    show: Callable[[int], str],
    begin: float,
    end: float,
) -> Held:
    ranks, first = [rows for _, rows in table.groupby("rank")], run.spans.begin
    peaks = [int(rows[column].max()) for rows in ranks]
    return Held(
        words=f"{words} on each rank",
        curves=[
            _cut(rows["time"].to_numpy() - first, rows[column].to_numpy(), begin, end)
            for rows in ranks
        ],
        peaks=[show(peak) for peak in peaks],
        highest=max(peaks),
    )


def _cut(time: FloatArray, held: IntArray, begin: float, end: float) -> dict[str, Any]:
    """Return a curve of steps from begin to end [ms], with a point at both."""
    first = int(np.searchsorted(time, begin, side="right"))
    last = int(np.searchsorted(time, end, side="left"))
    before = held[first - 1] if first else 0
    until = held[last - 1] if last > first else before
    return {
        "time": np.concatenate([[begin], time[first:last], [end]]),
        "held": np.concatenate([[before], held[first:last], [until]]).astype(np.float64),
    }
