"""The Gantt chart: one row a rank, one bar an op, idle time shaded by its cause."""

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb

from pipesim.base.ops import Kind
from pipesim.base.types import FloatArray
from pipesim.plot.gantt.boxes import corners
from pipesim.plot.gantt.critical_path import draw_path
from pipesim.plot.gantt.labels import idle_shares, label_bars, points_per_ms, row_font
from pipesim.plot.gantt.legend import LIMIT_LINES, draw_legend, draw_sources, limits_of
from pipesim.plot.gantt.step_end import draw_ends, step_titles
from pipesim.plot.gantt.titles import draw_arrow, draw_titles, saved_text, slowest_rival
from pipesim.plot.style import (
    HATCH_COLOUR,
    IDLE_STYLES,
    KIND_COLOURS,
    LAST_CHUNK,
    lay_out,
    new_axes,
)
from pipesim.plot.titles import numbers_text, order_text, own_title, run_head
from pipesim.run.run import Run
from pipesim.run.step import Step

BAR = 0.84  # height of a bar in rows
GAP = 1.6  # rows between two runs, for the second one's title
NARROW = 2.0  # points; edges of narrower bars are not moved to whole pixels


def gantt(
    runs: Run | Step | Iterable[Run], ax: Axes | None = None, *, critical_path: bool = False
) -> Axes:
    """Return the Axes with the Gantt chart of one run, or of several under each other.

    The replicas of a whole step stand under each other, their ops followed by the end of the
    step: reductions, optimizer, gathers. While a rank still computes, its reduction is a strip
    at the foot of the row.

    Bars carry their micro-batch where they are wide enough. Idle time is shaded by cause, and
    its share of the step stands at the right of each row. Two lines mark the makespan of equal
    stages by the closed form (dashed) and the lower bound of these stages (dotted). Each of
    several runs has a note of the time it saves beside the slowest that does the same work, and
    an arrow to the end of that one.

    Parameters
    ----------
    runs
        One run, several to be drawn on one time axis, or a step.
    ax
        The Axes to draw on; by default those of a new figure.
    critical_path
        Whether to outline the ops on the critical path of each run, with lines between ranks.

    Raises
    ------
    ValueError
        If there is no run.

    Examples
    --------
    >>> import pipesim as ps
    >>> pipe = ps.Pipeline.from_costs(forward=[1, 1, 1, 2], backward=[2, 2, 2, 4])
    >>> ax = ps.plot.gantt(ps.simulate(pipe, "1f1b", microbatches=8))
    >>> ax.get_xlabel()
    'time [ms]'
    """
    step = runs if isinstance(runs, Step) else None
    runs = runs_of(runs)
    titles, notes = run_titles(runs), [saved_text(run, runs) for run in runs]
    if step is not None:
        titles, notes = step_titles(step), [None] * len(runs)
    rows = sum(run.schedule.ranks for run in runs)
    if ax is None:
        row_height = min(0.36, 9.0 / max(run.schedule.ranks for run in runs))
        ax = new_axes(10.0, rows * row_height + 0.45 * len(runs) + 1.1)
    places = np.cumsum([0.0, *(run.schedule.ranks + GAP for run in runs)]).tolist()
    tops, bottom = places[:-1], places[-1] - GAP
    _set_axes(ax, runs, tops, bottom, 0.0 if step is None else step.step_ms)
    for run, top in zip(runs, tops, strict=True):
        _draw_run(ax, run, top)
        idle_shares(ax, run, top)
    handles = [] if step is None else draw_ends(ax, step, tops, BAR)
    draw_legend(ax, runs, critical_path, handles)
    draw_sources(ax, runs)
    lay_out(ax)
    draw_titles(ax, titles, notes, tops)
    for run, note, top in zip(runs, notes, tops, strict=True):
        centre, height = lanes(run, top)
        crossing = np.array(list(limits_of(run).values()))
        label_bars(ax, run, (centre, height / BAR), faces(run), crossing)
        if critical_path:
            draw_path(ax, run, top, BAR, points_per_ms(ax))
        if note is not None:
            draw_arrow(ax, run, slowest_rival(run, runs).makespan, top, points_per_ms(ax))
    return ax


def runs_of(drawn: Run | Step | Iterable[Run]) -> list[Run]:
    """Return the runs to be drawn, at least one: a single run, several, or those of a step."""
    if isinstance(drawn, Run):
        return [drawn]
    runs = list(drawn.runs if isinstance(drawn, Step) else drawn)
    if not runs:
        raise ValueError("no runs to draw")
    return runs


def _set_axes(
    ax: Axes, runs: Sequence[Run], tops: Sequence[float], bottom: float, until: float
) -> None:
    """Set up the axes: rows from the tops down to the bottom, times to the last end or `until`."""
    times = [run.makespan for run in runs] + [t for run in runs for t in limits_of(run).values()]
    ax.set_xlim(0, 1.003 * max(*times, until) or 1.0)  # lines stay inside
    ax.set_ylim(bottom - 0.5, -0.5)
    ranks = [range(run.schedule.ranks) for run in runs]
    places = [top + rank for own, top in zip(ranks, tops, strict=True) for rank in own]
    ax.set_yticks(places, [f"rank {rank}" for own in ranks for rank in own])
    ax.tick_params(axis="y", length=0, labelsize=row_font(ax, 9.0))
    ax.set_xlabel("time [ms]")
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)


def _draw_run(ax: Axes, run: Run, top: float) -> None:
    begin = run.spans.begin
    widths, colours = (run.spans.end - run.spans.start) * points_per_ms(ax), faces(run)
    # Snapped to whole pixels, neighbouring narrow bars widen or vanish alike: false bands.
    snap = False if np.median(widths) < NARROW else None
    for cause, found in run.idle_spans.items():
        face, hatch, _ = IDLE_STYLES[cause]
        row = top + found.rank.astype(np.float64)
        boxes = corners(found.start - begin, found.end - begin, row - BAR / 2, row + BAR / 2)
        ax.add_collection(
            PolyCollection(
                list(boxes),
                facecolors=face,
                edgecolors=HATCH_COLOUR if hatch else face,
                hatch=hatch,
                linewidths=0.0,
                snap=snap,
                zorder=1,
            )
        )
    centre, height = lanes(run, top)
    for kind in sorted(run.schedule.kinds):
        ops = run.schedule.kind == kind
        start, end = run.spans.start[ops] - begin, run.spans.end[ops] - begin
        boxes = corners(start, end, (centre - height / 2)[ops], (centre + height / 2)[ops])
        ax.add_collection(
            PolyCollection(
                list(boxes),
                facecolors=colours[ops],
                edgecolors="white",
                linewidths=np.clip(0.1 * np.median(widths[ops]), 0.0, 0.6),
                snap=snap,
                zorder=2,
            )
        )
    ends = (top - 0.5, top + run.schedule.ranks - 0.5)
    for words, time in limits_of(run).items():
        ax.plot([time, time], ends, LIMIT_LINES[words], color="black", linewidth=1.2, zorder=3)


def run_title(run: Run) -> str:
    """Return a run in one line: title, schedule, p, m, step, inflation and bubble."""
    return f"{run_head(run)}, {numbers_text(run)}"


def run_titles(runs: Sequence[Run]) -> list[str]:
    """Return the titles of runs; a title of the stages that all share is above the first only."""
    common = {own_title(run) for run in runs}
    if len(runs) == 1 or len(common) > 1 or common == {""}:
        return [run_title(run) for run in runs]
    own = [f"{order_text(run)}, {numbers_text(run)}" for run in runs]
    return [f"{common.pop()}\n{own[0]}", *own[1:]]


def lanes(run: Run, top: float) -> tuple[FloatArray, FloatArray]:
    """Return the centre and the height of each bar [rows], arrays (ops,).

    The two ops of an overlapped pair share a row: the forward above, the backward below.
    """
    schedule = run.schedule
    paired = schedule.group >= 0
    side = np.where(schedule.kind == Kind.F, -BAR / 4, BAR / 4)
    centre: FloatArray = top + schedule.rank.astype(np.float64) + np.where(paired, side, 0.0)
    height: FloatArray = np.where(paired, BAR / 2, BAR)
    return centre, height


def faces(run: Run) -> FloatArray:
    """Return the RGB colour of each bar, array (ops, 3)."""
    colour = {kind: to_rgb(KIND_COLOURS[kind.name]) for kind in run.schedule.kinds}
    found: FloatArray = np.array([colour[kind] for kind in run.schedule.kind])
    return found * shades(run)[:, np.newaxis]


def shades(run: Run) -> FloatArray:
    """Return the lightness of each bar, array (ops,): 1 for a rank's first chunk, then less."""
    schedule = run.schedule
    direction = schedule.directions[schedule.microbatch]
    chunk = schedule.placement.chunk_table[direction, schedule.stage]
    last = np.zeros(len(schedule))
    for kind in schedule.kinds:
        last[schedule.kind == kind] = LAST_CHUNK[kind.name]
    shade: FloatArray = 1 - (1 - last) * chunk / max(1, int(chunk.max()))
    return shade
