"""Memory of each rank over time by what it is for, one row a rank."""

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import ScaledTranslation

from pipesim.base.text import size_text
from pipesim.plot.style import MEMORY_STYLES, new_axes
from pipesim.plot.titles import run_head
from pipesim.run.run import Run

if TYPE_CHECKING:
    import pandas as pd

LIMIT_LINE: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 1.0}
HEIGHT = 0.84  # in rows, of the largest memory held or the largest memory of a device


def memory(run: Run, ax: Axes | None = None) -> Axes:
    """Return the Axes with the memory of every rank over time, stacked by what it is for.

    From below: parameters, gradients, optimizer, activations. All rows have the same scale; the
    peak of each is at its right, with the memory of its device, which is a dashed line.

    Parameters
    ----------
    run
        The run.
    ax
        The Axes to draw on; by default those of a new figure.

    Examples
    --------
    >>> import pipesim as ps
    >>> pipe = ps.Pipeline.from_costs(
    ...     1.0, 2.0, stages=4, stash_bytes=10**9, param_bytes=2 * 10**9, memory_bytes=8 * 10**9
    ... )
    >>> ax = ps.plot.memory(ps.simulate(pipe, "1f1b", microbatches=8))
    >>> [text.get_text() for text in ax.texts]
    ['6 of 8 GB', '5 of 8 GB', '4 of 8 GB', '3 of 8 GB']
    """
    ranks, small = run.schedule.ranks, run.schedule.ranks > 16
    ax = ax or new_axes(10.0, min(0.55 * ranks, 9.0) + 1.4)
    limits = [device.memory_bytes for device in run.pipeline.devices]
    highest = max(*run.peak_memory, *(limit or 0 for limit in limits), 1)
    begin, end = run.spans.begin, run.spans.end.max()
    shown = [name for name in MEMORY_STYLES if run.memory[name].any()]
    # Changes that last no time would be drawn as spikes.
    table = run.memory.drop_duplicates(["rank", "time"], keep="last")
    for rank, rows in table.groupby("rank"):
        floor = float(rank) + HEIGHT / 2
        _draw_rank(ax, rows, shown, floor, HEIGHT / highest, (begin, end))
        limit = limits[int(rank)]
        if limit is not None:
            height = floor - limit / highest * HEIGHT
            ax.plot([0, end - begin], [height, height], **LIMIT_LINE)
        ax.text(
            1.005,
            float(rank),
            _of_limit(run.peak_memory[int(rank)], limit),
            transform=ax.get_yaxis_transform(),
            va="center",
            fontsize=7 if small else 9,
        )
    ax.set_xlim(0, run.makespan or 1.0)
    ax.set_ylim(ranks - 0.45, -0.55)
    ax.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    ax.tick_params(axis="y", length=0, labelsize=7 if small else 9)
    ax.set_xlabel("time [ms]")
    ax.set_title(f"{run_head(run)}: memory of every rank; at the right the peak", fontsize=10)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    _legend(ax, shown, limited=any(limit is not None for limit in limits))
    return ax


def _draw_rank(
    ax: Axes,
    rows: "pd.DataFrame",
    shown: list[str],
    floor: float,
    scale: float,
    span: tuple[float, float],
) -> None:
    """Draw the memory of one rank, upwards from a floor; `scale` is the height of a byte [rows]."""
    begin, end = span
    time = np.append(rows["time"], end) - begin
    base = np.zeros(len(time))
    for name in shown:
        face, _ = MEMORY_STYLES[name]
        top = base + np.append(rows[name], rows[name].iloc[-1]) * scale
        ax.fill_between(
            time,
            floor - base,
            floor - top,
            step="post",
            facecolor=face,
            edgecolor="#404040",
            linewidth=0.5,
        )
        base = top


def _legend(ax: Axes, shown: list[str], limited: bool) -> None:
    handles: list[Patch | Line2D] = [
        Patch(facecolor=face, edgecolor="#404040", linewidth=0.5, label=words)
        for face, words in (MEMORY_STYLES[name] for name in shown)
    ]
    if limited:
        handles.append(Line2D([], [], label="memory of the device", **LIMIT_LINE))
    if handles:
        below_the_axis = ScaledTranslation(0, -0.5, ax.figure.dpi_scale_trans)
        ax.legend(
            handles=handles,
            loc="upper center",
            bbox_to_anchor=(0.5, 0.0),
            bbox_transform=ax.transAxes + below_the_axis,
            ncols=len(handles),
            fontsize=8,
            frameon=False,
        )


def _of_limit(peak: int, limit: int | None) -> str:
    """Return a peak and its limit as text, in one unit if they have one."""
    text = size_text(peak, digits=3)
    if limit is None:
        return text
    most = size_text(limit, digits=3)
    number, unit = text.split()
    return f"{number} of {most}" if most.endswith(f" {unit}") else f"{text} of {most}"
