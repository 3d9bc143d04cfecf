"""The titles of all pictures: the stages, the schedule, p and m, then the numbers of a run."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from pipesim.base.text import ms_text
from pipesim.run.run import Run

if TYPE_CHECKING:
    import pandas as pd

LONGEST = 48  # characters of a user's title


def own_title(run: Run) -> str:
    """Return the title of a run's stages in one line, cut where it is longer than fits."""
    title = " ".join(run.pipeline.title.split())
    return title if len(title) <= LONGEST else f"{title[: LONGEST - 3].rstrip()}..."


def order_text(run: Run) -> str:
    """Return the schedule of a run as text, with its ranks, stages and micro-batches."""
    order = run.schedule
    stages = "" if order.stages == order.ranks else f" ({order.stages} stages)"
    return f"{run.program.title}, p = {order.ranks}{stages}, m = {order.microbatches}"


def run_head(run: Run) -> str:
    """Return the head of a run's title: the stages, the schedule, p and m.

    Examples
    --------
    >>> import pipesim as ps
    >>> pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=4, ranks=2, title="mine")
    >>> run_head(ps.simulate(pipe, "interleaved", microbatches=8))
    'mine: interleaved, p = 2 (4 stages), m = 8'
    """
    return ": ".join(filter(None, (own_title(run), order_text(run))))


def numbers_text(run: Run) -> str:
    """Return the makespan, the inflation and the bubble of a run as text."""
    inflation = "" if run.inflation is None else f", {run.inflation:.3f} x equal stages"
    return f"{ms_text(run.makespan)}{inflation}, {bubble_text(run)}"


def bubble_text(run: Run) -> str:
    """Return the bubble fraction of a run as text, beside its closed form if it has one."""
    closed = run.closed_form
    reference = "" if closed is None else f" (closed form {closed:.1%})"
    return f"bubble {run.bubble_fraction:.1%}{reference}"


def sweep_head(table: "pd.DataFrame", shown: Collection[str]) -> str:
    """Return the schedule, p and m that all runs of a sweep share, but for the `shown` columns."""
    words = {"schedule": "{}", "ranks": "p = {}", "microbatches": "m = {}"}
    common = {name: table[name].dropna().unique() for name in words if name in {*table} - {*shown}}
    return ", ".join(
        words[name].format(values[0]) for name, values in common.items() if len(values) == 1
    )
