"""The numbers of every rank, one row a rank: where its time went, and what it holds."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipesim.pipeline.pipeline import Pipeline
from pipesim.run.idle import IDLE_CAUSES, RankTimes
from pipesim.run.memory import state_by_rank
from pipesim.schedules.order.schedule import Schedule

# What is no time; all other columns are in milliseconds.
UNITLESS = (
    "rank",
    "bubble_fraction",
    "peak_in_flight",
    "peak_stash_bytes",
    "param_bytes",
    "grad_bytes",
    "optimizer_bytes",
    "peak_memory_bytes",
)


def rank_columns(
    schedule: Schedule, pipe: Pipeline, times: RankTimes, peak_memory: Sequence[int]
) -> dict[str, list[Any]]:
    """Return the numbers of every rank by column, one value a rank."""
    causes = {cause: getattr(times, cause).tolist() for cause in IDLE_CAUSES}
    state = state_by_rank(schedule, pipe)
    return {
        "rank": list(range(schedule.ranks)),
        "busy": times.busy.tolist(),
        "idle": times.idle.tolist(),
        "bubble_fraction": times.bubble_fraction.tolist(),
        "peak_in_flight": list(schedule.peak_in_flight()),
        **causes,
        "exposed_communication": times.exposed_communication.tolist(),
        "peak_stash_bytes": (np.array(peak_memory) - state.total).tolist(),
        "param_bytes": state.params.tolist(),
        "grad_bytes": state.grads.tolist(),
        "optimizer_bytes": state.optimizer.tolist(),
        "peak_memory_bytes": list(peak_memory),
    }
