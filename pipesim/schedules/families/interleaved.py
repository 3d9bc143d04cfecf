"""Interleaved schedules: several stages a rank, looped, so that fill and drain are shorter.

    rank 0 | 0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 .   .   .   4B0 .   4B1 ...   interleaved, v=2, m=4
    rank 1 | .   1F0 1F1 1F2 1F3 5F0 5F1 5F2 5F3 .   5B0 .   5B1 .   ...
    rank 2 | .   .   2F0 2F1 2F2 2F3 6F0 6F1 6F2 6B0 6F3 6B1 .   6B2 ...
    rank 3 | .   .   .   3F0 3F1 3F2 3F3 7F0 7B0 7F1 7B1 7F2 7B2 7F3 ...

Micro-batches go through the chunks of a rank in groups of N: N of them through the first chunk,
the same N through the second, and so on; then the next N. Backwards take the chunks in reverse.
"""

from collections.abc import Callable
from itertools import chain, islice
from typing import Any

import numpy as np

from pipesim.base.checks import check_count
from pipesim.base.errors import ScheduleError
from pipesim.base.ops import Kind
from pipesim.pipeline.placement import Placement
from pipesim.schedules.closed_forms import ClosedForm, interleaved_zb_bubble, looped_bubble
from pipesim.schedules.families.facts import Family
from pipesim.schedules.families.rank_orders import Pass, each_rank, one_forward_one_backward, weave
from pipesim.schedules.order.schedule import RankOps, Schedule


def interleaved(
    placement: Placement,
    microbatches: int,
    *,
    group: int | None = None,
    warm_up: str = "long",
    grouping: str = "megatron",
) -> Schedule:
    """Return interleaved 1F1B, in the order of Megatron-LM.

    What it is for: a fill and drain shorter by the number of chunks v, for v times the messages.
    Warm-up: min(m v, 2(p-r-1)+(v-1)N) forwards of chunks on rank r. Memory: one chunk more than
    that, at most all m v.
    Bubble with equal stages, no transfers: (p-1)/(m v+p-1); with m < p, as with looped_bfs.
    Legal: p <= N <= m, and m mod N is 0 or at least p (other remainders idle more, or deadlock).
    Source: Narayanan et al., Megatron-LM, 2021.

    Parameters
    ----------
    placement
        Looped.
    microbatches
        Number of micro-batches m.
    group
        N, how many micro-batches go through a chunk before the next chunk; by default p.
    warm_up
        "long" as above, or "short", (p-r-1)+(v-1)N: less memory, and as quick without transfers.
    grouping
        "megatron", or "pytorch": max(1, m // p) groups of equal size, which takes other m.

    Raises
    ------
    ScheduleError
        If m, p and N do not go together; with the nearest m that does.
    ValueError
        If an option is none of those named.
    """
    if warm_up not in ("long", "short"):
        raise ValueError(f"warm_up = {warm_up!r} of interleaved is neither 'long' nor 'short'")
    size = _group_size("interleaved", placement, microbatches, group, grouping)
    ranks, chunks = placement.ranks, placement.stages // placement.ranks
    a_hop = 2 if warm_up == "long" else 1

    def order(rank: int) -> RankOps:
        first = a_hop * (ranks - rank - 1) + (chunks - 1) * size
        return one_forward_one_backward(first, *_passes(placement, rank, microbatches, size))

    orders = each_rank(placement, order)
    return Schedule.from_rank_ops("interleaved", placement, microbatches, orders)


def interleaved_zb(placement: Placement, microbatches: int) -> Schedule:
    """Return interleaved 1F1B with a split backward, in the order of PyTorch.

    What it is for: the bubble of ZB-1P with the chunks of interleaving. Groups as with
    `grouping="pytorch"`: m a multiple of max(1, m // p). Warm-up: (p-r-1)+(v-1)N forwards of
    chunks on rank r; each W runs r backwards after its I. Memory: warm-up plus r plus one chunks
    held at most. Bubble with equal stages, W <= F, m >= p, T = F+I+W a chunk:
    x/(m v T+x), x = (p-1)(F + max(I-W, 0)); none is published, this one was found by simulation.
    Source: PyTorch's ScheduleInterleavedZeroBubble, after Qi et al. 2024.

    Raises
    ------
    ScheduleError
        If m does not divide into equal groups; with the nearest m that does.
    """
    size = _group_size("interleaved_zb", placement, microbatches, None, "pytorch")
    ranks, chunks = placement.ranks, placement.stages // placement.ranks

    def order(rank: int) -> RankOps:
        forward, backward = _passes(placement, rank, microbatches, size)
        count = len(forward[0])
        warm_up = min(ranks - rank - 1 + (chunks - 1) * size, count)
        pairs = ((0, 1) if n < count - warm_up else (1,) for n in range(count))
        turns = chain.from_iterable((*p, 2) if n >= rank else p for n, p in enumerate(pairs))
        which = np.array([0] * warm_up + list(turns) + [2] * min(rank, count))
        return weave(which, (forward, backward, backward), (Kind.F, Kind.I, Kind.W))

    orders = each_rank(placement, order)
    return Schedule.from_rank_ops("interleaved_zb", placement, microbatches, orders)


def looped_bfs(placement: Placement, microbatches: int) -> Schedule:
    """Return looped breadth-first: all micro-batches through a chunk before the next chunk.

    What it is for: few and long phases, in which gradient reductions overlap well.
    Warm-up: all m v forwards. Memory: all m v chunks on every rank. Bubble with equal stages,
    no transfers, m >= p: (p-1)/(m v+p-1); with fewer, (v-1)(p-m) more slots.
    Source: Lamy-Poirier, Breadth-First Pipeline Parallelism, 2023.
    """

    def order(rank: int) -> RankOps:
        stages = placement.stages_of(rank)
        numbers = np.arange(microbatches)
        forward = np.repeat(stages, microbatches), np.tile(numbers, len(stages))
        backward = forward[0][::-1], forward[1][::-1]
        return one_forward_one_backward(len(forward[0]), forward, backward)

    orders = each_rank(placement, order)
    return Schedule.from_rank_ops("looped_bfs", placement, microbatches, orders)


def _passes(placement: Placement, rank: int, microbatches: int, size: int) -> tuple[Pass, Pass]:
    """Return the forwards and the backwards of one rank in order of their virtual index."""
    chunks = placement.stages_of(rank)
    starts = range(0, microbatches, size)
    groups = [np.arange(start, min(start + size, microbatches)) for start in starts]
    numbers = np.concatenate([np.tile(group, len(chunks)) for group in groups])

    def stages(order: Any) -> Any:
        return np.concatenate([np.repeat(order, len(group)) for group in groups])

    return (stages(chunks), numbers), (stages(chunks[::-1]), numbers)


def _group_size(name: str, placement: Placement, m: int, group: int | None, grouping: str) -> int:
    """Return N, or raise with the rule, the numbers and the nearest that are legal."""
    p = placement.ranks
    if grouping == "pytorch":
        if group is not None:
            raise ScheduleError(
                f"{name}: grouping = 'pytorch' sets the group size; leave out group"
            )
        return _pytorch_group_size(name, p, m)
    if grouping != "megatron":
        raise ValueError(f"grouping = {grouping!r} of {name} is neither 'megatron' nor 'pytorch'")

    def legal(m: int, n: int) -> bool:
        return p <= n <= m and (m % n == 0 or m % n >= p)

    size = p if group is None else check_count("group", group)
    if not legal(m, size):
        hints = {
            "m": _nearest(m, lambda x: legal(x, size)),
            "N": _nearest(size, lambda x: legal(m, x)),
        }
        near = "; ".join(f"{what}: {found}" for what, found in hints.items() if found)
        raise ScheduleError(
            f"{name} needs p <= N <= m, and m mod N is 0 or at least p; here p = {p}, "
            f"N = {size}, m = {m}, m mod N = {m % size}. "
            f"Nearest legal {near}; grouping = 'pytorch' takes other m"
        )
    return size


def _pytorch_group_size(name: str, p: int, m: int) -> int:
    def legal(m: int) -> bool:
        return m % max(1, m // p) == 0

    if not legal(m):
        raise ScheduleError(
            f"{name} needs m to be a multiple of max(1, m // p); here p = {p}, m = {m}. "
            f"Nearest legal m: {_nearest(m, legal)}"
        )
    return m // max(1, m // p)


def _nearest(count: int, legal: Callable[[int], bool]) -> str:
    """Return the two legal counts that are nearest, as text; "" if there is none around."""
    near = (x for d in range(1, 2 * count + 64) for x in (count - d, count + d))
    found = islice((x for x in near if x > 0 and legal(x)), 2)
    return " or ".join(map(str, sorted(found)))


FAMILIES = {
    "interleaved": Family(
        build=interleaved,
        summary="1F1B over v chunks a rank",
        placement="looped",
        chunks=None,
        warm_up="min(m v, 2(p-1-r)+(v-1)N) chunks",
        peak="min(m v, 2(p-1-r)+(v-1)N+1) chunks",
        closed_form=ClosedForm(
            formula="x/(m v+x), x = p-1+(v-1) max(p-m, 0)", of_counts=looped_bubble
        ),
        source="Narayanan et al. 2021",
    ),
    "interleaved_zb": Family(
        build=interleaved_zb,
        summary="interleaved, with a split backward",
        placement="looped",
        chunks=None,
        backward="I, W",
        warm_up="p-1-r+(v-1)N chunks",
        peak="min(m v, p+(v-1)N) chunks",
        closed_form=ClosedForm(
            formula="x/(m v T+x), x = (p-1)(F+max(I-W, 0))",
            valid="W <= F, m >= p",
            of_times=interleaved_zb_bubble,
        ),
        source="PyTorch; Qi et al. 2024",
    ),
    "looped_bfs": Family(
        build=looped_bfs,
        summary="all micro-batches through a chunk before the next",
        placement="looped",
        chunks=None,
        warm_up="m v chunks",
        peak="m v chunks",
        closed_form=ClosedForm(
            formula="x/(m v+x), x = p-1+(v-1) max(p-m, 0)", of_counts=looped_bubble
        ),
        source="Lamy-Poirier 2023",
    ),
}
