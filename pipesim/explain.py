"""What a run is made of, by several runs: the ladder, and the best split of few layers."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import comb
from typing import TYPE_CHECKING, Any

import numpy as np

from pipesim.arrays import FloatArray
from pipesim.errors import MemoryLimitError
from pipesim.layers import LayerProfile
from pipesim.lower_bound import makespan_bound
from pipesim.partitioning import compositions
from pipesim.pipeline import Pipeline
from pipesim.progress import Progress
from pipesim.resolve import ScheduleLike, resolve_schedule
from pipesim.run import Run, simulate

if TYPE_CHECKING:
    import pandas as pd

MOST_SPLITS = 200_000  # half a minute of bounds
TIE = 1e-9  # relative; splits this close count as equally fast


def ladder(run: Run, progress: Progress | None = None) -> "pd.DataFrame":
    """Return what each departure from equal stages adds to a run, one row a rung.

    The same order is run with equal stages of the same mean cost, then with its unequal
    stages, then with what else it has: costs that vary by micro-batch, transfers, sends and
    receives as instructions, bounded queues. The last rung is the run.

    Columns: `rung`, `step_ms`, `bubble_fraction`, `added_ms` over the rung before (NaN on the
    first), and `rank` that it shows on: of unequal stages and varying costs the rank with the
    most work, of blocking transfers and of queues the one that stands still for them the
    longest; -1 on the first rung and for transfers, which lie between ranks.

    Parameters
    ----------
    run
        The run.
    progress
        Called now and then with the ops of a rung that are done and of all its ops.

    Examples
    --------
    >>> pipe = Pipeline.from_costs([1, 1, 1, 2], [2, 2, 2, 4], latency_ms=0.5)
    >>> print(ladder(simulate(pipe, "1f1b", microbatches=8)).to_string(index=False))
                rung  step_ms  bubble_fraction  added_ms  rank
        equal stages    41.25         0.272727       NaN    -1
    + unequal stages    57.00         0.473684     15.75     3
         + transfers    60.00         0.500000      3.00    -1
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for name, rung in _rungs(run, progress):
        before = rows[-1]["step_ms"] if rows else np.nan
        rows.append(
            {
                "rung": name,
                "step_ms": rung.makespan,
                "bubble_fraction": rung.bubble_fraction,
                "added_ms": rung.makespan - before,
                "rank": _culprit(name, rung),
            }
        )
    return pd.DataFrame(rows)


def _rungs(run: Run, progress: Progress | None) -> Iterator[tuple[str, Run]]:
    pipe = run.pipeline
    yield "equal stages", run.equal_stages
    bare = replace(pipe, links={})
    if pipe.microbatches is None:
        yield "+ unequal stages", _on(run, bare, progress)
    else:
        yield "+ unequal stages", _on(run, _mean_over_microbatches(bare), progress)
        yield "+ varying micro-batches", _on(run, bare, progress)
    if pipe.links:
        yield "+ transfers", _on(run, pipe, progress)
    if run.program.listed:
        yield f"+ protocol {run.program.protocol}", _on(run, pipe, progress, run.program.protocol)
    if run.queue_capacity is not None:
        yield "+ bounded queues", run


def _on(run: Run, pipe: Pipeline, progress: Progress | None, protocol: str = "eager") -> Run:
    """Return the same schedule on another pipeline; the run itself, if it is the same."""
    same = pipe == run.pipeline and protocol == run.program.protocol
    if same and run.queue_capacity is None:
        return run
    limit = None if protocol == "eager" else run.eager_limit_bytes
    return simulate(
        pipe,
        run.schedule if pipe == run.pipeline else run.schedule.made_for(pipe),
        engine=run.engine,
        protocol=protocol,
        eager_limit_bytes=limit,
        memory_limit=False,  # the run itself has kept it, or was not to
        progress=progress,
    )


def _culprit(rung: str, run: Run) -> int:
    times = run.rank_times
    if rung in ("equal stages", "+ transfers"):
        return -1
    if rung == "+ bounded queues":
        return first_largest(times.queue_full)
    if rung.startswith("+ protocol"):
        return first_largest(times.blocked)
    return first_largest(times.busy)


def first_largest(values: FloatArray) -> int:
    """Return the first index whose value is the largest, but for rounding; -1 if all are 0."""
    if values.max() == 0:
        return -1
    return int(np.flatnonzero(values >= values.max() * (1 - TIE))[0])


def _mean_over_microbatches(pipe: Pipeline) -> Pipeline:
    def mean(cost: Any) -> Any:
        return float(np.mean(cost)) if isinstance(cost, tuple) else cost

    stages = tuple(
        replace(
            stage,
            forward_ms=mean(stage.forward_ms),
            backward_ms=mean(stage.backward_ms),
            input_grad_ms=mean(stage.input_grad_ms),
            weight_grad_ms=mean(stage.weight_grad_ms),
            recompute_ms=mean(stage.recompute_ms),
        )
        for stage in pipe.stages
    )
    return replace(pipe, stages=stages)


@dataclass(frozen=True, slots=True)
class BestSplit:
    """The fastest split of layers into stages.

    Parameters
    ----------
    counts
        Layers of every stage.
    run
        Its simulation.
    simulated, splits
        How many splits were simulated, of how many there are: the others' lower bounds already
        lay above the best.
    """

    counts: tuple[int, ...]
    run: Run
    simulated: int
    splits: int


def best_split(
    profile: LayerProfile,
    stages: int,
    schedule: ScheduleLike,
    microbatches: int,
    *,
    options: dict[str, Any] | None = None,
    progress: Progress | None = None,
    **pipeline_options: Any,
) -> BestSplit:
    """Return the contiguous split of layers with the shortest simulated step.

    All splits without empty stages are in the race; only those whose lower bound is not above
    the best step so far are simulated. Ties within 1e-9 go to the smaller slowest stage, then
    to the first in order.

    Parameters
    ----------
    profile
        The layers.
    stages
        Number of stages.
    schedule, microbatches, options
        As for `simulate`.
    progress
        Called with the number of splits whose lower bound is known, and of all splits.
    pipeline_options
        Handed to `Pipeline.from_costs`: latency_ms, bandwidth_gb_s, speed, ...

    Raises
    ------
    ValueError
        If there are fewer layers than stages, or more than 200,000 splits.
    MemoryLimitError
        If every split takes a rank over the memory of its device.

    Examples
    --------
    >>> profile = LayerProfile(forward_ms=(1,) * 7, backward_ms=(2,) * 7)
    >>> best = best_split(profile, 2, "1f1b", microbatches=8)
    >>> best.counts, best.run.makespan
    ((4, 3), 102.0)
    """
    if len(profile) < stages:
        raise ValueError(f"{len(profile)} layers cannot fill {stages} stages")
    splits = comb(len(profile) - 1, stages - 1)
    if splits > MOST_SPLITS:
        raise ValueError(
            f"{len(profile)} layers on {stages} stages split in {splits:,} ways, more than "
            f"{MOST_SPLITS:,}; use partition(profile, {stages}) for the min-max split"
        )

    def pipeline(counts: tuple[int, ...]) -> Pipeline:
        return profile.split(counts, **pipeline_options)

    candidates = list(compositions(len(profile), stages))
    order = resolve_schedule(pipeline(candidates[0]), schedule, microbatches, options)
    bounds = np.empty(splits)
    for number, counts in enumerate(candidates):
        bounds[number] = makespan_bound(order, pipeline(counts))
        if progress is not None:
            progress(number + 1, splits)
    finished: list[tuple[float, float, int]] = []
    shortest = np.inf
    for number in np.argsort(bounds, kind="stable").tolist():
        if bounds[number] > shortest * (1 + TIE):
            break
        pipe = pipeline(candidates[number])
        try:
            run = simulate(pipe, order)
        except MemoryLimitError as error:
            too_large = error
            continue
        shortest = min(shortest, run.makespan)
        slowest = float(run.rank_times.busy.max())
        finished.append((run.makespan, slowest, number))
    if not finished:
        raise too_large
    tied = [entry for entry in finished if entry[0] <= shortest * (1 + TIE)]
    least = min(slowest for _, slowest, _ in tied)
    winner = min(number for _, slowest, number in tied if slowest <= least * (1 + TIE))
    run = simulate(pipeline(candidates[winner]), order)
    return BestSplit(candidates[winner], run, len(finished), splits)
