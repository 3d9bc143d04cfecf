"""The Gantt chart: one row a rank, one bar an op, idle time shaded by its cause."""

from collections.abc import Iterable, Sequence
from textwrap import fill, shorten

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import ScaledTranslation

from pipesim.arrays import FloatArray, Int32Array
from pipesim.metrics import idle_spans
from pipesim.plot.style import (
    HATCH_COLOUR,
    IDLE_STYLES,
    KIND_COLOURS,
    KIND_WORDS,
    LABEL_COLOURS,
    new_axes,
)
from pipesim.run import Run
from pipesim.text_table import count_text

BAR = 0.84  # height of a bar in rows
GAP = 1.6  # rows between two runs, for the second one's title
SMALLEST_FONT = 4.0  # points; smaller numbers are left out
MOST_LABELS = 5000
SMALLEST_SHARE = 0.002  # of the idle time; a cause of less is not found in the picture


def gantt(runs: Run | Iterable[Run], ax: Axes | None = None) -> Axes:
    """Return the Axes with the Gantt chart of one run, or of several under each other.

    Bars carry their micro-batch where they are wide enough. Idle time is shaded by cause, and
    its share of the step stands at the right of each row. Two lines mark the makespan of equal
    stages by the closed form (dashed) and the lower bound of these stages (dotted).

    Parameters
    ----------
    runs
        One run, or several to be drawn on one time axis.
    ax
        Where to draw; by default on a new figure.

    Examples
    --------
    >>> import pipesim as ps
    >>> pipe = ps.Pipeline.from_costs(forward=[1, 1, 1, 2], backward=[2, 2, 2, 4])
    >>> ax = ps.plot.gantt(ps.simulate(pipe, "1f1b", microbatches=8))
    >>> ax.get_xlabel()
    'time [ms]'
    """
    runs = [runs] if isinstance(runs, Run) else list(runs)
    rows = sum(run.schedule.ranks for run in runs)
    if ax is None:
        row_height = min(0.36, 9.0 / max(run.schedule.ranks for run in runs))
        ax = new_axes(10.0, rows * row_height + 0.45 * len(runs) + 1.1)
    times = [t for run in runs for t in (run.makespan, closed_form_makespan(run), run.lower_bound)]
    ax.set_xlim(0, 1.003 * max(t for t in times if t is not None) or 1.0)  # lines stay inside
    tops = np.cumsum([0.0, *(run.schedule.ranks + GAP for run in runs)])
    ticks: list[tuple[float, str]] = []
    for run, top in zip(runs, tops, strict=False):
        _draw_run(ax, run, top)
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
    _legend(ax, runs)
    _sources(ax, runs)
    return ax


def _draw_run(ax: Axes, run: Run, top: float) -> None:
    begin = run.spans.start.min()
    for cause, found in idle_spans(run.schedule, run.workload, run.spans).items():
        face, hatch, _ = IDLE_STYLES[cause]
        boxes = _boxes(found.rank, found.start - begin, found.end - begin, top)
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
    rank = run.schedule.rank
    for kind in sorted(run.schedule.kinds):
        ops = run.schedule.kind == kind
        boxes = _boxes(rank[ops], run.spans.start[ops] - begin, run.spans.end[ops] - begin, top)
        ax.add_collection(
            PolyCollection(
                list(boxes),
                facecolors=KIND_COLOURS[kind.name],
                edgecolors="white",
                linewidths=np.clip(0.1 * np.median(_widths(ax, run)[ops]), 0.0, 0.6),
                zorder=2,
            )
        )
    ends = (top - 0.5, top + run.schedule.ranks - 0.5)
    for time, style in ((closed_form_makespan(run), "--"), (run.lower_bound, ":")):
        if time is not None:
            ax.plot([time, time], ends, style, color="black", linewidth=1.2, zorder=3)
    title = run_title(run)
    ax.text(0, top - 0.62, title, fontsize=9, va="bottom", ha="left", parse_math=False)


def run_title(run: Run) -> str:
    """Return a run in one line: title, schedule, step, inflation and bubble."""
    closed = run.closed_form
    reference = "" if closed is None else f" (closed form {closed:.1%})"
    inflation = "" if run.inflation is None else f", {run.inflation:.3f} x equal stages"
    title = shorten(run.pipeline.title, 48, placeholder="...")
    count = count_text(run.schedule.microbatches, "micro-batch")
    return (
        f"{title}{': ' if title else ''}{run.schedule.name}, {count}, {run.makespan:.5g} ms"
        f"{inflation}, bubble {run.bubble_fraction:.1%}{reference}"
    )


def closed_form_makespan(run: Run) -> float | None:
    """Return the makespan [ms] that the closed form gives equal stages of the same mean cost."""
    if run.closed_form is None:
        return None
    return float(run.rank_times.busy.mean() / (1 - run.closed_form))


def _boxes(rank: Int32Array, start: FloatArray, end: FloatArray, top: float) -> FloatArray:
    """Return rectangles, array (bars, 4 corners, 2)."""
    middle = top + rank
    low, high = middle - BAR / 2, middle + BAR / 2
    corners = [(start, low), (start, high), (end, high), (end, low)]
    return np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)


def _row_font(ax: Axes, largest: float) -> float:
    """Return a font size [points] that fits into a row."""
    rows = abs(ax.get_ylim()[0] - ax.get_ylim()[1])
    points = ax.get_window_extent().height / ax.figure.dpi * 72
    return float(np.clip(0.62 * points / rows, 1.0, largest))


def _widths(ax: Axes, run: Run) -> FloatArray:
    """Return the width of every bar [points]."""
    points = ax.get_window_extent().width / ax.figure.dpi * 72
    widths: FloatArray = (run.spans.end - run.spans.start) / ax.get_xlim()[1] * points
    return widths


def _label_bars(ax: Axes, run: Run, top: float) -> None:
    """Write the micro-batch into the bars, in a font in which the widest number of a kind fits."""
    widths, begin, rank = _widths(ax, run), run.spans.start.min(), run.schedule.rank
    if len(widths) > MOST_LABELS:
        return
    characters = 0.62 * len(str(run.schedule.microbatches - 1)) + 0.3
    for kind in sorted(run.schedule.kinds):
        ops = np.flatnonzero(run.schedule.kind == kind)
        font = min(_row_font(ax, 8.0), float(np.median(widths[ops])) / characters)
        if font < SMALLEST_FONT:
            continue
        for op in ops[widths[ops] >= 0.99 * characters * font].tolist():
            ax.text(
                (run.spans.start[op] + run.spans.end[op]) / 2 - begin,
                top + rank[op],
                str(run.schedule.microbatch[op]),
                fontsize=font,
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


def _legend(ax: Axes, runs: Sequence[Run]) -> None:
    kinds = sorted({kind for run in runs for kind in run.schedule.kinds})
    causes = {
        cause
        for run in runs
        for cause in IDLE_STYLES
        if getattr(run.rank_times, cause).sum() > SMALLEST_SHARE * run.rank_times.idle.sum()
    }
    handles: list[Patch | Line2D] = [
        Patch(facecolor=KIND_COLOURS[kind.name], label=KIND_WORDS[kind.name]) for kind in kinds
    ]
    for cause, (face, hatch, words) in IDLE_STYLES.items():
        if cause in causes:
            edge = HATCH_COLOUR if hatch else face
            handles.append(
                Patch(facecolor=face, edgecolor=edge, hatch=hatch, linewidth=0, label=words)
            )
    equal = [time for run in runs if (time := closed_form_makespan(run)) is not None]
    if equal:
        words = "equal stages (closed form)" + _time_alone(equal)
        handles.append(Line2D([], [], linestyle="--", color="black", label=words))
    words = "lower bound" + _time_alone([run.lower_bound for run in runs])
    handles.append(Line2D([], [], linestyle=":", color="black", label=words))
    below_the_axis = ScaledTranslation(0, -0.5, ax.figure.dpi_scale_trans)
    ax.legend(
        handles=handles,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        bbox_transform=ax.transAxes + below_the_axis,
        ncols=4,
        fontsize=8,
        frameon=False,
    )


def _sources(ax: Axes, runs: Sequence[Run]) -> None:
    """Write below the legend where the numbers come from."""
    sources = dict.fromkeys(run.pipeline.source for run in runs if run.pipeline.source)
    if sources:
        ax.annotate(
            "\n".join(fill(source, width=150) for source in sources),
            xy=(0.5, 0.0),
            xycoords="axes fraction",
            xytext=(0, -76),
            textcoords="offset points",
            fontsize=6.5,
            color="#606060",
            ha="center",
            va="top",
            annotation_clip=False,
            parse_math=False,
        )


def _time_alone(times: list[float]) -> str:
    return f": {times[0]:.5g} ms" if len(times) == 1 else ""
