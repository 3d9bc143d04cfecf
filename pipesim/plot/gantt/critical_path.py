"""The critical path on a Gantt chart: outlines round its ops, lines where it changes ranks."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.lines import Line2D

from pipesim.plot.gantt.boxes import corners
from pipesim.run.run import Run

THICKEST, THINNEST = 1.7, 0.4  # width of an outline [points]
ABOVE_BARS, ABOVE_LABELS = 3.4, 4.5
WORDS = "critical path"


def draw_path(ax: Axes, run: Run, top: float, bar: float, points_per_ms: float) -> None:
    """Draw the critical path of a run over its bars.

    Parameters
    ----------
    ax, run
        The chart, and the run that is drawn on it.
    top
        The row of rank 0.
    bar
        Height of a bar in rows.
    points_per_ms
        Scale of the time axis, from which narrow bars get thinner outlines.
    """
    path = run.critical_path
    path = path[path["resource"] == "compute"]
    start, end = path["start"].to_numpy(), path["end"].to_numpy()
    row = top + path["rank"].to_numpy().astype(np.float64)
    width = float(np.median(end - start)) * points_per_ms
    line = float(np.clip(0.15 * width, THINNEST, THICKEST))
    # A light rim keeps a dark outline apart from a dark bar.
    for colour, wider in (("white", 2.2), ("black", 1.0)):
        ax.add_collection(
            PolyCollection(
                list(corners(start, end, row - bar / 2, row + bar / 2)),
                facecolors="none",
                edgecolors=colour,
                linewidths=line * wider,
                joinstyle="miter",
                zorder=ABOVE_BARS,
            )
        )
    crossing = np.flatnonzero(row[1:] != row[:-1])
    toward = np.sign(row[crossing + 1] - row[crossing]) * bar / 2
    leaves = np.stack([end[crossing], row[crossing] + toward], axis=-1)
    arrives = np.stack([start[crossing + 1], row[crossing + 1] - toward], axis=-1)
    ax.add_collection(
        LineCollection(
            list(np.stack([leaves, arrives], axis=1)),
            colors="black",
            linewidths=max(line, 0.8),
            zorder=ABOVE_LABELS,
        )
    )


def path_handle() -> Line2D:
    """Return the legend handle of the critical path: an outlined box."""
    return Line2D(
        [],
        [],
        linestyle="none",
        marker="s",
        markersize=7,
        markerfacecolor="none",
        markeredgecolor="black",
        markeredgewidth=THICKEST,
        label=WORDS,
    )
