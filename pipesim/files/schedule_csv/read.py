"""PyTorch's schedule files: CSV, one row a rank, cells in the order in which the rank runs them.

    0F0,0F1,0B0,0B1        stage 0 of two micro-batches on rank 0: both forwards, both backwards
    1F0,1B0,1F1,1B1        stage 1 on rank 1

The grammar of a cell is in `cells.py`. A blank cell is padding and carries nothing. Where a stage
lives follows from the rows. Files come with compute ops only, or with the sends and receives
between them; `write.py` writes the former. PyTorch 2.5 wrote BW, B, W for what are B, I, W since;
which of the two a file means shows in its cells: BW, or W without any I, is the older dialect.

Beyond PyTorch, whose loader does not take them: slices of micro-batches (`2F0.1`), schedules
without backwards, and two-directional schedules, in which a stage is on two rows. What a file
does not hold: the versions of the weights, fractions of slices other than equal ones, and a second
direction in which no micro-batch flows.
"""

import csv
import io
from collections.abc import Iterable
from os import PathLike, fspath
from pathlib import Path

import numpy as np

from pipesim.base.errors import ConfigError, ScheduleError
from pipesim.base.types import Int8Array
from pipesim.files.schedule_csv.cells import Cells
from pipesim.files.schedule_csv.op_faults import Finding, check_numbers, check_ops, check_rows
from pipesim.files.schedule_csv.placement import find_placement
from pipesim.files.schedule_csv.schedule_file import Fault, ScheduleFile
from pipesim.files.schedule_csv.table import Table, make_table
from pipesim.files.schedule_csv.transfer_faults import check_transfers, has_transfers
from pipesim.pipeline.placement import Placement
from pipesim.schedules.order.listed_actions import Actions
from pipesim.schedules.order.schedule import Schedule

MOST_RANKS = 100_000


def read_schedule(path: str | PathLike[str]) -> Schedule:
    r"""Return the schedule in a CSV file of PyTorch's pipelining.

    Parameters
    ----------
    path
        The file; the schedule is called by its name without the ending.

    Raises
    ------
    ConfigError
        If the file cannot be read.
    ScheduleError
        If it holds no schedule; with the faults and their places.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "mine.csv"
    ...     _ = path.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    ...     print(read_schedule(path))
    mine: 2 ranks, 2 micro-batches
    rank 0 | F0 F1 .  B0 .  B1
    rank 1 | .  F0 B0 F1 B1 .
    """
    file = read_torch_schedule(path)
    if file.schedule is None:
        raise file.error()
    return file.schedule


def read_torch_schedule(path: str | PathLike[str]) -> ScheduleFile:
    """Return the content of a CSV file of PyTorch's pipelining: a schedule, or all its faults.

    Raises
    ------
    ConfigError
        If the file cannot be read; faulty content raises nothing.
    """
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:  # a ValueError: a path with a NUL in it
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(str(path), [f"cannot be read: {reason}"]) from None
    return parse_torch_schedule(content, fspath(path))


def parse_torch_schedule(content: bytes, path: str = "schedule.csv") -> ScheduleFile:
    """Return the content of a schedule file, given as bytes: a schedule, or all its faults.

    Examples
    --------
    >>> print(parse_torch_schedule(b"0F0,0B0,1X0").faults[0])
    row 1 (rank 0), cell 3: '1X0' is no action; write stage, kind, micro-batch: 1F0
    """
    cells = Cells()
    whole = _read_rows(content, cells)
    table, dialect = make_table(cells)
    schedule = _checked_schedule(Path(path).stem, table, cells) if whole else None
    return ScheduleFile(
        path=str(path),
        name=Path(path).stem,
        schedule=schedule,
        faults=tuple(sorted(cells.faults, key=lambda f: (f.rank is not None, f.rank, f.cell or 0))),
        unlisted=cells.unlisted,
        actions=None if schedule is None else schedule.listed or table.actions(),
        dialect=dialect,
        timeless=cells.timeless,
        padding=cells.padding,
        rows=cells.rows,
    )


def _read_rows(content: bytes, cells: Cells) -> bool:
    """Add a file's rows to the cells, and return whether it could be read to its end."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start].split(b"\n")
        what = "UTF-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "no UTF-8 text"
        byte = f"byte 0x{content[error.start]:02x} is {what}; save the file as UTF-8"
        cells.fail([Fault(byte, len(before) - 1, before[-1].count(b","))])
        return False
    if not text.strip():
        cells.fail([Fault("the file is empty; write one row a rank: 0F0,0B0")])
        return False
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in rows:
            if len(cells.rows) == MOST_RANKS:
                cells.fail([Fault(f"there are more than {MOST_RANKS:,} rows", MOST_RANKS)])
                return False
            cells.add_row(row)
    except csv.Error as error:
        cells.fail([Fault(f"is no CSV: {error}", len(cells.rows))])
        return False
    return True


def _checked_schedule(name: str, table: Table, cells: Cells) -> Schedule | None:
    """Return the schedule of a table, or None if it has faults; these are added to the cells."""

    def fail(findings: Iterable[Finding]) -> None:
        for numbers, describe in findings:
            cells.fail_each(numbers, describe)

    fail(check_rows(table))
    gaps, dense = check_numbers(table)
    fail(gaps)
    if not dense:
        return None
    numbers = table.numbers()
    fail(check_ops(table, numbers))
    placement, directions, strays = find_placement(table, numbers)
    fail(strays)
    if has_transfers(table):
        fail(check_transfers(table, numbers))
    if cells.faults or placement is None:
        return None
    ops = table.only(table.compute)
    try:
        return _make_schedule(
            name, ops, placement, directions, table.actions() if has_transfers(table) else None
        )
    except ScheduleError as error:  # no file is known to get here; if one does, report a fault
        cells.fail([Fault(str(error).removeprefix(f"{name}: "))])
        return None


def _make_schedule(
    name: str,
    ops: Table,
    placement: Placement,
    directions: Int8Array | None,
    listed: Actions | None,
) -> Schedule:
    count = np.bincount(ops.rank, minlength=len(ops.rows))
    return Schedule(
        name=name,
        placement=placement,
        microbatches=ops.microbatches,
        stage=ops.stage.astype(np.int32),
        kind=ops.kind.astype(np.int8),
        microbatch=ops.microbatch.astype(np.int32),
        slice=ops.slice.astype(np.int32),
        group=ops.group.astype(np.int32),
        offsets=np.append(0, np.cumsum(count)).astype(np.int64),
        fractions=(1.0 / ops.slices,) * ops.slices,
        directions=directions,  # type: ignore[arg-type]  # by default all 0
        listed=listed,
    )
