"""Splits as pipelines: many at once, what their ranks hold, and the one that is found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipesim.arrays import FloatArray, IntArray
from pipesim.batch import CostVariants, cost_fields
from pipesim.layers import LayerProfile
from pipesim.memory import param_bytes, peak_stash_bytes
from pipesim.pipeline import Pipeline
from pipesim.run import Run
from pipesim.schedule import Schedule
from pipesim.training import Training

TIE = 1e-9  # relative; splits this close count as equally fast


@dataclass(frozen=True, slots=True)
class BestSplit:
    """The fastest split of layers into stages that a search has found.

    Parameters
    ----------
    counts
        Layers of every stage.
    run
        Its simulation.
    simulated, splits
        How many splits were simulated, of how many there are.
    """

    counts: tuple[int, ...]
    run: Run
    simulated: int
    splits: int


def split_pipelines(
    profile: LayerProfile, splits: IntArray, options: Mapping[str, Any]
) -> Sequence[Pipeline]:
    """Return the pipelines of some splits, array (splits, stages), to be simulated at once.

    Their costs are those of `LayerProfile.split` but for the rounding of sums. Where stages send
    different sizes, each is a pipeline of its own; or else only arrays of costs tell them apart.
    """
    outputs = profile.output_bytes or (0,)
    if len(set(outputs[:-1])) > 1 and options.get("bandwidth_gb_s") is not None:
        return [profile.split(counts, **options) for counts in splits.tolist()]
    timed = _with_rebuilding(profile)
    base = timed.split(splits[0].tolist(), **options)
    ends = np.cumsum(splits, axis=1)
    costs = {}
    for name in cost_fields(base):
        before = np.concatenate([[0.0], np.cumsum(getattr(timed, name), dtype=np.float64)])
        costs[name] = before[ends] - before[ends - splits]
    return CostVariants(base, costs)


def _with_rebuilding(profile: LayerProfile) -> LayerProfile:
    """Return the profile with the time to rebuild in its backward, where stages add it."""
    name = "backward_ms" if profile.input_grad_ms is None else "input_grad_ms"
    backward, rebuilding = getattr(profile, name), profile.recompute_ms
    if backward is None or rebuilding is None:
        return profile
    whole: dict[str, Any] = {name: tuple(np.add(backward, rebuilding).tolist())}
    return replace(profile, **whole, recompute_ms=None)


def held_bytes(
    schedule: Schedule, pipe: Pipeline, training: Training | None = None
) -> tuple[int, ...]:
    """Return the most bytes that each rank holds: stash, parameters, and what goes with them.

    With a `training` the gradients and the optimizer's state count, too; without one what the
    stages say of them. What a rank rebuilds counts at its largest, whenever that is.
    """
    pipe = pipe if training is None else training.holding(pipe)
    totals = np.add(peak_stash_bytes(schedule, pipe), param_bytes(schedule, pipe))
    rebuilt = np.zeros_like(totals)
    for rank_of in schedule.placement.table.tolist():
        for stage, rank in zip(pipe.stages, rank_of, strict=True):
            totals[rank] += stage.grad_bytes + stage.optimizer_bytes
            rebuilt[rank] = max(rebuilt[rank], stage.rebuilt_bytes)
    return tuple((totals + rebuilt).tolist())


def fits(schedule: Schedule, pipe: Pipeline, training: Training | None = None) -> bool:
    """Say whether every rank holds no more than its device has memory for."""
    limits: FloatArray = np.array(
        [np.inf if d.memory_bytes is None else d.memory_bytes for d in pipe.devices]
    )
    if np.isinf(limits).all():
        return True
    return bool((np.array(held_bytes(schedule, pipe, training)) <= limits).all())
