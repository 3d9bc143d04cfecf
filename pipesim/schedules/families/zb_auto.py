"""Zero bubble by search: the best order found for the real costs within a memory limit.

    rank 0 | F0 F1 F2 F3 .  .  .  I0 W0 I1 W1 I2 W2 I3 W3      zb_1p with 4 micro-batches, F = I = W
    rank 1 | .  F0 F1 F2 F3 .  I0 W0 I1 W1 I2 W2 I3 W3 .
    rank 2 | .  .  F0 F1 F2 I0 F3 I1 W0 I2 W1 I3 W2 W3 .
    rank 3 | .  .  .  F0 I0 F1 I1 F2 I2 F3 I3 W0 W1 W2 W3

Source: the idea and the two limits are those of Qi et al., Zero Bubble Pipeline Parallelism, 2024
(ZB-1p and ZB-2p); the rules of the search are in `zero_bubble_search.py`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipesim.base.checks import is_number
from pipesim.base.errors import ScheduleError
from pipesim.base.ops import Kind
from pipesim.base.types import FloatArray
from pipesim.pipeline.cost_tables import split_backward_times
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.placement import Placement
from pipesim.schedules.families.facts import Family
from pipesim.schedules.families.rank_orders import columns
from pipesim.schedules.families.zero_bubble_search import zero_bubble_orders
from pipesim.schedules.order.schedule import Schedule

ASSUMED_FREED = 0.5  # of the stash, by I, where the stages do not say how large that is

OBJECTIVES = ("span", "makespan")  # what a searched order keeps short


def zb_auto(
    placement: Placement,
    microbatches: int,
    *,
    pipeline: Pipeline,
    limit: float | Sequence[float] | None = None,
    objective: str = "span",
) -> Schedule:
    """Return the best order found of F, I and W that holds no more than a limit.

    Parameters
    ----------
    placement, microbatches
        One stage a rank.
    pipeline
        Whose costs to go by.
    limit
        What a stage may hold, in micro-batches, that is in multiples of its `stash_bytes`: a
        number, or one a stage; None: no limit. F takes the whole, I gives back
        `input_grad_frees_bytes`, W the rest; where a stage has no `stash_bytes`, I is taken to
        give back half, so that more micro-batches than this may be between F and W.
    objective
        "span", the longest time that a rank is in use, which is what a step takes if no rank
        waits for the others at its end (the cost of the paper); or "makespan". The other
        decides between equals.

    Warm-up, memory: whatever is best within the limit. Bubble: never more than that of ZB-H1
    where that keeps the limit; with no limit 0 at F = I = W from m = 2p-1 on.
    Source: Qi et al. 2024.

    Raises
    ------
    ScheduleError
        If the pipeline lacks I and W, or the limit is below one micro-batch.
    """
    return _searched("zb_auto", placement, microbatches, pipeline, limit, objective)


def zb_1p(
    placement: Placement, microbatches: int, *, pipeline: Pipeline, objective: str = "span"
) -> Schedule:
    """Return ZB-1p: the best order found in the memory of 1F1B, p micro-batches a rank.

    As `zb_auto` with a limit of p. With equal stages its bubble is that of ZB-H1, time
    (p-1)(F+I-W) at W <= F; it gains on it where stages differ. Source: Qi et al. 2024.
    """
    limit = placement.stages
    return _searched("zb_1p", placement, microbatches, pipeline, limit, objective)


def zb_2p(
    placement: Placement, microbatches: int, *, pipeline: Pipeline, objective: str = "span"
) -> Schedule:
    """Return ZB-2p: the best order found in twice the memory of 1F1B, 2p micro-batches a rank.

    As `zb_auto` with a limit of 2p. With equal stages hardly any bubble is left from m = 2p-1
    on: 0 at F = I = W. Source: Qi et al. 2024.
    """
    limit = 2 * placement.stages
    return _searched("zb_2p", placement, microbatches, pipeline, limit, objective)


def _searched(
    name: str,
    placement: Placement,
    microbatches: int,
    pipe: Pipeline,
    limit: float | Sequence[float] | None,
    objective: str,
) -> Schedule:
    check_objective(name, objective)
    most = _limits(name, placement.stages, limit)
    times = split_backward_times(name, pipe, placement, microbatches)
    freed = [
        min(1.0, max(0.0, stage.input_grad_frees_bytes / stage.stash_bytes))
        if stage.stash_bytes
        else ASSUMED_FREED
        for stage in pipe.stages
    ]
    found = zero_bubble_orders(*times, microbatches, most, np.array(freed), objective)
    stage_of = [placement.stages_of(rank)[0] for rank in range(placement.ranks)]
    orders = [columns((stage, Kind[kind], n) for kind, n in found[stage]) for stage in stage_of]
    return Schedule.from_rank_ops(name, placement, microbatches, orders)


def _limits(name: str, stages: int, limit: float | Sequence[float] | None) -> FloatArray:
    given: list[Any] = [limit] if np.ndim(limit) == 0 else list(limit)  # type: ignore[arg-type]  # a number has dimension 0
    if len(given) not in (1, stages):
        raise ScheduleError(f"{name}: {len(given)} limits for {stages} stages; give 1 or {stages}")
    for stage, value in enumerate(given):
        if value is not None and not (is_number(value) and value >= 1):
            raise ScheduleError(
                f"{name}: the limit of stage {stage} is {value!r}; "
                "it must hold at least 1 micro-batch"
            )
    most = [np.inf if value is None else value for value in given]
    return np.broadcast_to(np.array(most, dtype=np.float64), stages).copy()


def check_objective(name: str, objective: str) -> None:
    """Check that an objective is one of the known ones.

    Raises
    ------
    ScheduleError
        If it is not.
    """
    if objective not in OBJECTIVES:
        raise ScheduleError(f"{name}: objective {objective!r}; known: {', '.join(OBJECTIVES)}")


FAMILIES = {
    "zb_auto": Family(
        build=zb_auto,
        summary="the best order found within a memory limit",
        backward="I, W",
        warm_up="by cost",
        peak="the limit",
        bubble_note="at most that of zb_h1",
        source="Qi et al. 2024",
        by_cost=True,
    ),
    "zb_1p": Family(
        build=zb_1p,
        summary="the best order found in the memory of 1F1B",
        backward="I, W",
        warm_up="by cost",
        peak="p stashes",
        bubble_note="span time (p-1)(F+I-W)",
        source="Qi et al. 2024",
        by_cost=True,
    ),
    "zb_2p": Family(
        build=zb_2p,
        summary="the best order found in twice that memory",
        backward="I, W",
        warm_up="by cost",
        peak="2p stashes",
        bubble_note="span time about 0",
        source="Qi et al. 2024",
        by_cost=True,
    ),
}
