"""The cells of PyTorch's schedule files: text -> stage, kind, micro-batch.

    cell      := "" | action | "(" action ";" action ")OVERLAP_F_B"
    action    := STAGE KIND MICROBATCH              2F0   3I12   1SEND_F0
               | STAGE KIND MICROBATCH "." SLICE    2F0.1            pipesim's own notation
               | STAGE ("UNSHARD" | "RESHARD" | "REDUCE_GRAD") [MICROBATCH]
               | STAGE SEND MICROBATCH "_" STAGE RECV MICROBATCH     only in files of PyTorch 2.5

PyTorch matches the start of a cell and passes over what follows; here a cell is all or nothing.
"""

import re
from array import array
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from pipesim.base.checks import shown
from pipesim.base.ops import Kind
from pipesim.base.types import IntArray
from pipesim.files.schedule_csv.schedule_file import Fault

WHOLE = len(Kind)  # BW, the whole backward in files of PyTorch 2.5
CODES = {**{kind.name: int(kind) for kind in Kind}, "BW": WHOLE}
LISTED = 1_000  # faults that are listed one by one; the rest are only counted
MOST_FAULTS = 100_000  # unreadable cells after which reading stops

_TIMELESS_KINDS = "UNSHARD|RESHARD|REDUCE_GRAD"
_KINDS = "SEND_F|SEND_B|RECV_F|RECV_B|BW|F|B|I|W"
_ACTION = re.compile(rf"([0-9]{{1,9}})({_KINDS})([0-9]{{1,9}})(?:\.([0-9]{{1,9}}))?")
_TIMELESS = re.compile(rf"[0-9]{{1,9}}(?:{_TIMELESS_KINDS})[0-9]{{0,9}}")
_COMBINED = re.compile(r"([0-9]+SEND_[FB][0-9]+)_([0-9]+RECV_[FB][0-9]+)")
_PAIR = re.compile(r"\((.*)\)OVERLAP_F_B")
_HUGE = re.compile(rf"[0-9]+(?:{_KINDS}|{_TIMELESS_KINDS})[0-9]*(?:\.[0-9]+)?")
_SPACE = " \t\r\n\v\f"

Action: TypeAlias = tuple[int, int, int, int]  # stage, kind, micro-batch, slice


class Cells:
    """The actions of a schedule file as columns, filled row by row, and the file's faults.

    An overlapped pair is two actions, and so is a combined send and receive.
    """

    def __init__(self) -> None:
        self.rows: list[list[str]] = []
        self.columns = [array("i") for _ in range(6)]  # stage, kind, m, slice, group, cell
        self.lengths: list[int] = []  # actions a row
        self.faults: list[Fault] = []
        self.unlisted = self.timeless = self.padding = self.pairs = 0

    def add_row(self, row: list[str]) -> None:
        """Add the actions of the next row's cells."""
        stages, kinds, microbatches, slices, groups, cells = (c.append for c in self.columns)
        before = len(self.columns[0])
        match = _ACTION.fullmatch
        self.rows.append(row)
        for place, text in enumerate(row):
            if not text:
                self.padding += 1
                continue
            found = match(text)
            if found is None:
                self._add_other(text, place)
                continue
            stage, kind, microbatch, part = found.groups()
            stages(int(stage))
            kinds(CODES[kind])
            microbatches(int(microbatch))
            slices(0 if part is None else int(part))
            groups(-1)
            cells(place)
        self.lengths.append(len(self.columns[0]) - before)

    def _add_other(self, text: str, place: int) -> None:
        """Add a cell that is blank, timeless, a pair, between spaces, or faulty."""
        bare = text.strip(_SPACE)
        if not bare:
            self.padding += 1
        elif _TIMELESS.fullmatch(bare):
            self.timeless += 1
        elif self.unlisted < MOST_FAULTS:
            try:
                actions, paired = parse_cell(bare)
            except ValueError as error:
                self.fail([Fault(str(error), len(self.rows) - 1, place)])
                return
            for action in actions:
                group = self.pairs if paired else -1
                for column, value in zip(self.columns, (*action, group, place), strict=True):
                    column.append(value)
            self.pairs += paired

    def fail(self, faults: Sequence[Fault]) -> None:
        """Add faults: the first `LISTED` one by one, the rest as a count."""
        room = max(0, LISTED - len(self.faults))
        self.faults += faults[:room]
        self.unlisted += len(faults[room:])

    def fail_each(self, numbers: IntArray, describe: Callable[[int], Fault]) -> None:
        """Add one fault per number; only those that are listed are described."""
        room = max(0, LISTED - len(self.faults))
        self.faults += map(describe, numbers[:room].tolist())
        self.unlisted += len(numbers[room:])

    def arrays(self) -> dict[str, IntArray]:
        """Return the columns by name, each an array (actions,)."""
        names = ("stage", "kind", "microbatch", "slice", "group", "cell")
        rank = np.repeat(np.arange(len(self.lengths), dtype=np.int64), self.lengths)
        columns = {
            name: np.array(column, dtype=np.int64)
            for name, column in zip(names, self.columns, strict=True)
        }
        return {"rank": rank, **columns}


def parse_cell(text: str) -> tuple[list[Action], bool]:
    """Return the actions of a cell, and whether they are an overlapped pair.

    Raises
    ------
    ValueError
        If the text is no cell.

    Examples
    --------
    >>> parse_cell("(3F1;3B0)OVERLAP_F_B")
    ([(3, 0, 1, 0), (3, 1, 0, 0)], True)
    """
    pair = _PAIR.fullmatch(text)
    if pair is not None:
        actions = [_parse_action(part.strip(_SPACE), text) for part in pair[1].split(";")]
        forwards = sum(kind == Kind.F for _, kind, _, _ in actions)
        backwards = sum(kind in (Kind.B, Kind.I, WHOLE) for _, kind, _, _ in actions)
        if (len(actions), forwards, backwards) != (2, 1, 1):
            raise ValueError(
                f"{shown(text)} is no overlapped pair, which is one forward and one backward: "
                "(3F1;3B0)OVERLAP_F_B"
            )
        return actions, True
    combined = _COMBINED.fullmatch(text)
    if combined is not None:
        return [_parse_action(part, text) for part in combined.groups()], False
    return [_parse_action(text, text)], False


def _parse_action(text: str, cell: str) -> Action:
    found = _ACTION.fullmatch(text)
    if found is not None:
        stage, kind, microbatch, part = found.groups()
        return int(stage), CODES[kind], int(microbatch), int(part or 0)
    what = shown(text) if text == cell else f"{shown(text)} in {shown(cell)}"
    if _HUGE.fullmatch(text) and re.search("[0-9]{10}", text):
        raise ValueError(f"{what} has a number of more than nine digits")
    if text.isprintable() and not text.isascii():
        raise ValueError(f"{what} is no action; digits and letters are ASCII ones: 1F0")
    if _ACTION.fullmatch(text.upper()) or _TIMELESS.fullmatch(text.upper()):
        raise ValueError(f"{what} is no action; kinds are in capitals: 1F0")
    raise ValueError(f"{what} is no action; write stage, kind, micro-batch: 1F0")
