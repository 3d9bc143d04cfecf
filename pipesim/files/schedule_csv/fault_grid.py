"""The rows of a schedule file around its faults, with the faulty cells marked.

cell     1     2    3
row 1   0F0  >0F1< 0B0        0F1 has no backward
"""

from collections.abc import Iterator

from pipesim.files.schedule_csv.schedule_file import ScheduleFile

BEFORE, AFTER = 3, 8  # cells shown around the first fault of a picture
WHOLE_ROW = 12  # rows of up to this many cells are shown whole
MOST_ROWS, MOST_PICTURES = 8, 3
WIDEST = 24  # characters of a cell


def fault_grid(file: ScheduleFile) -> str:
    """Return the rows around the first faults of a file as text; "" if no fault has a cell.

    Examples
    --------
    >>> from pipesim.files.schedule_csv.schedule_file import Fault
    >>> rows = [["0F0", "0F1", "0B0"]]
    >>> print(fault_grid(ScheduleFile(path="", name="", faults=(Fault("", 0, 1),), rows=rows)))
    cell     1     2     3
    row 1   0F0  >0F1<  0B0
    """
    spots = dict.fromkeys(
        (fault.rank, fault.cell)
        for fault in file.faults
        if fault.rank is not None and fault.cell is not None
    )
    left = [(rank, cell) for rank, cell in spots if rank < len(file.rows)]
    pictures: list[str] = []
    while left and len(pictures) < MOST_PICTURES:
        first = left[0][1]
        # Rows short enough for a screen are shown whole.
        longest = max(len(file.rows[rank]) for rank, _ in left)
        start = 0 if longest <= WHOLE_ROW else max(0, first - BEFORE)
        window = range(start, longest if longest <= WHOLE_ROW else first + AFTER + 1)
        ranks = list(dict.fromkeys(rank for rank, cell in left if cell in window))[:MOST_ROWS]
        shown = {(r, c) for r, c in left if r in ranks and c in window}
        pictures.append("\n".join(_picture(file, ranks, window, shown)))
        left = [spot for spot in left if spot not in shown]
    return "\n\n".join(pictures)


def _picture(
    file: ScheduleFile, ranks: list[int], window: range, spots: set[tuple[int, int]]
) -> Iterator[str]:
    """Yield a header and one line a row, cells aligned."""
    window = range(window.start, min(window.stop, max(len(file.rows[rank]) for rank in ranks)))
    table = [[f" {cell + 1} " for cell in window]]
    for rank in ranks:
        row = file.rows[rank]
        texts = {cell: _short(row[cell]) for cell in window if cell < len(row)}
        table.append(
            [
                f">{texts[cell]}<" if (rank, cell) in spots else f" {texts.get(cell, '')} "
                for cell in window
            ]
        )
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    margin = len(f"row {max(ranks) + 1}")
    heads = ["cell", *(f"row {rank + 1}" for rank in ranks)]
    for head, cells in zip(heads, table, strict=True):
        before = "... " if window.start and head != "cell" else "    " if window.start else ""
        row = " ".join(text.center(width) for text, width in zip(cells, widths, strict=True))
        rank = 0 if head == "cell" else int(head.removeprefix("row ")) - 1
        after = " ..." if head != "cell" and len(file.rows[rank]) > window.stop else ""
        yield f"{head:<{margin}}  {before}{row.rstrip()}{after}"


def _short(text: str) -> str:
    """Return a cell on one line of ASCII, cut if it is long; `.` for a blank one."""
    plain = ascii(text.strip()[: 2 * WIDEST])[1:-1]
    return (plain if len(plain) <= WIDEST else f"{plain[: WIDEST - 3]}...") or "."
