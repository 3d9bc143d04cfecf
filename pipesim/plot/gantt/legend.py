"""The legend of a Gantt chart, and the sources of its costs."""

from collections.abc import Sequence
from textwrap import fill
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import ScaledTranslation

from pipesim.base.text import ms_text
from pipesim.plot.gantt.critical_path import path_handle
from pipesim.plot.style import HATCH_COLOUR, IDLE_STYLES, KIND_COLOURS, KIND_WORDS
from pipesim.run.run import Run

COLUMNS = 4
CLOSED_FORM, LOWER_BOUND = "equal stages (closed form)", "lower bound"
LIMIT_LINES: dict[str, Literal["--", ":"]] = {CLOSED_FORM: "--", LOWER_BOUND: ":"}
SMALLEST_SHARE = 0.002  # of the idle time; a cause with less cannot be seen in the picture


def closed_form_makespan(run: Run) -> float | None:
    """Return the makespan [ms] of equal stages of the same mean cost, by the closed form."""
    if run.closed_form is None:
        return None
    return float(run.rank_times.busy.mean() / (1 - run.closed_form))


def limits_of(run: Run) -> dict[str, float]:
    """Return the reference makespans of a run [ms] by name: closed form and lower bound."""
    limits = {CLOSED_FORM: closed_form_makespan(run), LOWER_BOUND: run.lower_bound}
    return {words: time for words, time in limits.items() if time is not None}


def draw_legend(
    ax: Axes, runs: Sequence[Run], critical_path: bool = False, more: Sequence[Patch] = ()
) -> None:
    """Draw the legend of colours, hatches and lines below the axis; `more` are a step's."""
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
    words = shade_words(runs)
    if words is not None:
        handles.append(Patch(facecolor="none", edgecolor="none", label=words))
    for cause, (face, hatch, words) in IDLE_STYLES.items():
        if cause in causes:
            edge = HATCH_COLOUR if hatch else face
            handles.append(
                Patch(facecolor=face, edgecolor=edge, hatch=hatch, linewidth=0, label=words)
            )
    handles += more
    limits = [limits_of(run) for run in runs]
    for words, line in LIMIT_LINES.items():
        times = [own[words] for own in limits if words in own]
        if times:
            label = words + _time_alone(times)
            handles.append(Line2D([], [], linestyle=line, color="black", label=label))
    if critical_path:
        handles.append(path_handle())
    below_the_axis = ScaledTranslation(0, -0.5, ax.figure.dpi_scale_trans)
    ax.legend(
        handles=handles,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        bbox_transform=ax.transAxes + below_the_axis,
        ncols=COLUMNS,
        fontsize=8,
        frameon=False,
    )


def shade_words(runs: Sequence[Run]) -> str | None:
    """Return the legend text of darker bars; None if there are none."""
    placements = [run.schedule.placement for run in runs]
    darker = {
        "later chunks": any(placement.stages > placement.ranks for placement in placements),
        "other direction": any(placement.directions > 1 for placement in placements),
    }
    words = ", ".join(what for what, is_drawn in darker.items() if is_drawn)
    return f"{words}: darker" if words else None


def draw_sources(ax: Axes, runs: Sequence[Run]) -> None:
    """Write the sources of the costs below the legend."""
    legend = ax.get_legend()
    rows = -(-len(legend.get_texts()) // COLUMNS) if legend else 0
    sources = dict.fromkeys(run.pipeline.source for run in runs if run.pipeline.source)
    if sources:
        ax.annotate(
            "\n".join(fill(source, width=150) for source in sources),
            xy=(0.5, 0.0),
            xycoords="axes fraction",
            xytext=(0, -50 - 13 * rows),
            textcoords="offset points",
            fontsize=6.5,
            color="#606060",
            ha="center",
            va="top",
            annotation_clip=False,
            parse_math=False,
        )


def _time_alone(times: list[float]) -> str:
    return f": {ms_text(times[0])}" if len(times) == 1 else ""
