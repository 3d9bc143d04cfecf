"""The journal of a sweep: what is done, line by line beside the file that is written at the end.

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

from pipesim.errors import ConfigError
from pipesim.sweep.rows import RESULTS, Row

VERSION = 1


def journal_path(file: str | PathLike[str]) -> Path:
    """Return where the journal of a table lies.

    Examples
    --------
    >>> journal_path("out/sweep.csv").as_posix()
    'out/sweep.csv.partial'
    """
    return Path(f"{file}.partial")


def open_journal(
    path: Path, digest: str, points: int, resume: bool
) -> tuple[TextIO, dict[int, Row]]:
    """Return a journal to write to, and the rows that are in it already.

    Parameters
    ----------
    path
        Its file.
    digest, points
        Of the study.
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
    lines = list(_good_lines(path))
    if not lines or lines[0] != head:
        way = "give the config and the axes that it began with, or delete it"
        raise ConfigError(str(path), [f"these rows are of another study: {way}"])
    done = {line["point"]: line["row"] for line in lines[1:]}
    if not all(0 <= number < points and len(row) == len(RESULTS) for number, row in done.items()):
        raise ConfigError(str(path), ["is no journal of a sweep: delete it"])
    file = path.open("r+", encoding="utf-8")
    file.seek(0)
    file.truncate()
    _write(file, [head, *({"point": number, "row": row} for number, row in done.items())])
    return file, done


def add_rows(file: TextIO, numbers: Sequence[int], rows: Sequence[Row]) -> None:
    """Write the rows of some points, and see to it that they leave this process."""
    pairs = zip(numbers, rows, strict=True)
    _write(file, [{"point": number, "row": row} for number, row in pairs])


def _write(file: TextIO, lines: Sequence[Any]) -> None:
    file.write("".join(f"{json.dumps(line)}\n" for line in lines))
    file.flush()


def _good_lines(path: Path) -> list[Any]:
    """Return the lines of a journal up to the first that is cut off."""
    lines = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
        try:
            lines.append(json.loads(line))
        except ValueError:
            break
        if not line.endswith("\n"):
            lines.pop()
            break
    return lines
