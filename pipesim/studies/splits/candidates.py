"""Candidate splits as pipelines, the bytes that their ranks hold, and the best split found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipesim.base.types import IntArray
from pipesim.pipeline.layers import LayerProfile
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.training import Training
from pipesim.pipeline.variants import CostVariants, cost_fields
from pipesim.run.memory import peak_memory_bytes
from pipesim.run.run import Run
from pipesim.schedules.order.schedule import Schedule

TIE = 1e-9  # relative; splits this close count as equally fast


@dataclass(frozen=True, slots=True)
class BestSplit:
    """The fastest split of layers into stages that a search has found.

    Parameters
    ----------
    counts
        Number of layers of every stage.
    run
        The simulated run of the split.
    simulated, splits
        Number of splits simulated, and number of all splits.
    """

    counts: tuple[int, ...]
    run: Run
    simulated: int
    splits: int


def split_pipelines(
    profile: LayerProfile, splits: IntArray, options: Mapping[str, Any], *, sizes: bool
) -> Sequence[Pipeline]:
    """Return the pipelines of splits, array (splits, stages), to be simulated together.

    Their costs are those of `LayerProfile.split` but for the rounding of sums. Where stages send
    different `sizes`, and those matter, each is a pipeline of its own; or else only arrays of costs
    tell them apart.
    """
    outputs = profile.output_bytes or (0,)
    if len(set(outputs[:-1])) > 1 and sizes:
        return [profile.split(counts, **options) for counts in splits.tolist()]
    base = profile.split(splits[0].tolist(), **options)
    ends = np.cumsum(splits, axis=1)
    costs = {}
    for name in cost_fields(base):
        column = getattr(profile, name)
        if column is not None:
            before = np.concatenate([[0.0], np.cumsum(column, dtype=np.float64)])
            costs[name] = before[ends] - before[ends - splits]
    return CostVariants(base, costs)


def split_pipeline(
    profile: LayerProfile,
    counts: Sequence[int],
    training: Training | None,
    options: Mapping[str, Any],
) -> Pipeline:
    """Return the pipeline of a split, with the bytes that its ranks hold in a training."""
    pipe = profile.split(counts, **options)
    return pipe if training is None else training.holding(pipe)


def held_by_stage(schedule: Schedule) -> list[float]:
    """Return the most micro-batches in flight on each stage, slices as fractions of them."""
    return [peak / schedule.slices for peak in schedule.peak_in_flight_by_stage()]


def over_memory(schedule: Schedule, pipe: Pipeline) -> int:
    """Return the bytes held beyond the memory of the devices, summed over the ranks."""
    return sum(
        max(held - device.memory_bytes, 0)
        for held, device in zip(
            peak_memory_bytes(schedule, pipe).tolist(), pipe.devices, strict=True
        )
        if device.memory_bytes is not None
    )
