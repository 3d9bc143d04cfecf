"""The journal of a sweep: the rows done so far, in a file beside that of the table.

    {"pipesim sweep": 1, "digest": "5f0c..", "points": 6}
    {"point": 0, "row": ["gpipe", 4, 2, 15.0, ...]}

A line is there as soon as its run has ended, so that whatever stops a sweep, only the runs under
way are lost. A last line that was cut off counts as not done.
"""

import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TextIO

from pipesim.base.errors import ConfigError
from pipesim.studies.sweep.rows import RESULTS, Row

VERSION = 1


def journal_path(file: str | PathLike[str]) -> Path:
    """Return the path of a table's journal.

    Examples
    --------
    >>> journal_path("out/sweep.csv").as_posix()
    'out/sweep.csv.partial'
    """
    return Path(f"{file}.partial")


def open_journal(
    path: Path, digest: str, points: int, resume: bool
) -> tuple[TextIO, dict[int, Row]]:
    """Return the open journal of a sweep, and the rows in it by number of the point.

    Parameters
    ----------
    path
        File of the journal.
    digest, points
        Hash of the study, and its number of points.
    resume
        Whether to go on with a journal that is there.

    Raises
    ------
    ConfigError
        If there is one although nothing is to be resumed, or it is of another study.
    """
    head = {"pipesim sweep": VERSION, "digest": digest, "points": points}
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w", encoding="utf-8")
        _write(file, [head])
        return file, {}
    if not resume:
        way = "go on with it (--resume, or resume=True), or delete it"
        raise ConfigError(str(path), [f"an interrupted sweep has left its rows here: {way}"])
    if not path.is_file():
        raise ConfigError(str(path), ["is no file, and there the rows are to be kept: move it"])
    lines, length = _good_lines(path)
    if not lines or lines[0] != head:
        way = "give the config and the axes that it began with, or delete it"
        raise ConfigError(str(path), [f"these rows are of another study: {way}"])
    if not all(_is_row(line, points) for line in lines[1:]):
        raise ConfigError(str(path), ["is no journal of a sweep: delete it"])
    with path.open("r+b") as cut:
        cut.truncate(length)  # what was cut off is not done
    file = path.open("a", encoding="utf-8")
    return file, {line["point"]: line["row"] for line in lines[1:]}


def add_rows(file: TextIO, numbers: Sequence[int], rows: Sequence[Row]) -> None:
    """Append the rows of some points, and flush them out of this process."""
    pairs = zip(numbers, rows, strict=True)
    _write(file, [{"point": number, "row": row} for number, row in pairs])


def _write(file: TextIO, lines: Sequence[Any]) -> None:
    file.write("".join(f"{json.dumps(line)}\n" for line in lines))
    file.flush()


def _good_lines(path: Path) -> tuple[list[Any], int]:
    """Return the lines of a journal before the first that is cut off, and their length [bytes]."""
    lines, length = [], 0
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            found = json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n"):
            break
        lines.append(found)
        length += len(line)
    return lines, length


def _is_row(line: Any, points: int) -> bool:
    if not isinstance(line, dict) or set(line) != {"point", "row"}:
        return False
    number, row = line["point"], line["row"]
    fits = type(number) is int and 0 <= number < points
    return fits and isinstance(row, list) and len(row) == len(RESULTS)
