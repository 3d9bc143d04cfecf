"""A split refined by simulation: layers move between stages as long as that helps."""

from collections.abc import Sequence
from math import comb
from typing import Any

import numpy as np

from pipesim.base.types import FloatArray, Progress
from pipesim.pipeline.layers import LayerProfile
from pipesim.pipeline.partition.min_max import moves
from pipesim.pipeline.partition.partition import fair_split
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.training import Training
from pipesim.run.many import makespans
from pipesim.run.resolve import ScheduleLike, resolve_schedule
from pipesim.run.simulate import simulate
from pipesim.studies.splits.candidates import (
    TIE,
    BestSplit,
    held_by_stage,
    over_memory,
    split_pipeline,
    split_pipelines,
)

BLOCK = 512  # splits that are simulated at once
PATIENCE = 8  # moves in a row that make nothing better


def refine_split(
    profile: LayerProfile,
    counts: Sequence[int],
    schedule: ScheduleLike,
    microbatches: int | None = None,
    *,
    options: dict[str, Any] | None = None,
    protocol: str = "eager",
    queue_capacity: int | None = None,
    eager_limit_bytes: int | None = None,
    training: Training | None = None,
    progress: Progress | None = None,
    **pipeline_options: Any,
) -> BestSplit:
    """Return a refined split, whose simulated step is never longer than that of the given one.

    A move takes one layer from a stage and gives it to another, near or far; the stages between
    hand one on. From the given split, and from the min-max splits by time and by number of
    layers, the best of all moves to splits not seen yet is made, even to a slower one, until eight
    in a row have made nothing better. The fastest split seen is the best of its neighbours, and
    in most cases of all (`best_split` is sure, for few layers). Splits in which a rank holds more
    than its `memory_bytes` are left out.

    Parameters
    ----------
    profile
        The layers.
    counts
        Number of layers of every stage to begin with.
    schedule, microbatches, options, protocol, queue_capacity, eager_limit_bytes
        As for `simulate`.
    training
        Training that decides the bytes held besides the parameters; by default none are.
    progress
        Called with the moves of one round that have been simulated, and all of them.
    pipeline_options
        Handed to `Pipeline.from_costs`: ranks, placement, latency_ms, speed, memory_bytes, ...

    Raises
    ------
    ValueError
        If the counts lose or repeat a layer, or nothing fits into the memory.

    Examples
    --------
    With 4 micro-batches the stages are better the smaller the later they are:

    >>> profile = LayerProfile(forward_ms=(1,) * 16, backward_ms=(2,) * 16)
    >>> found = refine_split(profile, [4, 4, 4, 4], "1f1b", microbatches=4)
    >>> simulate(profile.split([4, 4, 4, 4]), "1f1b", 4).makespan, found.counts, found.run.makespan
    (84.0, (5, 4, 4, 3), 82.0)
    """

    def pipeline(counts: Sequence[int]) -> Pipeline:
        return split_pipeline(profile, counts, training, pipeline_options)

    how: dict[str, Any] = {
        "protocol": protocol,
        "queue_capacity": queue_capacity,
        "eager_limit_bytes": eager_limit_bytes,
    }
    first = pipeline(counts)
    order = resolve_schedule(first, schedule, microbatches, options)
    known: dict[tuple[int, ...], float] = {}
    sizes = eager_limit_bytes is not None or pipeline_options.get("bandwidth_gb_s") is not None

    def times_of(splits: Any) -> FloatArray:
        """Return the makespans of splits [ms]; those not known yet are simulated."""
        rows = list(map(tuple, splits.tolist()))
        new = np.array([number for number, row in enumerate(rows) if row not in known], dtype=int)
        for begin in range(0, len(new), BLOCK):
            block = new[begin : begin + BLOCK]
            pipelines = split_pipelines(profile, splits[block], pipeline_options, sizes=sizes)
            times = makespans(order, pipelines, **how)
            known.update({rows[n]: t for n, t in zip(block.tolist(), times.tolist(), strict=True)})
            if progress is not None:
                progress(begin + len(block), len(new))
        return np.array([known[row] for row in rows])

    def over(counts: Sequence[int]) -> int:
        pipe = pipeline(counts)
        return over_memory(order.made_for(pipe), pipe)

    def within(counts: tuple[int, ...]) -> tuple[int, ...]:
        """Return a split nearby that exceeds the memory of its ranks less, or not at all."""
        left = over(counts)
        while left:
            others = list(map(tuple, moves(counts).tolist()))
            least, nearest = min(((over(other), other) for other in others), default=(left, counts))
            if least >= left:
                break
            left, counts = least, nearest
        return counts

    def walk(start: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        best = float(times_of(np.array([start]))[0]), start
        here, been, idle = start, {start}, 0
        while idle < PATIENCE:
            others = moves(here)
            times = times_of(others)
            for number in np.argsort(times, kind="stable").tolist():
                here = tuple(others[number].tolist())
                if here not in been and not over(here):
                    break
            else:
                break
            been.add(here)
            idle += 1
            if times[number] < best[0] * (1 - TIE):
                best, idle = (float(times[number]), here), 0
        return best

    begin = tuple(map(int, counts))
    candidates, refused = [begin], None
    # The sum of its stages' peaks may be more than a rank ever holds: only a start.
    peaks = held_by_stage(order)
    for by in ("time", "layers"):
        how_split: dict[str, Any] = {"by": by, "in_flight": peaks, "training": training}
        try:
            candidates.append(fair_split(profile, order.placement, first.devices, **how_split))
        except ValueError as error:
            refused = error
    nearby = dict.fromkeys(map(within, candidates))
    starts = [start for start in nearby if not over(start)]
    if not starts:
        raise refused or ValueError("no split was found that keeps every rank within its memory")
    found = min(map(walk, dict.fromkeys(starts)))
    # Sums of layers round differently as they are added up: the runs themselves decide.
    finalists = dict.fromkeys([found[1], *starts[:1]])
    runs = {
        split: simulate(pipe, order.made_for(pipe), **how)
        for split in finalists
        for pipe in [pipeline(split)]
    }
    best = min(runs, key=lambda split: runs[split].makespan)
    splits = comb(len(profile) - 1, len(begin) - 1)
    return BestSplit(best, runs[best], len(known), splits)
