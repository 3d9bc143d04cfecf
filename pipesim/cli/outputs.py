"""Output of the commands: files, JSON and a progress bar."""

import json
import os
import sys
from collections.abc import Iterable
from math import inf, nan
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pipesim.base.files import PAGE_ENDING, check_library, has_ending

if TYPE_CHECKING:
    from pipesim.run.run import Run
    from pipesim.run.step import Step


def check_output(flag: str, path: str | None, endings: tuple[str, ...]) -> None:
    """Check, before anything is run, that an output file can be written.

    Raises
    ------
    ValueError
        If its ending is unknown, the library for it is not installed, or it cannot be written.
    """
    if path is None:
        return
    if not has_ending(path, endings):
        raise ValueError(f"{flag} {path}: the ending must be {', '.join(endings)}")
    check_library(f"{flag} {path}")
    folder = Path(path).parent
    if Path(path).is_dir():
        raise ValueError(f"{flag} {path}: is a directory")
    while not folder.exists():
        folder = folder.parent
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise ValueError(f"{flag} {path}: nothing can be written into {folder}")


def to_json(value: Any) -> str:
    """Return plain values as JSON, numbers in full precision, and never NaN."""
    return json.dumps(value, indent=2, allow_nan=False)


def write_gantt(
    runs: "Run | Step | list[Run]",
    path: str,
    *,
    critical_path: bool = False,
    window: tuple[float, float] | None = None,
    notes: Iterable[str] = (),
) -> None:
    """Write the Gantt chart of a run or a step, or those of several runs under each other.

    A page has the critical path in any case, to be shown or hidden; and notes, which a picture
    has no room for.
    """
    from pipesim.plot import gantt, save, write_html

    if has_ending(path, (PAGE_ENDING,)):
        write_html(runs, path, critical_path=critical_path, window=window, notes=notes)
    else:
        save(gantt(runs, critical_path=critical_path), path)
    tell(path)


def read_window(text: str | None, path: str | None) -> tuple[float, float] | None:
    """Return begin and end [ms] of the window of a run that a page is to show.

    Raises
    ------
    ValueError
        If the text is not two numbers, the second larger, or the file is no page.
    """
    if text is None:
        return None
    if path is None or not has_ending(path, (PAGE_ENDING,)):
        raise ValueError(f"--window {text}: is for a page: give --gantt FILE{PAGE_ENDING}, too")
    try:
        begin, end = map(float, text.split(":"))
    except ValueError:
        begin, end = nan, nan
    if not 0 <= begin < end < inf:
        raise ValueError(f"--window {text}: is not BEGIN:END in ms, such as 0:250.5")
    return begin, end


def tell(path: str) -> None:
    """Print on standard error that a file was written."""
    print(f"wrote {path}", file=sys.stderr)


class ProgressBar:
    """A bar on standard error, for work of over a second or so, and only on a terminal.

    It is a progress hook: called with the amount of work done and the amount in all.
    """

    def __init__(self, unit: str) -> None:
        from tqdm import tqdm

        self.bar = tqdm(unit=unit, unit_scale=True, disable=None, leave=False, delay=1.0)

    def __call__(self, done: int, total: int) -> None:
        """Show the amount of work done; if it is less than before, a next piece of work begins."""
        if done < self.bar.n:
            self.bar.reset()
        self.bar.total = total
        self.bar.update(done - self.bar.n)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.close()
