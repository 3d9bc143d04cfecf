"""Errors of pipesim, besides the built-in `ValueError` and `TypeError`."""

from collections.abc import Sequence
from typing import NamedTuple


class PipesimError(Exception):
    """Base of the errors that pipesim defines; catch it to catch them all."""


class ConfigError(PipesimError, ValueError):
    """A config file or a command line that cannot be used; holds every fault at once.

    Parameters
    ----------
    source
        The file's name, or "command line".
    faults
        One text a fault: the path of the key, the value, what would be right.
    """

    def __init__(self, source: str, faults: Sequence[str]) -> None:
        self.source = source
        self.faults = tuple(faults)
        super().__init__("\n".join(f"{source}: {fault}" for fault in self.faults))


class ScheduleError(PipesimError, ValueError):
    """An order of ops that is no schedule: an op missing, doubled, misplaced or out of order."""


class UnsupportedByEngine(PipesimError, ValueError):
    """A run that the chosen engine cannot do; the message names why, and an engine that can."""


class Standing(NamedTuple):
    """The instruction at which a rank is stuck.

    It is given as text and by its place in the rank's list, from 0, with the instruction that
    the rank waits for.
    """

    rank: int
    place: int
    instruction: str
    awaited: str


class DeadlockError(PipesimError, RuntimeError):
    """A run that cannot go on: every rank that is left waits for another; not a bad value.

    Parameters
    ----------
    message
        Who waits for whom.
    cycle
        The ranks that wait for each other, each for the next, the last for the first.
    """

    def __init__(self, message: str, cycle: Sequence[Standing] = ()) -> None:
        self.cycle = tuple(cycle)
        super().__init__(message)


class MemoryLimitError(PipesimError, RuntimeError):
    """A run that takes a rank over the memory of its device; not a bad value.

    Parameters
    ----------
    message
        The excess, the parts of the memory, and the way out.
    rank
        The first rank that goes over its limit.
    op
        The op that takes it there, such as "2F0"; None if parameters, gradients and optimizer
        do so alone.
    time
        Start of that op [ms].
    bytes, limit
        Bytes that the rank would hold, and memory of its device [bytes].
    """

    def __init__(
        self, message: str, rank: int, op: str | None, time: float, bytes: int, limit: int
    ) -> None:
        self.rank, self.op, self.time = rank, op, time
        self.bytes, self.limit = bytes, limit
        super().__init__(message, rank, op, time, bytes, limit)  # all of them, so that it pickles

    def __str__(self) -> str:
        return str(self.args[0])
