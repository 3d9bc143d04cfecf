"""The row above each run of a Gantt chart: its title, and the time saved beside others."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch

from pipesim.base.ops import Kind
from pipesim.base.text import ms_text
from pipesim.plot.style import missing_glyphs_ignored
from pipesim.run.run import Run

ABOVE = 0.62  # rows between a title and the middle of the row below it
LARGEST_FONT, SMALLEST_FONT = 9.0, 4.0  # points
APART = 12.0  # points between a title and the note of the time saved
ARROW_HEAD = 8.0  # points
SAME = 1e-9  # relative; times this close count as equal


def saved_text(run: Run, runs: Sequence[Run]) -> str | None:
    """Return the time saved by a run beside the slowest that does the same work, as text.

    None for the slowest. Runs with other numbers of micro-batches, and forwards alone beside
    whole steps, do other work and do not count.

    Examples
    --------
    >>> import pipesim as ps
    >>> pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=4, latency_ms=0.5)
    >>> runs = [ps.simulate(pipe, name, microbatches=8) for name in ("gpipe", "1f1b")]
    >>> [run.makespan for run in runs]
    [36.0, 41.0]
    >>> saved_text(runs[0], runs), saved_text(runs[1], runs)
    ('5 ms saved (12.2%)', None)
    """
    slowest = slowest_rival(run, runs).makespan
    saved = slowest - run.makespan
    if saved <= SAME * slowest:
        return None
    return f"{ms_text(saved, digits=4)} saved ({saved / slowest:.1%})"


def slowest_rival(run: Run, runs: Sequence[Run]) -> Run:
    """Return the slowest run that does the same work as a given one, maybe that one itself."""
    rivals = (each for each in runs if _work(each) == _work(run))
    return max(rivals, key=lambda each: each.makespan, default=run)


def _work(run: Run) -> tuple[int, bool]:
    return run.schedule.microbatches, run.schedule.kinds == {Kind.F}


def draw_titles(
    ax: Axes, titles: Sequence[str], notes: Sequence[str | None], tops: Sequence[float]
) -> None:
    """Write a title above each run, and at the right a note, in a font in which both fit.

    Parameters
    ----------
    ax
        The chart, in the size that it will have.
    titles, notes, tops
        Title and note of each run, and the row of its rank 0. A note that would not be readable
        is left out.
    """
    room = ax.get_window_extent().width
    apart = APART * ax.figure.dpi / 72
    right = ax.get_xlim()[1]
    rows, shares = [], [1.0]
    for title, note, top in zip(titles, notes, tops, strict=True):
        row = [
            ax.text(x, top - ABOVE, words, fontsize=LARGEST_FONT, va="bottom", ha=side)
            for x, words, side in ((0.0, title, "left"), (right, note, "right"))
            if words
        ]
        for text in row:
            text.set_parse_math(False)
        with missing_glyphs_ignored():
            widths = [text.get_window_extent().width for text in row]
        shares.append((room - apart * (len(row) - 1)) / max(1.0, sum(widths)))
        rows.append(row)
    font = LARGEST_FONT * min(shares)
    for title_text, *note_texts in rows:
        title_text.set_fontsize(max(font, SMALLEST_FONT))
        for text in note_texts:
            text.set_fontsize(font)
            text.set_visible(font >= SMALLEST_FONT)


def draw_arrow(ax: Axes, run: Run, until: float, top: float, points_per_ms: float) -> None:
    """Draw a double arrow beside the rows of a run, from its end to a later time [ms]."""
    row = top + (run.schedule.ranks - 1) / 2
    width = (until - run.makespan) * points_per_ms
    ax.add_patch(
        FancyArrowPatch(
            (run.makespan, row),
            (until, row),
            arrowstyle="<->",
            mutation_scale=min(ARROW_HEAD, width),
            shrinkA=0.0,
            shrinkB=0.0,
            linewidth=0.8,
        )
    )
