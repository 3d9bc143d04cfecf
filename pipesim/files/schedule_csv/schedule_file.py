"""The content of a schedule file: a schedule, or every fault of the file.

    mine.csv               its faults
    0F0,0F1,0B0,0B1        row 2 (rank 1), cell 1: '1F0' has no backward 1B0
    1F0,1X0,1F1,1B1        row 2 (rank 1), cell 2: '1X0' is no action; ...

Rows and cells count from 1, as an editor counts them; ranks from 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipesim.base.errors import ScheduleError
from pipesim.schedules.order.listed_actions import Actions
from pipesim.schedules.order.schedule import Schedule

MOST_TOLD = 20  # faults in an error's text


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a schedule file, and its place.

    Parameters
    ----------
    text
        What is wrong, with the value and the way out.
    rank
        The row, from 0; None for a fault of the whole file.
    cell
        The place in the row, from 0; None for a fault of no single cell.

    Examples
    --------
    >>> print(Fault("'1X0' is no action", rank=1, cell=2))
    row 2 (rank 1), cell 3: '1X0' is no action
    """

    text: str
    rank: int | None = None
    cell: int | None = None

    def __str__(self) -> str:
        place = place_text(self.rank, self.cell)
        return f"{place}: {self.text}" if place else self.text


def place_text(rank: int | None, cell: int | None = None) -> str:
    """Return a place in a schedule file as text: `row 2 (rank 1), cell 3`."""
    if rank is None:
        return ""
    return f"row {rank + 1} (rank {rank})" + ("" if cell is None else f", cell {cell + 1}")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ScheduleFile:
    """The content of a schedule file: its schedule and actions, or its faults.

    Parameters
    ----------
    path, name
        The file, and its name without the ending.
    schedule
        The order of its compute ops; None if there are faults.
    faults
        All its faults, up to a number that can be listed.
    unlisted
        Number of further faults, for files that are wrong all over.
    actions
        The actions of its cells, in file order; None if there are faults.
    dialect
        "current": B, I, W as in PyTorch 2.6 and later; "legacy": BW, B, W for them.
    timeless
        Number of cells that take no time here: UNSHARD, RESHARD and REDUCE_GRAD.
    padding
        Number of blank cells.
    rows
        The texts of the cells.
    """

    path: str
    name: str
    schedule: Schedule | None = None
    faults: tuple[Fault, ...] = ()
    unlisted: int = 0
    actions: Actions | None = None
    dialect: str = "current"
    timeless: int = 0
    padding: int = 0
    rows: Sequence[Sequence[str]] = field(default=(), repr=False)

    def fault_lines(self, most: int = MOST_TOLD) -> list[str]:
        """Return the faults as texts that begin with the file's name, `most` of them at most."""
        lines = [f"{self.path}: {fault}" for fault in self.faults[:most]]
        more = len(self.faults) + self.unlisted - len(lines)
        if more:
            lines.append(f"{self.path}: and {more:,} more")
        return lines

    def error(self) -> ScheduleError:
        """Return the ScheduleError whose message lists the faults."""
        return ScheduleError("\n".join(self.fault_lines()))
