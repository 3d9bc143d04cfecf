"""The actions of a schedule file as a table: in one dialect, without impossible numbers."""

from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np

from pipesim.base.checks import shown
from pipesim.base.ops import COMPUTE_KINDS, Kind
from pipesim.base.types import BoolArray, Int32Array, IntArray
from pipesim.files.schedule_csv.cells import WHOLE, Cells
from pipesim.files.schedule_csv.schedule_file import Fault, place_text
from pipesim.schedules.order.listed_actions import Actions

NOUNS = {"stage": "stage", "microbatch": "micro-batch", "slice": "slice"}


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The actions of a schedule file, in file order; arrays are (actions,), numbers from 0.

    Parameters
    ----------
    rows
        The texts of the cells.
    rank, cell
        Row and place in the row.
    kind, stage, microbatch, slice
        The action; its kind a code of `Kind`.
    group
        Number of the overlapped pair, or -1.
    """

    rows: list[list[str]]
    rank: IntArray
    cell: IntArray
    kind: IntArray
    stage: IntArray
    microbatch: IntArray
    slice: IntArray
    group: IntArray

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def compute(self) -> BoolArray:
        """Which actions are compute ops."""
        return np.isin(self.kind, COMPUTE_KINDS)

    @property
    def slices(self) -> int:
        """Number of slices k of each micro-batch: the largest slice named, plus 1."""
        return int(self.slice.max(initial=0)) + 1

    @property
    def microbatches(self) -> int:
        """Number of micro-batches m: the largest micro-batch named, plus 1."""
        return int(self.microbatch.max(initial=-1)) + 1

    @property
    def stages(self) -> int:
        """Number of stages S: the largest stage named, plus 1."""
        return int(self.stage.max(initial=-1)) + 1

    @property
    def unit(self) -> IntArray:
        """The unit of each action, micro-batch x slices + slice; array (actions,)."""
        return self.microbatch * self.slices + self.slice

    def only(self, wanted: BoolArray) -> Self:
        """Return the table of the wanted actions alone."""
        names = ("rank", "cell", "kind", "stage", "microbatch", "slice", "group")
        return replace(self, **{name: getattr(self, name)[wanted] for name in names})

    def numbers(self) -> Int32Array:
        """Return the number of every action, array (kinds, stages, units); -1 for no action.

        An action that is there twice has the number of its first place.
        """
        shape = (len(Kind), self.stages, self.microbatches * self.slices)
        none = np.int32(len(self))
        found = np.full(shape, none, dtype=np.int32)
        every = np.arange(len(self), dtype=np.int32)
        np.minimum.at(found, (self.kind, self.stage, self.unit), every)
        found[found == none] = -1
        return found

    def text(self, number: int) -> str:
        """Return the cell of an action for a message, in quotes."""
        return shown(self.rows[self.rank[number]][self.cell[number]].strip())

    def place(self, number: int) -> str:
        """Return the place of an action as text: `row 2 (rank 1), cell 3`."""
        return place_text(int(self.rank[number]), int(self.cell[number]))

    def fault(self, number: int, text: str) -> Fault:
        """Return a fault at the place of an action; its text begins with the cell."""
        return Fault(f"{self.text(number)} {text}", int(self.rank[number]), int(self.cell[number]))

    def actions(self) -> Actions:
        """Return the same actions, sends and receives included, as a schedule lists them."""
        return Actions(
            rank=self.rank.astype(np.int32),
            cell=self.cell,
            kind=self.kind.astype(np.int8),
            stage=self.stage.astype(np.int32),
            microbatch=self.microbatch.astype(np.int32),
            slice=self.slice.astype(np.int32),
            group=self.group.astype(np.int32),
        )


def make_table(cells: Cells) -> tuple[Table, Literal["current", "legacy"]]:
    """Return the table of the actions that make sense by themselves, and the file's dialect.

    The others are added to the faults of the cells.
    """
    table = Table(rows=cells.rows, **cells.arrays())
    table = _with_possible_numbers(table, cells)
    count = np.bincount(table.kind, minlength=WHOLE + 1)
    if count[Kind.I]:
        legacy = count[WHOLE] > count[Kind.I]
    else:  # W comes with I, or in the older dialect with B
        legacy = count[Kind.W] or (count[WHOLE] and count[WHOLE] >= count[Kind.B])
    strange = table.kind == (Kind.I if legacy else WHOLE)
    whose, whole = ("an older", "BW") if legacy else ("a newer", "B")
    text = f"mixes two dialects: the file is in {whose} one, where the whole backward is {whole}"
    cells.fail_each(np.flatnonzero(strange), lambda number: table.fault(number, text))
    table = table.only(~strange)
    if legacy:
        meant = np.arange(WHOLE + 1)
        meant[[Kind.B, WHOLE]] = Kind.I, Kind.B
        table = replace(table, kind=meant[table.kind])
    return table, "legacy" if legacy else "current"


def _with_possible_numbers(table: Table, cells: Cells) -> Table:
    """Return the table without actions that name a number beyond the size of the file.

    Every stage and every micro-batch has at least one action.
    """
    most = len(table)
    possible = np.ones(most, dtype=bool)
    for name, noun in NOUNS.items():
        values = getattr(table, name)
        beyond = (values >= most) & possible
        cells.fail_each(
            np.flatnonzero(beyond),
            lambda number, noun=noun, values=values: table.fault(  # type: ignore[misc]
                number, f"names {noun} {values[number]}, which a file of {most} ops cannot have"
            ),
        )
        possible &= ~beyond
    return table.only(possible)
