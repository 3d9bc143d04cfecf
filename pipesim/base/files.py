"""File endings and libraries, and writing files so that no half-written one is left behind."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TypeGuard

FIGURE_ENDINGS = (".png", ".svg", ".pdf")
PAGE_ENDING = ".html"
GANTT_ENDINGS = (*FIGURE_ENDINGS, PAGE_ENDING)
TABLE_ENDINGS = (".csv", ".parquet")
VIEWER_ENDINGS = (".json", ".json.gz", ".pftrace")  # traces to open in a viewer
SCHEDULE_ENDING = ".csv"
CONFIG_ENDINGS = (".toml", ".yaml", ".yml", ".json")
LIBRARIES = {  # ending -> the module that writes it, and the extra with the module
    ".parquet": ("pyarrow", "parquet"),
    ".html": ("bokeh", "html"),
    ".pftrace": ("perfetto", "perfetto"),
}


def is_schedule_file(schedule: object) -> TypeGuard[str | os.PathLike[str]]:
    """Return whether a schedule is given as a file's path: a text that ends in .csv, or a Path.

    Examples
    --------
    >>> is_schedule_file("mine.csv"), is_schedule_file(Path("mine")), is_schedule_file("1f1b")
    (True, True, False)
    """
    if isinstance(schedule, str):
        return schedule.lower().endswith(SCHEDULE_ENDING)
    return isinstance(schedule, os.PathLike)


def check_library(name: str) -> None:
    """Check that the library that writes a file of this name is installed.

    Raises
    ------
    ValueError
        If it is not; the message names the extra to install.
    """
    for ending, (module, extra) in LIBRARIES.items():
        if name.lower().endswith(ending) and find_spec(module) is None:
            raise ValueError(f"{name}: needs {module}; pip install 'pipesim[{extra}]'")


def has_ending(path: str | os.PathLike[str], endings: Sequence[str]) -> bool:
    """Return whether a file's name is a stem with one of some endings, whatever the case.

    Examples
    --------
    >>> has_ending("out/run.JSON.gz", (".json.gz",)), has_ending(".json", (".json",))
    (True, False)
    """
    name = Path(path).name.lower()
    return any(name.endswith(ending) and name != ending for ending in endings)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path` to write to; rename it to `path` if all goes well.

    The temporary file has the same ending, because writers choose their format by it. If the
    body fails, it is removed and whatever was at `path` stays.

    Examples
    --------
    >>> target = Path(tempfile.mkdtemp()) / "out.txt"
    >>> with replacing(target) as temporary:
    ...     _ = temporary.write_text("done")
    >>> target.read_text()
    'done'
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".", suffix=target.suffix, dir=target.parent)
    except OSError as error:  # it names the temporary file
        raise OSError(error.errno, error.strerror, str(path)) from None
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes private files; give the result the mode of any other new file.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
