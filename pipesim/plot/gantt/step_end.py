"""The end of a step on a Gantt chart: reductions, optimizer and gathers after the ops."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch

from pipesim.base.text import count_text, ms_text
from pipesim.base.types import BoolArray, FloatArray, IntArray
from pipesim.plot.gantt.boxes import corners
from pipesim.plot.style import END_EDGE, END_STYLES, HATCH_COLOUR
from pipesim.plot.titles import bubble_text, run_head
from pipesim.run.step import Step

if TYPE_CHECKING:
    import pandas as pd

STRIP = 0.3  # height of work beside the compute, as part of a bar
ABOVE_BARS = 2.5


def step_titles(step: Step) -> list[str]:
    """Return the titles of the replicas; the whole step is above the first."""
    named = [
        f"replica {number}: {ms_text(run.makespan)}, {bubble_text(run)}"
        for number, run in enumerate(step.runs)
    ]
    replicas = count_text(len(named), "replica")
    whole = f"{run_head(step.runs[0])}, {replicas}, step {ms_text(step.step_ms)}"
    return [f"{whole}\n{named[0]}", *named[1:]]


class EndBoxes(NamedTuple):
    """The boxes of one kind of work at a step's end; arrays (boxes,), `height` in bars."""

    replica: IntArray
    rank: IntArray
    start: FloatArray
    end: FloatArray
    height: FloatArray

    def where(self, chosen: BoolArray) -> "EndBoxes":
        """Return the chosen boxes."""
        return EndBoxes._make(column[chosen] for column in self)


def end_trace(step: Step) -> "pd.DataFrame":
    """Return the rows of the step's end in the trace of a step."""
    return step.trace[step.trace.microbatch < 0]


def end_boxes(step: Step) -> dict[str, EndBoxes]:
    """Return the boxes of all that takes time at a step's end, by kind of `END_STYLES`.

    Work is a strip while the rank still computes, and a bar of full height from there on.
    """
    trace = end_trace(step)
    found: dict[str, EndBoxes] = {}
    for kind in END_STYLES:
        own = trace[(trace.kind == kind) & (trace.end > trace.start)]
        if own.empty:
            continue
        replica, rank = own.replica.to_numpy(), own["rank"].to_numpy()
        start, end = own.start.to_numpy(), own.end.to_numpy()
        turn = np.clip(step.end.through[replica, rank], start, end)
        height = np.repeat([STRIP, 1.0], len(own))
        both = EndBoxes(
            np.tile(replica, 2),
            np.tile(rank, 2),
            np.concatenate([start, turn]),
            np.concatenate([turn, end]),
            height,
        )
        found[kind] = both.where(both.end > both.start)
    return found


def draw_ends(ax: Axes, step: Step, tops: Sequence[float], bar: float) -> list[Patch]:
    """Draw the end of a step over the bars of its replicas; return the handles for the legend.

    Parameters
    ----------
    ax, step
        The chart, and the step whose runs are drawn on it.
    tops
        The row of rank 0 of each replica.
    bar
        Height of a bar in rows.
    """
    handles = []
    trace = end_trace(step)
    if (trace.start > trace.ready).any():
        words = "waits for other ranks"
        handles.append(Patch(facecolor="white", edgecolor=HATCH_COLOUR, linewidth=0.5, label=words))
    for kind, boxes in end_boxes(step).items():
        face, hatch, words = END_STYLES[kind]
        foot = np.array(tops, dtype=np.float64)[boxes.replica] + boxes.rank + bar / 2
        head = foot - bar * boxes.height
        ax.add_collection(
            PolyCollection(
                list(corners(boxes.start, boxes.end, foot, head)),
                facecolors=face,
                edgecolors=END_EDGE,
                hatch=hatch,
                linewidths=0.5,
                zorder=ABOVE_BARS,
            )
        )
        handles.append(
            Patch(facecolor=face, edgecolor=END_EDGE, hatch=hatch, linewidth=0.5, label=words)
        )
    return handles
