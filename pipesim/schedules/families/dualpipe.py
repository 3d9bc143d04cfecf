"""DualPipe: micro-batches from both ends, a forward overlapped with a backward in the middle.

    rank 0 | 0F0     0F2     0F4     3F1     3I1     3W1     3F3     0F6&3B3 3F5&0B0 ...  dualpipe
    rank 1 | .       1F0     2F1     1F2     2F3     1F4     2B1     2F5&1B0 1F6&2B3 ...
    rank 2 | .       1F1     2F0     1F3     2F2     1F5     2B0     2F4&1B1 1F7&2B2 ...
    rank 3 | 0F1     0F3     0F5     3F0     3I0     3W0     3F2     0F7&3B2 3F4&0B1 ...

Rank r of p holds stage r for the one direction and a copy of stage p-1-r for the other. In the
steady phase each step is a pair F&B, whose communication hides behind the other's compute. In
DualPipeV the second pipeline is the second half of a V: two chunks a rank, and no copies.

The eight phases of rank r, with q = min(r, p-1-r), h = p/2 and c = m/2 micro-batches a direction
(DualPipeV: q = r, h = p, c = m; "0" and "1" are the first and the second chunk):

    1  F0                   2(h-q-1) times      5  B1, F1&B0        h-q-1
    2  F0, F1               q+1                 6  B1, B0           q+1, the later half split
    3  I1, W1, F1           h-q-1               7  W, B0            h-q-1
    4  F0&B1, F1&B0         c-2h+q+1            8  W                q+1

Source: DeepSeek-V3 Technical Report, 2024, and its published implementation, DualPipe.
"""

from collections import deque
from collections.abc import Iterator

from pipesim.base.errors import ScheduleError
from pipesim.base.ops import Kind
from pipesim.pipeline.placement import Placement
from pipesim.schedules.closed_forms import ClosedForm, dualpipe_bubble
from pipesim.schedules.families.facts import Family
from pipesim.schedules.families.rank_orders import check_even, columns, each_rank
from pipesim.schedules.order.schedule import RankOps, Schedule

Turn = tuple[Kind, int, int]  # kind, which of the two pipelines, number of its pair or -1


def dualpipe(placement: Placement, microbatches: int) -> Schedule:
    """Return DualPipe on p ranks, m micro-batches of both directions together.

    What it is for: communication hidden behind compute, and half the fill of one pipeline.
    Needs an even p, and an even m of at least 2p. Warm-up: phases 1 and 2 above, p forwards on
    the outer ranks, p+1 on the two in the middle. Memory: p+1 micro-batches on every rank, and
    parameters twice. Bubble, time on every rank, where F = I >= W and F&B = F + B:
    (p/2-1)(F&B + B - 3W). Source: DeepSeek-AI 2024.

    Raises
    ------
    ScheduleError
        If p is odd, or m is odd or below 2p; with the nearest legal values.
    """
    ranks, half = placement.ranks, placement.ranks // 2
    check_even("dualpipe", ranks)
    if microbatches % 2 or microbatches < 2 * ranks:
        around = (microbatches - microbatches % 2, microbatches + microbatches % 2)
        nearest = " or ".join(map(str, sorted({max(2 * ranks, m) for m in around})))
        raise ScheduleError(
            f"dualpipe needs an even m of at least 2p; here p = {ranks}, m = {microbatches}. "
            f"Nearest legal m: {nearest}"
        )

    def order(rank: int) -> RankOps:
        near = min(rank, ranks - 1 - rank)
        # On the second half of the ranks the two directions change their roles. Micro-batches
        # flow in the one direction and the other in turn: 0, 2, 4.. and 1, 3, 5..
        first = 0 if rank < half else 1
        stage = (rank, ranks - 1 - rank)
        turns = _phases(half, near, microbatches // 2, near == half - 1, near % 2)
        return _ops(turns, (stage[first], stage[1 - first]), (first, 1 - first), 2)

    return Schedule.from_rank_ops(
        "dualpipe",
        placement,
        microbatches,
        each_rank(placement, order),
        directions=[number % 2 for number in range(microbatches)],
    )


def dualpipe_v(placement: Placement, microbatches: int) -> Schedule:
    """Return DualPipeV on p ranks with two chunks each.

    What it is for: DualPipe without the second copy of the parameters.
    Needs m of at least 2p. Warm-up: phases 1 and 2 above, 2p forwards of chunks, one more on the
    last rank. Memory: 2p+1 chunks on every rank. Bubble, time on every rank, where F = I >= W a
    chunk and F&B = F + B: (p-1)(F&B + B - 3W).
    Source: DeepSeek-AI 2025; PyTorch's ScheduleDualPipeV.

    Raises
    ------
    ScheduleError
        If m is below 2p.
    """
    ranks = placement.ranks
    if microbatches < 2 * ranks:
        raise ScheduleError(
            f"dualpipe_v needs m of at least 2p; here p = {ranks}, m = {microbatches}. "
            f"Nearest legal m: {2 * ranks}"
        )

    def order(rank: int) -> RankOps:
        stages = placement.stages_of(rank)
        turns = _phases(ranks, rank, microbatches, rank == ranks - 1, rank % 2)
        return _ops(turns, (stages[0], stages[1]), (0, 0), 1)

    orders = each_rank(placement, order)
    return Schedule.from_rank_ops("dualpipe_v", placement, microbatches, orders)


def _phases(half: int, near: int, count: int, middle: bool, odd: int) -> Iterator[Turn]:
    """Yield the turns of one rank, phase by phase; `count` micro-batches in either pipeline."""
    pairs = 0

    def together(forward: int, backward: int) -> Iterator[Turn]:
        nonlocal pairs
        yield from ((Kind.F, forward, pairs), (Kind.B, backward, pairs))
        pairs += 1

    outer = half - near - 1
    for _ in range(2 * outer):
        yield Kind.F, 0, -1
    for _ in range(near + 1):
        yield from ((Kind.F, 0, -1), (Kind.F, 1, -1))
    for _ in range(outer):
        yield from ((Kind.I, 1, -1), (Kind.W, 1, -1), (Kind.F, 1, -1))
    for step in range(count - 2 * half + near + 1):
        if step == 0 and middle:  # apart, the first backward of all can start earlier
            yield from ((Kind.F, 0, -1), (Kind.B, 1, -1))
        else:
            yield from together(0, 1)
        yield from together(1, 0)
    for _ in range(outer):
        yield Kind.B, 1, -1
        yield from together(1, 0)
    backwards = 2 * (near + 1)  # of phase 6; the later half is split, its W's come after
    switch = 2 * ((near + 1) // 2) + (1 - odd)
    for place in range(backwards):
        yield (Kind.B if place < switch else Kind.I), 1 - place % 2, -1
    split = switch < backwards
    for _ in range(outer):
        yield Kind.W, -1, -1
        yield (Kind.I if split else Kind.B), 0, -1
    for _ in range(near + 1):
        yield Kind.W, -1, -1


def _ops(
    turns: Iterator[Turn], stages: tuple[int, int], offsets: tuple[int, int], stride: int
) -> RankOps:
    """Return turns as ops: micro-batches in order of each pipeline, W's in that of their I's."""
    forward, backward = [0, 0], [0, 0]
    waiting: deque[tuple[int, int]] = deque()  # (stage, micro-batch) of I's without their W
    ops: list[tuple[int, ...]] = []
    for kind, which, pair in turns:
        if kind == Kind.W:
            if waiting:
                stage, microbatch = waiting.popleft()
                ops.append((stage, kind, microbatch, 0, -1))
            continue
        counts = forward if kind == Kind.F else backward
        microbatch = counts[which] * stride + offsets[which]
        counts[which] += 1
        ops.append((stages[which], kind, microbatch, 0, pair))
        if kind == Kind.I:
            waiting.append((stages[which], microbatch))
    return columns(ops)


FAMILIES = {
    "dualpipe": Family(
        build=dualpipe,
        summary="from both ends, forwards overlap backwards",
        placement="bidirectional",
        backward="B, I, W",
        warm_up="p or p+1",
        peak="p+1, weights x 2",
        closed_form=ClosedForm(
            formula="1-(m T-(m-(5p/2-1)/2-2/p) D)/(m T-(m-p-1) D+(p/2-1)(F&B+F-W-min(I, W))), "
            "D = T-F&B",
            valid="F >= I, F&B >= F, F&B >= B, no overhead",
            of_times=dualpipe_bubble,
        ),
        source="DeepSeek-AI 2024",
    ),
    "dualpipe_v": Family(
        build=dualpipe_v,
        summary="DualPipe folded into a V",
        placement="v_shape",
        chunks=2,
        backward="B, I, W",
        warm_up="2p or 2p+1 chunks",
        peak="2p+1 chunks",
        closed_form=ClosedForm(
            formula="1-(2m T-(2m-(5p-1)/2-1/p) D)/(2m T-(2m-2p-1) D+(p-1)(F&B+F-W-min(I, W))), "
            "D = T-F&B",
            valid="F >= I, F&B >= F, F&B >= B, no overhead",
            of_times=dualpipe_bubble,
        ),
        source="DeepSeek-AI 2025",
    ),
}
