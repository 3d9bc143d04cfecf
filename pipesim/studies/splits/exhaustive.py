"""The best split of few layers: all of them, but for those whose lower bound rules them out."""

from math import comb
from typing import Any

import numpy as np

from pipesim.base.types import Progress
from pipesim.pipeline.layers import LayerProfile
from pipesim.pipeline.partition.loads import check_enough
from pipesim.pipeline.partition.min_max import compositions
from pipesim.pipeline.partition.partition import fair_split
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.training import Training
from pipesim.run.lower_bound import makespan_bounds
from pipesim.run.resolve import ScheduleLike, resolve_schedule
from pipesim.run.simulate import simulate
from pipesim.studies.splits.candidates import (
    TIE,
    BestSplit,
    held_by_stage,
    over_memory,
    split_pipeline,
)

MOST_SPLITS = 200_000  # half a minute of bounds


def best_split(
    profile: LayerProfile,
    stages: int,
    schedule: ScheduleLike,
    microbatches: int,
    *,
    options: dict[str, Any] | None = None,
    training: Training | None = None,
    progress: Progress | None = None,
    **pipeline_options: Any,
) -> BestSplit:
    """Return the contiguous split of layers with the shortest simulated step.

    All splits without empty stages are considered; only those whose lower bound is not above
    the best step so far are simulated, and only where no rank holds more than its `memory_bytes`.
    Ties within 1e-9 go to the smaller slowest stage, then to the first in order.

    Parameters
    ----------
    profile
        The layers.
    stages
        Number of stages.
    schedule, microbatches, options
        As for `simulate`.
    training
        Training that decides the bytes held besides the parameters; by default none are.
    progress
        Called with the number of splits whose lower bound is known, and of all splits.
    pipeline_options
        Handed to `Pipeline.from_costs`: latency_ms, bandwidth_gb_s, speed, ...

    Raises
    ------
    ValueError
        If there are fewer layers than stages, more than 200,000 splits, or none that fits into
        the memory.

    Examples
    --------
    >>> profile = LayerProfile(forward_ms=(1,) * 7, backward_ms=(2,) * 7)
    >>> best = best_split(profile, 2, "1f1b", microbatches=8)
    >>> best.counts, best.run.makespan
    ((4, 3), 102.0)
    """
    check_enough(len(profile), stages)
    splits = comb(len(profile) - 1, stages - 1)
    if splits > MOST_SPLITS:
        raise ValueError(
            f"{len(profile)} layers on {stages} stages split in {splits:,} ways, more than "
            f"{MOST_SPLITS:,}; use partition(profile, {stages}) for the min-max split and "
            "refine_split from there"
        )

    def pipeline(counts: tuple[int, ...]) -> Pipeline:
        return split_pipeline(profile, counts, training, pipeline_options)

    candidates = list(compositions(len(profile), stages))
    order = resolve_schedule(pipeline(candidates[0]), schedule, microbatches, options)
    bounds = np.empty(splits)
    for number, counts in enumerate(candidates):
        bounds[number] = makespan_bounds(order, [pipeline(counts)])[0]
        if progress is not None:
            progress(number + 1, splits)
    finished: list[tuple[float, float, int]] = []
    shortest = np.inf
    for number in np.argsort(bounds, kind="stable").tolist():
        if bounds[number] > shortest * (1 + TIE):
            break
        pipe = pipeline(candidates[number])
        own = order.made_for(pipe)
        if over_memory(own, pipe):
            continue
        run = simulate(pipe, own, engine="replay")
        shortest = min(shortest, run.makespan)
        slowest = float(run.rank_times.busy.max())
        finished.append((run.makespan, slowest, number))
    if not finished:
        peaks = held_by_stage(order)
        devices = pipeline(candidates[0]).devices
        # Its error, if it raises one, names the memory that is needed.
        fair_split(profile, order.placement, devices, in_flight=peaks, training=training)
        raise ValueError(f"none of the {splits:,} splits keeps every rank within its memory")
    tied = [entry for entry in finished if entry[0] <= shortest * (1 + TIE)]
    least = min(slowest for _, slowest, _ in tied)
    winner = min(number for _, slowest, number in tied if slowest <= least * (1 + TIE))
    pipe = pipeline(candidates[winner])
    run = simulate(pipe, order.made_for(pipe))
    return BestSplit(candidates[winner], run, len(finished), splits)
