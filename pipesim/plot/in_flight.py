"""Micro-batches in flight on each stage over time, or their bytes, one row a stage."""

import numpy as np
from matplotlib.axes import Axes

from pipesim.base.checks import hint
from pipesim.base.text import size_text
from pipesim.plot.style import KIND_COLOURS, new_axes
from pipesim.plot.titles import run_head
from pipesim.run.run import Run

UNITS = {"microbatches": "in_flight", "bytes": "stash_bytes"}


def in_flight(run: Run, ax: Axes | None = None, *, unit: str = "microbatches") -> Axes:
    """Return the Axes with the micro-batches in flight, or their bytes, on every stage.

    All rows have the same scale; the peak of each is at its right.

    Parameters
    ----------
    run
        The run.
    ax
        The Axes to draw on; by default those of a new figure.
    unit
        "microbatches", or "bytes" of stash.

    Raises
    ------
    ValueError
        If the unit is neither.

    Examples
    --------
    >>> import pipesim as ps
    >>> pipe = ps.Pipeline.from_costs(forward=1.0, backward=2.0, stages=4)
    >>> ax = ps.plot.in_flight(ps.simulate(pipe, "1f1b", microbatches=8))
    >>> [text.get_text() for text in ax.texts]
    ['4', '3', '2', '1']
    """
    if unit not in UNITS:
        raise ValueError(f"unit = {unit!r} is unknown; {hint(unit, UNITS)}")
    column = UNITS[unit]
    stages = run.schedule.stages
    ax = ax or new_axes(10.0, min(0.5 * stages, 9.0) + 1.0)
    table, begin = run.in_flight, run.spans.begin
    highest = max(int(table[column].max()), 1)
    for stage, rows in table.groupby("stage"):
        held = np.concatenate([[0.0], rows[column] / highest])
        time = np.concatenate([[0.0], rows["time"] - begin])
        base = float(stage) + 0.42
        ax.fill_between(
            time,
            base,
            base - 0.84 * held,
            step="post",
            facecolor=KIND_COLOURS["F"],
            edgecolor=KIND_COLOURS["B"],
            linewidth=0.8,
        )
        ax.text(
            1.005,
            base - 0.42,
            str(rows[column].max()) if unit == "microbatches" else size_text(rows[column].max()),
            transform=ax.get_yaxis_transform(),
            va="center",
            fontsize=9 if stages <= 16 else 7,
        )
    ax.set_xlim(0, run.makespan or 1.0)
    ax.set_ylim(stages - 0.5, -0.5)
    ax.set_yticks(range(stages), [f"stage {stage}" for stage in range(stages)])
    ax.tick_params(axis="y", length=0, labelsize=9 if stages <= 16 else 7)
    ax.set_xlabel("time [ms]")
    part = "slices" if run.schedule.slices > 1 else "micro-batches"
    held_what = f"{part} in flight" if unit == "microbatches" else "stash bytes held"
    ax.set_title(f"{run_head(run)}: {held_what}; at the right the peak", fontsize=10)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    return ax
