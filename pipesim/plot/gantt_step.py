"""The end of a step on a Gantt chart: reductions, optimizer and gathers after the ops."""

from collections.abc import Sequence
from textwrap import shorten

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch

from pipesim.plot.style import END_EDGE, END_STYLES, HATCH_COLOUR
from pipesim.step import Step
from pipesim.text_table import count_text

STRIP = 0.3  # of a bar's height: what goes on beside the compute
ABOVE_BARS = 2.5


def step_titles(step: Step) -> list[str]:
    """Return a line a replica; the first tells of the whole step, too."""
    named = [
        f"replica {number}: {run.makespan:.5g} ms, bubble {run.bubble_fraction:.1%}"
        for number, run in enumerate(step.runs)
    ]
    title = shorten(step.runs[0].pipeline.title, 48, placeholder="...")
    count = count_text(step.schedule.microbatches, "micro-batch")
    whole = (
        f"{title}{': ' if title else ''}{step.runs[0].program.title}, {count}, "
        f"{count_text(len(named), 'replica')}, step {step.step_ms:.5g} ms"
    )
    return [f"{whole}\n{named[0]}", *named[1:]]


def draw_ends(ax: Axes, step: Step, tops: Sequence[float], bar: float) -> list[Patch]:
    """Draw the end of a step over the bars of its replicas; return what the legend needs.

    Parameters
    ----------
    ax, step
        The chart, and the step whose runs are drawn on it.
    tops
        The row of rank 0 of each replica.
    bar
        Height of a bar in rows.
    """
    trace = step.trace[step.trace.microbatch < 0]
    rank = trace["rank"].to_numpy()
    replica = trace.replica.to_numpy()
    foot = np.asarray(tops)[replica] + rank + bar / 2
    through = step.end.through[replica, rank]
    handles = []
    if (trace.start > trace.ready).any():
        words = "waits for other ranks"
        handles.append(Patch(facecolor="white", edgecolor=HATCH_COLOUR, linewidth=0.5, label=words))
    for kind, (face, hatch, words) in END_STYLES.items():
        own = ((trace.kind == kind) & (trace.end > trace.start)).to_numpy()
        if not own.any():
            continue
        start, end = trace.start.to_numpy()[own], trace.end.to_numpy()[own]
        turn = np.clip(through[own], start, end)  # a strip before, a bar from here on
        for left, right, height in ((start, turn, STRIP * bar), (turn, end, bar)):
            wide = right > left
            low = foot[own][wide]
            corners = [(left, 0.0), (left, height), (right, height), (right, 0.0)]
            boxes = [np.stack([x[wide], low - up], axis=-1) for x, up in corners]
            ax.add_collection(
                PolyCollection(
                    list(np.stack(boxes, axis=1)),
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
