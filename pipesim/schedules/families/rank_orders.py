"""Building blocks of orders: sequences of forwards and backwards, and ways to weave them."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from pipesim.base.errors import ScheduleError
from pipesim.base.ops import Kind
from pipesim.base.types import IntArray
from pipesim.pipeline.placement import Placement
from pipesim.schedules.order.schedule import RankOps

Pass = tuple[IntArray, IntArray]  # stages and micro-batches of one kind, in order


def one_forward_one_backward(
    warm_up: int, forward: Pass, backward: Pass, kinds: Sequence[Kind] = (Kind.F, Kind.B)
) -> RankOps:
    """Return some forwards, then forward and backward in turn, then the backwards that are left.

    Parameters
    ----------
    warm_up
        Number of forwards before the first pair, at most all.
    forward, backward
        The stages and micro-batches of either, equally many.
    kinds
        The ops of the one and of the other.
    """
    count = len(forward[0])
    warm_up = min(warm_up, count)
    of_kind = np.concatenate(
        [np.full(warm_up, 0), np.tile([0, 1], count - warm_up), np.full(warm_up, 1)]
    )
    return weave(of_kind, (forward, backward), kinds)


def weave(which: IntArray, passes: Sequence[Pass], kinds: Sequence[Kind]) -> RankOps:
    """Return the ops of several passes in one order; `which` says whose turn it is.

    The n-th turn of a pass takes its n-th op.
    """
    stage = np.empty(len(which), dtype=np.int64)
    microbatch = np.empty(len(which), dtype=np.int64)
    for number, (stages, microbatches) in enumerate(passes):
        turns = which == number
        stage[turns], microbatch[turns] = stages, microbatches
    return stage, np.asarray(kinds)[which], microbatch


def each_rank(placement: Placement, order: Callable[[int], RankOps]) -> list[RankOps]:
    """Return the order of every rank."""
    return [order(rank) for rank in range(placement.ranks)]


def columns(ops: Iterable[tuple[int, ...]]) -> RankOps:
    """Return ops written one by one, (stage, kind, micro-batch, ...), as columns."""
    return tuple(np.array(column) for column in zip(*ops, strict=True))


def single_stage(placement: Placement, rank: int, microbatches: npt.ArrayLike) -> Pass:
    """Return a pass of the only stage of a rank over some micro-batches."""
    numbers = np.asarray(microbatches)
    return np.full(len(numbers), placement.stages_of(rank)[0]), numbers


def check_even(name: str, ranks: int) -> None:
    """Check that there is an even number of ranks, as two directions need.

    Raises
    ------
    ScheduleError
        If there is not; with the nearest legal numbers.
    """
    if ranks % 2:
        near = f"{ranks - 1} or {ranks + 1}" if ranks > 1 else "2"
        raise ScheduleError(f"{name} needs an even p; here p = {ranks}. Nearest legal p: {near}")
