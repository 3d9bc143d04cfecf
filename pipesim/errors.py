"""What pipesim raises besides the built-in `ValueError` and `TypeError`."""

from collections.abc import Sequence


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


class DeadlockError(PipesimError, RuntimeError):
    """A run that cannot go on: every rank that is left waits for another; not a bad value.

    Parameters
    ----------
    message
        Who waits for whom.
    cycle
        The ranks that wait for each other, each for the next: the rank, the instruction at which
        it stands, and the one that it waits for.
    """

    def __init__(self, message: str, cycle: Sequence[tuple[int, str, str]] = ()) -> None:
        self.cycle = tuple(cycle)
        super().__init__(message)
