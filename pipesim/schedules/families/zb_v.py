"""ZB-V by hand: two chunks a rank in a V, a split backward, no bubble at F = I = W.

    rank 0 | 0F0 0F1 0F2 0F3 0F4 0F5 0F6 7F0 7I0 7W0 7F1 7I1 7W1 ...    zb_v with 8 micro-batches
    rank 1 | .   1F0 1F1 1F2 1F3 1F4 6F0 1F5 6F1 6I0 6W0 6F2 6I1 ...
    rank 2 | .   .   2F0 2F1 2F2 5F0 2F3 5F1 2F4 5F2 5I0 5W0 5F3 ...
    rank 3 | .   .   .   3F0 4F0 3F1 4F1 3F2 4F2 3F3 4F3 4I0 4W0 ...

Rank r holds stages r and 2p-1-r, so that a micro-batch turns on the last rank without a transfer
and its loss is on the first. Source: Qi et al., Zero Bubble Pipeline Parallelism, 2024, and
PyTorch's ScheduleZBVZeroBubble.
"""

from collections import Counter
from collections.abc import Iterator

from pipesim.base.ops import Kind
from pipesim.pipeline.placement import Placement
from pipesim.schedules.closed_forms import ClosedForm, zb_v_bubble
from pipesim.schedules.families.facts import Family
from pipesim.schedules.families.rank_orders import columns, each_rank
from pipesim.schedules.order.schedule import RankOps, Schedule


def zb_v(placement: Placement, microbatches: int) -> Schedule:
    """Return the handcrafted ZB-V.

    What it is for: no bubble in the memory of 1F1B, where F, I and W take about as long.
    Warm-up: 2(p-r)-1 forwards of the first chunk on rank r, then r of the second in turn with
    the first. Memory: 2p chunks, as much as p micro-batches of 1F1B, on every rank.
    Span bubble: 0 with F = I = W a chunk and m >= 2p-1; it is made for equal times, for others
    see `v_schedule`. Source: Qi et al. 2024.
    """

    def order(rank: int) -> RankOps:
        counts: Counter[tuple[Kind, int]] = Counter()
        ops = []
        for kind, chunk in zb_v_turns(placement.ranks, rank, microbatches):
            ops.append((placement.stages_of(rank)[chunk], kind, counts[kind, chunk]))
            counts[kind, chunk] += 1
        return columns(ops)

    return Schedule.from_rank_ops("zb_v", placement, microbatches, each_rank(placement, order))


def zb_v_turns(ranks: int, rank: int, microbatches: int) -> Iterator[tuple[Kind, int]]:
    """Yield kind and chunk of each op of a rank; micro-batches follow in order.

    Fewer than 2p-1 micro-batches run as 2p-1 would, the absent ones left out.
    """
    counts: Counter[tuple[Kind, int]] = Counter()
    for turn in _turns(ranks, rank, max(2 * ranks - 1, microbatches)):
        counts[turn] += 1
        if counts[turn] <= microbatches:
            yield turn


def _turns(ranks: int, rank: int, microbatches: int) -> Iterator[tuple[Kind, int]]:
    forward = [0, 0]  # forwards done of either chunk

    def run(kind: Kind, chunk: int) -> tuple[Kind, int]:
        forward[chunk] += kind == Kind.F
        return kind, chunk

    for _ in range(2 * (ranks - rank) - 1):
        yield run(Kind.F, 0)
    for _ in range(rank):
        yield run(Kind.F, 1)
        yield run(Kind.F, 0)
    for _ in range(ranks - rank):
        yield from (run(Kind.F, 1), run(Kind.I, 1), run(Kind.W, 1))
    while forward[1] < forward[0] or forward[0] < microbatches:
        if forward[0] < microbatches:
            yield run(Kind.F, 0)
        yield from (run(Kind.I, 0), run(Kind.W, 0))
        yield from (run(Kind.F, 1), run(Kind.I, 1), run(Kind.W, 1))
    for _ in range(rank):
        yield from (run(Kind.I, 0), run(Kind.I, 1))
    for _ in range(ranks - rank):
        yield from (run(Kind.I, 0), run(Kind.W, 0))
    yield from [(Kind.W, 1)] * rank
    yield from [(Kind.W, 0)] * rank


FAMILIES = {
    "zb_v": Family(
        build=zb_v,
        summary="two chunks in a V, no bubble at F=I=W",
        placement="v_shape",
        chunks=2,
        backward="I, W",
        warm_up="2(p-r)-1+2r chunks",
        peak="min(2m, 2p) chunks",
        closed_form=ClosedForm(
            formula="x/(2m T+x), x = (p-1) max(I, 2(I-W))",
            valid="F <= I, W <= I, m >= 2p-1",
            of_times=zb_v_bubble,
        ),
        source="Qi et al. 2024",
    ),
}
