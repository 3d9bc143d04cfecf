"""The Gantt chart: one row a rank, one bar an op, idle time shaded by its cause."""

from collections.abc import Iterable
from textwrap import shorten

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb

from pipesim.arrays import FloatArray
from pipesim.metrics import idle_spans
from pipesim.ops import Kind
from pipesim.plot.gantt_legend import closed_form_makespan, draw_legend, draw_sources
from pipesim.plot.gantt_path import draw_path
from pipesim.plot.gantt_step import draw_ends, step_titles
from pipesim.plot.style import (
    HATCH_COLOUR,
    IDLE_STYLES,
    KIND_COLOURS,
    LABEL_COLOURS,
    new_axes,
)
from pipesim.run import Run
from pipesim.step import Step
from pipesim.text_table import count_text

BAR = 0.84  # height of a bar in rows
GAP = 1.6  # rows between two runs, for the second one's title
SMALLEST_FONT = 4.0  # points; smaller numbers are left out
MOST_LABELS = 5000
DARKEST = 0.25  # how much darker the last chunk of a rank is than the first


def gantt(
    runs: Run | Step | Iterable[Run], ax: Axes | None = None, *, critical_path: bool = False
) -> Axes:
    """Return the Axes with the Gantt chart of one run, or of several under each other.

    Of a whole step the replicas stand under each other, and after their ops what comes at the
    end: reductions, optimizer, gathers. While a rank still computes, its reduction is a strip at
    the foot of the row.

    Bars carry their micro-batch where they are wide enough. Idle time is shaded by cause, and
    its share of the step stands at the right of each row. Two lines mark the makespan of equal
    stages by the closed form (dashed) and the lower bound of these stages (dotted).

    Parameters
    ----------
    runs
        One run, several to be drawn on one time axis, or a step.
    ax
        Where to draw; by default on a new figure.
    critical_path
        Whether to outline the ops on the critical path of each run, with lines between ranks.

    Examples
    --------
    >>> import pipesim as ps
    >>> pipe = ps.Pipeline.from_costs(forward=[1, 1, 1, 2], backward=[2, 2, 2, 4])
    >>> ax = ps.plot.gantt(ps.simulate(pipe, "1f1b", microbatches=8))
    >>> ax.get_xlabel()
    'time [ms]'
    """
    step = runs if isinstance(runs, Step) else None
    if isinstance(runs, Step):
        runs = runs.runs
    runs = [runs] if isinstance(runs, Run) else list(runs)
    titles = [run_title(run) for run in runs] if step is None else step_titles(step)
    rows = sum(run.schedule.ranks for run in runs)
    if ax is None:
        row_height = min(0.36, 9.0 / max(run.schedule.ranks for run in runs))
        ax = new_axes(10.0, rows * row_height + 0.45 * len(runs) + 1.1)
    times = [t for run in runs for t in (run.makespan, closed_form_makespan(run), run.lower_bound)]
    times += [] if step is None else [step.step_ms]
    ax.set_xlim(0, 1.003 * max(t for t in times if t is not None) or 1.0)  # lines stay inside
    tops = np.cumsum([0.0, *(run.schedule.ranks + GAP for run in runs)])
    ticks: list[tuple[float, str]] = []
    for run, title, top in zip(runs, titles, tops, strict=False):
        _draw_run(ax, run, top)
        ax.text(0, top - 0.62, title, fontsize=9, va="bottom", ha="left", parse_math=False)
        ticks += [(top + rank, f"rank {rank}") for rank in range(run.schedule.ranks)]
    ax.set_ylim(tops[-1] - GAP - 0.5, -0.5)
    ax.set_yticks([place for place, _ in ticks], [text for _, text in ticks])
    ax.tick_params(axis="y", length=0, labelsize=_row_font(ax, 9.0))
    ax.set_xlabel("time [ms]")
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    for run, top in zip(runs, tops, strict=False):
        _label_bars(ax, run, top)
        _idle_shares(ax, run, top)
        if critical_path:
            draw_path(ax, run, top, BAR, _points_per_ms(ax))
    handles = [] if step is None else draw_ends(ax, step, tops.tolist(), BAR)
    draw_legend(ax, runs, critical_path, handles)
    draw_sources(ax, runs)
    return ax


def _draw_run(ax: Axes, run: Run, top: float) -> None:
    begin = run.spans.start.min()
    for cause, found in idle_spans(run.program, run.workload, run.spans).items():
        face, hatch, _ = IDLE_STYLES[cause]
        height = np.full(len(found.rank), BAR)
        boxes = _boxes(
            found.start - begin, found.end - begin, top + found.rank.astype(np.float64), height
        )
        ax.add_collection(
            PolyCollection(
                list(boxes),
                facecolors=face,
                edgecolors=HATCH_COLOUR if hatch else face,
                hatch=hatch,
                linewidths=0.0,
                zorder=1,
            )
        )
    centre, height = lanes(run, top)
    shade = shades(run)
    for kind in sorted(run.schedule.kinds):
        ops = run.schedule.kind == kind
        start, end = run.spans.start[ops] - begin, run.spans.end[ops] - begin
        boxes = _boxes(start, end, centre[ops], height[ops])
        colour = np.array(to_rgb(KIND_COLOURS[kind.name]))
        ax.add_collection(
            PolyCollection(
                list(boxes),
                facecolors=shade[ops, np.newaxis] * colour,
                edgecolors="white",
                linewidths=np.clip(0.1 * np.median(_widths(ax, run)[ops]), 0.0, 0.6),
                zorder=2,
            )
        )
    ends = (top - 0.5, top + run.schedule.ranks - 0.5)
    for time, style in ((closed_form_makespan(run), "--"), (run.lower_bound, ":")):
        if time is not None:
            ax.plot([time, time], ends, style, color="black", linewidth=1.2, zorder=3)


def run_title(run: Run) -> str:
    """Return a run in one line: title, schedule, step, inflation and bubble."""
    closed = run.closed_form
    reference = "" if closed is None else f" (closed form {closed:.1%})"
    inflation = "" if run.inflation is None else f", {run.inflation:.3f} x equal stages"
    title = shorten(run.pipeline.title, 48, placeholder="...")
    count = count_text(run.schedule.microbatches, "micro-batch")
    return (
        f"{title}{': ' if title else ''}{run.program.title}, {count}, {run.makespan:.5g} ms"
        f"{inflation}, bubble {run.bubble_fraction:.1%}{reference}"
    )


def lanes(run: Run, top: float) -> tuple[FloatArray, FloatArray]:
    """Return where each bar is centred and how high it is, in rows.

    The two ops of an overlapped pair share a row: the forward above, the backward below.
    """
    schedule = run.schedule
    paired = schedule.group >= 0
    side = np.where(schedule.kind == Kind.F, -BAR / 4, BAR / 4)
    centre: FloatArray = top + schedule.rank.astype(np.float64) + np.where(paired, side, 0.0)
    height: FloatArray = np.where(paired, BAR / 2, BAR)
    return centre, height


def shades(run: Run) -> FloatArray:
    """Return how light each bar is: 1 for the first chunk of a rank, less for later ones."""
    schedule = run.schedule
    direction = schedule.directions[schedule.microbatch]
    chunk = schedule.placement.chunk_table[direction, schedule.stage]
    shade: FloatArray = 1 - DARKEST * chunk / max(1, chunk.max())
    return shade


def _boxes(
    start: FloatArray, end: FloatArray, centre: FloatArray, height: FloatArray
) -> FloatArray:
    """Return rectangles, array (bars, 4 corners, 2)."""
    low, high = centre - height / 2, centre + height / 2
    corners = [(start, low), (start, high), (end, high), (end, low)]
    return np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)


def _row_font(ax: Axes, largest: float) -> float:
    """Return a font size [points] that fits into a row."""
    rows = abs(ax.get_ylim()[0] - ax.get_ylim()[1])
    points = ax.get_window_extent().height / ax.figure.dpi * 72
    return float(np.clip(0.62 * points / rows, 1.0, largest))


def _widths(ax: Axes, run: Run) -> FloatArray:
    """Return the width of every bar [points]."""
    widths: FloatArray = (run.spans.end - run.spans.start) * _points_per_ms(ax)
    return widths


def _points_per_ms(ax: Axes) -> float:
    points = ax.get_window_extent().width / ax.figure.dpi * 72
    return float(points / ax.get_xlim()[1])


def _label_bars(ax: Axes, run: Run, top: float) -> None:
    """Write the micro-batch into the bars, in a font in which the widest number of a kind fits."""
    widths, begin = _widths(ax, run), run.spans.start.min()
    centre, height = lanes(run, top)
    if len(widths) > MOST_LABELS:
        return
    schedule = run.schedule
    labels = [str(number) for number in schedule.microbatch.tolist()]
    if schedule.slices > 1:
        labels = [f"{n}.{k}" for n, k in zip(labels, schedule.slice.tolist(), strict=True)]
    characters = 0.62 * max(map(len, labels)) + 0.3
    for kind in sorted(run.schedule.kinds):
        ops = np.flatnonzero(run.schedule.kind == kind)
        row = _row_font(ax, 8.0)
        font = min(row, float(np.median(widths[ops])) / characters)
        for op in ops[widths[ops] >= 0.99 * characters * font].tolist():
            size = min(font, 1.3 * row * height[op] / BAR)
            if size < SMALLEST_FONT:
                continue
            ax.text(
                (run.spans.start[op] + run.spans.end[op]) / 2 - begin,
                centre[op],
                labels[op],
                fontsize=size,
                color=LABEL_COLOURS[kind.name],
                ha="center",
                va="center_baseline",
                zorder=4,
            )


def _idle_shares(ax: Axes, run: Run, top: float) -> None:
    font = _row_font(ax, 8.5)
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
