"""What a run is made of, by several runs: the ladder."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pipesim.base.types import FloatArray, Progress
from pipesim.pipeline.pipeline import Pipeline
from pipesim.run.idle import CAUSES
from pipesim.run.run import Run
from pipesim.run.simulate import simulate

if TYPE_CHECKING:
    import pandas as pd

TIE = 1e-9  # relative; values this close count as equal


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
    for cause in CAUSES:
        if cause.only_with is not None and rung.startswith(f"+ {cause.only_with}"):
            return first_largest(getattr(times, cause.key))
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
