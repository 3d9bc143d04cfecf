"""Zero bubble, by hand: the backward is split, and its weight part W fills what would be idle.

    rank 0 | F0 F1 F2 F3 .  .  .  I0 W0 I1 W1 I2 W2 I3 W3      zb_h1 with 4 micro-batches
    rank 1 | .  F0 F1 F2 .  .  I0 F3 I1 W0 I2 W1 I3 W2 W3
    rank 2 | .  .  F0 F1 .  I0 F2 I1 F3 I2 W0 I3 W1 W2 W3
    rank 3 | .  .  .  F0 I0 F1 I1 F2 I2 F3 I3 W0 W1 W2 W3

Source: Qi et al., Zero Bubble Pipeline Parallelism, 2024 (its B is our I). The bubbles are span
bubbles: ranks may end one after the other, if the optimizer does not wait for all of them.
"""

from collections.abc import Callable, Iterator

import numpy as np

from pipesim.base.ops import Kind
from pipesim.pipeline.placement import Placement
from pipesim.schedules.closed_forms import ClosedForm, zb_h1_bubble, zb_h2_bubble
from pipesim.schedules.families.facts import Family
from pipesim.schedules.families.rank_orders import each_rank, single_stage, weave
from pipesim.schedules.order.schedule import RankOps, Schedule


def zb_h1(placement: Placement, microbatches: int) -> Schedule:
    """Return ZB-H1: the memory of 1F1B and about a third of its bubble.

    Warm-up: min(m, p-1-s) forwards on stage s; W runs s micro-batches behind I. Memory: p
    micro-batches at most, (p-s) whole ones and s of which W alone is left.
    Span bubble with equal stages, W <= F, m >= p: time (p-1)(F+I-W). Source: Qi et al. 2024.
    The bubble fraction, which counts that ranks start and end at different times: `closed_forms`.
    """
    last = placement.stages - 1

    def turns(stage: int) -> Iterator[int]:
        warm_up = min(microbatches, last - stage)
        yield from [0] * warm_up
        for number in range(microbatches):
            if warm_up + number < microbatches:
                yield 0
            yield 1
            if number >= stage:
                yield 2
        yield from [2] * min(stage, microbatches)

    return _woven("zb_h1", placement, microbatches, turns)


def zb_h2(placement: Placement, microbatches: int) -> Schedule:
    """Return ZB-H2: no bubble at F = I = W, for about twice the memory of 1F1B.

    Warm-up: min(m, 2(p-s)-1) forwards on stage s; W runs 2s micro-batches behind I. Memory:
    2p-1 micro-batches at most.
    Span bubble with equal stages, W <= F, W <= I, m >= 2p-1: time (p-1)(F+I-2W).
    Source: Qi et al. 2024. The bubble fraction, which counts that ranks start and end at different
    times: `closed_forms`.
    """
    stages = placement.stages

    def turns(stage: int) -> Iterator[int]:
        warm_up = min(microbatches, 2 * (stages - stage) - 1)
        yield from [0] * warm_up
        for number in range(microbatches):
            yield 1
            if number >= 2 * stage:
                yield 2
            if warm_up + number < microbatches:
                yield 0
        yield from [2] * min(2 * stage, microbatches)

    return _woven("zb_h2", placement, microbatches, turns)


def _woven(
    name: str, placement: Placement, microbatches: int, turns: Callable[[int], Iterator[int]]
) -> Schedule:
    numbers = np.arange(microbatches)

    def order(rank: int) -> RankOps:
        both = single_stage(placement, rank, numbers)
        which = np.fromiter(turns(placement.stages_of(rank)[0]), dtype=np.int64)
        return weave(which, (both, both, both), (Kind.F, Kind.I, Kind.W))

    orders = each_rank(placement, order)
    return Schedule.from_rank_ops(name, placement, microbatches, orders)


FAMILIES = {
    "zb_h1": Family(
        build=zb_h1,
        summary="split backward, memory of 1F1B",
        backward="I, W",
        warm_up="min(m, p-1-r)",
        peak="min(m, p)",
        closed_form=ClosedForm(
            formula="x/(m T+x), x = (p-1)(F+I)-(min(m, p)-1) min(I, W)",
            valid="W <= F, and W <= I if m < p",
            of_times=zb_h1_bubble,
        ),
        source="Qi et al. 2024",
    ),
    "zb_h2": Family(
        build=zb_h2,
        summary="split backward, no bubble at F=I=W",
        backward="I, W",
        warm_up="min(m, 2(p-r)-1)",
        peak="min(m, 2p-1)",
        closed_form=ClosedForm(
            formula="x/(m T+x), x = (p-1)(F+max(I-2W, 0))",
            valid="W <= F, m >= 2p-1",
            of_times=zb_h2_bubble,
        ),
        source="Qi et al. 2024",
    ),
}
