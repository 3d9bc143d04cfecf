"""Texts in and beside the rows of a Gantt chart: micro-batches, and shares of idle time."""

import numpy as np
from matplotlib.axes import Axes

from pipesim.base.types import FloatArray
from pipesim.plot.style import LABEL_COLOURS
from pipesim.run.run import Run

SMALLEST_FONT = 4.0  # points; smaller numbers are left out
MOST_LABELS = 5000


def row_font(ax: Axes, largest: float) -> float:
    """Return the font size [points] that fits into a row, at most `largest`."""
    rows = abs(ax.get_ylim()[0] - ax.get_ylim()[1])
    points = ax.get_window_extent().height / ax.figure.dpi * 72
    return float(np.clip(0.62 * points / rows, 1.0, largest))


def points_per_ms(ax: Axes) -> float:
    """Return the scale of the time axis [points/ms]."""
    points = ax.get_window_extent().width / ax.figure.dpi * 72
    return float(points / ax.get_xlim()[1])


def label_bars(
    ax: Axes,
    run: Run,
    lanes: tuple[FloatArray, FloatArray],
    faces: FloatArray,
    lines: FloatArray,
) -> None:
    """Write the micro-batches into the bars, in a font in which the widest of a kind fits.

    Parameters
    ----------
    ax, run
        The chart, and the run that is drawn on it.
    lanes
        The centre of each bar [rows], and its height as part of a full bar.
    faces
        The colour of each bar, array (ops, 3).
    lines
        Times [ms] of lines across the bars: a number on a line covers it with the bar's colour.
    """
    if len(run.schedule) > MOST_LABELS:
        return
    begin, schedule = run.spans.begin, run.schedule
    centre, height = lanes
    middle = (run.spans.start + run.spans.end) / 2 - begin
    scale = points_per_ms(ax)
    widths = (run.spans.end - run.spans.start) * scale
    labels = [str(number) for number in schedule.microbatch.tolist()]
    if schedule.slices > 1:
        labels = [f"{n}.{k}" for n, k in zip(labels, schedule.slice.tolist(), strict=True)]
    characters = 0.62 * max(map(len, labels)) + 0.3
    row = row_font(ax, 8.0)
    # Bars of a pair are wider, and half as high.
    for kind, full in ((kind, full) for kind in sorted(schedule.kinds) for full in (True, False)):
        ops = np.flatnonzero((schedule.kind == kind) & ((height == 1.0) == full))
        if not len(ops):
            continue
        font = min(row, float(np.median(widths[ops])) / characters)
        for op in ops[widths[ops] >= 0.99 * characters * font].tolist():
            size = min(font, 1.3 * row * height[op])
            if size < SMALLEST_FONT:
                continue
            text = ax.text(
                middle[op],
                centre[op],
                labels[op],
                fontsize=size,
                color=LABEL_COLOURS[kind.name],
                ha="center",
                va="center_baseline",
                zorder=4,
            )
            reach = characters * size / 2 / scale
            if (np.abs(lines - middle[op]) < reach).any():
                text.set_bbox({"facecolor": faces[op], "edgecolor": "none", "pad": 0.5})


def idle_shares(ax: Axes, run: Run, top: float) -> None:
    """Write the idle share of each rank's step at the right of its row."""
    font = row_font(ax, 8.5)
    for rank, share in enumerate(run.rank_times.bubble_fraction.tolist()):
        ax.text(
            1.005,
            top + rank,
            f"{share:.0%} idle" if rank == 0 else f"{share:.0%}",
            transform=ax.get_yaxis_transform(),
            fontsize=font,
            ha="left",
            va="center",
        )
