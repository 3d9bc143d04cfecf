"""On-line policies: what to run next is decided while the run goes on, from what is ready.

A policy is a function of the ready ops of a rank and of what the rank holds; it returns one of
them, or None to wait for more. It runs in SimPy only. Whatever it chose is an order like any
other: `run.order()`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pipesim.base.checks import check_count
from pipesim.base.ops import Kind, Op


@dataclass(frozen=True, slots=True)
class RankState:
    """What a policy may know besides the ready ops.

    Parameters
    ----------
    rank, ranks
        Which of how many.
    now
        The time [ms].
    in_flight
        (stage, micro-batch) pairs that the rank holds now.
    forwards_left
        Forwards that the rank has yet to run.
    """

    rank: int
    ranks: int
    now: float
    in_flight: int
    forwards_left: int


Choice: TypeAlias = Callable[[Sequence[Op], RankState], Op | None]


@dataclass(frozen=True, slots=True)
class Policy:
    """A rule that decides on line.

    Parameters
    ----------
    name
        Shown on figures and in reports.
    choose
        (ready ops, state) -> one of them, or None to wait. The ready ops come sorted by
        micro-batch, then stage.
    split
        Whether the backward is I and W, and not B.
    """

    name: str
    choose: Choice
    split: bool = False


def backward_first(most_in_flight: int) -> Policy:
    """Return the policy: a backward if one is ready, else a forward while fewer than K are held.

    With K = p-r on rank r it would be 1F1B; one K for all is what a memory limit says.

    Raises
    ------
    ValueError
        If K is not a whole number of at least 1.
    """
    most = check_count("most_in_flight", most_in_flight)

    def choose(ready: Sequence[Op], state: RankState) -> Op | None:
        backwards = [op for op in ready if op.kind == Kind.B]
        if backwards:
            return backwards[0]
        return ready[0] if ready and state.in_flight < most else None

    return Policy(f"backward first, up to {most}", choose)


def oldest_first(most_in_flight: int) -> Policy:
    """Return the policy: the oldest micro-batch first, whatever it needs; K held at most.

    Raises
    ------
    ValueError
        If K is not a whole number of at least 1.
    """
    most = check_count("most_in_flight", most_in_flight)

    def choose(ready: Sequence[Op], state: RankState) -> Op | None:
        allowed = [op for op in ready if op.kind != Kind.F or state.in_flight < most]
        return allowed[0] if allowed else None

    return Policy(f"oldest first, up to {most}", choose)


def zero_bubble_greedy(most_in_flight: int) -> Policy:
    """Return the policy: I if one is ready, else a forward while fewer than K are held, else W.

    So a W runs only when there is nothing else to do, or no room for more.

    Raises
    ------
    ValueError
        If K is not a whole number of at least 1.
    """
    most = check_count("most_in_flight", most_in_flight)

    def choose(ready: Sequence[Op], state: RankState) -> Op | None:
        for kind in (Kind.I, Kind.F, Kind.W):
            ops = [op for op in ready if op.kind == kind]
            if ops and not (kind == Kind.F and state.in_flight >= most):
                return ops[0]
        return None

    return Policy(f"zero-bubble greedy, up to {most}", choose, split=True)
