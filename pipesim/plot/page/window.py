"""Which part of the time a page shows: all, what is asked for, or as much as a browser takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from pipesim.base.types import BoolArray, FloatArray
from pipesim.run.run import Run

MOST_BARS = 40_000  # in a page; a browser without a graphics card loads so many in three seconds


@dataclass(frozen=True, slots=True)
class Window:
    """The part of the time that a page shows: from `begin` to `end` [ms], and why not all."""

    begin: float
    end: float
    notice: str = ""

    def holds(self, start: FloatArray, end: FloatArray) -> BoolArray:
        """Return which spans show in it; those without length also at its very begin and end."""
        within: BoolArray = (start < self.end) & (end > self.begin)
        within |= (start == end) & (start >= self.begin) & (start <= self.end)
        return within


def choose_window(
    runs: Sequence[Run],
    last: float,
    asked: tuple[float, float] | None = None,
    most: int = MOST_BARS,
) -> Window:
    """Return what a page shows of runs: all, what is asked for, or as much as it can hold.

    Parameters
    ----------
    runs
        The runs of the page: all are shown from the same begin to the same end.
    last
        When all is over [ms].
    asked
        Begin and end [ms]; by default all.
    most
        Bars; a window of more ends early.

    Raises
    ------
    ValueError
        If they are not two times in order, or all is over before the window begins.
    """
    begin, end = (0.0, last) if asked is None else asked
    if asked is not None and not 0 <= begin < end < inf:
        raise ValueError(f"window {begin:g} to {end:g} ms: give begin and end, 0 <= begin < end")
    if begin >= last > 0:
        raise ValueError(f"window {begin:g} to {end:g} ms: all is over at {last:g} ms")
    end = min(end, last)
    starts = []
    for run in runs:
        start, stop = times_of(run)
        starts.append(start[Window(begin, end).holds(start, stop)])
    shown = np.concatenate(starts)
    part = f"{begin:.6g} to {{:.6g}} of {last:.6g} ms"
    if len(shown) > most:
        end = max(float(np.partition(shown, most)[most]), np.nextafter(begin, np.inf))
        who = "the run has" if len(runs) == 1 else f"these {len(runs)} runs have"
        ops = sum(len(run.schedule) for run in runs)
        return Window(
            begin,
            end,
            f"A page holds {most:,} ops, {who} {ops:,}: shown are {part.format(end)}; choose "
            "another part with --window BEGIN:END",
        )
    return Window(begin, end, "" if asked is None else f"Shown are {part.format(end)}.")


def times_of(run: Run) -> tuple[FloatArray, FloatArray]:
    """Return start and end of every op from the first start on [ms], arrays (ops,)."""
    begin = run.spans.begin
    return run.spans.start - begin, run.spans.end - begin
