"""The phases of each rank's order: warm-up, steady, cool-down.

F F F | B F B F B | B B        forwards before the first backward; both in turn;
warm-up  steady    cool-down   backwards after the last forward
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pipesim.base.ops import Kind

if TYPE_CHECKING:
    from pipesim.schedule import Schedule


class Phases(NamedTuple):
    """How many ops of one rank are in each phase."""

    warm_up: int
    steady: int
    cool_down: int


def rank_phases(schedule: "Schedule") -> list[Phases]:
    """Return how many ops of each rank are in each phase; I and W count as one each.

    A rank without backwards only warms up.

    Examples
    --------
    >>> from pipesim.schedule import Schedule
    >>> rank_phases(Schedule.from_orders(["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]))
    [Phases(warm_up=2, steady=0, cool_down=2), Phases(warm_up=1, steady=2, cool_down=1)]
    """
    phases = []
    for start, end in zip(schedule.offsets[:-1], schedule.offsets[1:], strict=True):
        forward = schedule.kind[start:end] == Kind.F
        ops = len(forward)
        warm_up = ops if forward.all() else int(np.argmin(forward))
        cool_down = 0 if forward.all() else int(np.argmax(forward[::-1]))
        phases.append(Phases(warm_up, ops - warm_up - cool_down, cool_down))
    return phases
