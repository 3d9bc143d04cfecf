"""Sweeps: a config, keys to vary, one row a point.

config + axes -> a study and its points -> blocks of points -> rows -> a table and its file.
"""

from contextlib import closing
from os import PathLike
from typing import TYPE_CHECKING, Any

from pipesim.base.errors import ConfigError
from pipesim.base.types import Progress
from pipesim.files.table_file import check_table_file, write_table
from pipesim.studies.sweep.backends import check_backend, run_blocks
from pipesim.studies.sweep.journal import add_rows, journal_path, open_journal
from pipesim.studies.sweep.rows import ERROR, NUMBERS, Row, blocks, make_table
from pipesim.studies.sweep.runs import sweep_runs
from pipesim.studies.sweep.study import Point, Study, read_study

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["NUMBERS", "sweep_axes", "sweep_config", "sweep_runs"]


def sweep_config(
    path: str | PathLike[str],
    overrides: dict[str, Any] | None = None,
    progress: Progress | None = None,
    *,
    jobs: int | None = None,
    backend: str = "loky",
    cluster: str | None = None,
    file: str | PathLike[str] | None = None,
    resume: bool = False,
) -> "pd.DataFrame":
    """Return a table with one row a point of the axes in a config's [sweep] section.

    Columns: `schedule`, `ranks`, `microbatches`, one column an axis under its key (a list as
    text), the numbers of the run as in `Run.summary`, among them `makespan_ms`, `inflation`,
    `bubble_fraction` and `closed_form_bubble_fraction`; `step_ms`, the makespan with what a
    section [training] adds, NaN for a schedule without an end of the step; and `error`: a point
    that cannot be run has no numbers, and says why. Of several replicas the numbers are the
    slowest one's. In `table.attrs` are the keys of the axes, `axes`, the same in groups that vary
    together, `together`, and the `mode`. The rows are the same, to the bit, however a sweep is run
    and whether or not it was interrupted.

    Parameters
    ----------
    path
        A config file with a section [sweep]: `axes`, a table of any keys to values
        (see `pipesim.config.axes`), and `mode`, "product" (every combination, the
        last axis fastest) or "zip".
    overrides
        Keys to set before anything is checked.
    progress
        Called with the number of points done and of all.
    jobs
        Number of workers; -1: one a core. By default 1 with loky, which is this process, and
        otherwise all that the cluster has.
    backend
        "loky", processes on this machine; "dask" or "ray", a cluster.
    cluster
        The address of the cluster; by default one is started on this machine.
    file
        A .csv or .parquet file to write the table to. Until then the rows that are done are kept
        in a journal beside it, named after it with `.partial` behind.
    resume
        Whether to go on with such a journal, where there is one.

    Raises
    ------
    ConfigError
        If the config or an axis is faulty, or every single point; or if there is a journal that
        is not to be resumed, or of another study.
    ValueError
        If the backend is unknown or not installed, or the file cannot be written in its format.
    """
    check_backend(jobs, backend, cluster)
    if file is not None:
        check_table_file(file)
    study, points = read_study(path, overrides)

    def run(rows: dict[int, Row], journal: Any = None) -> None:
        missing = [number for number in range(len(points)) if number not in rows]
        work = run_blocks(study, points, blocks(study, points, missing), jobs, backend, cluster)
        with closing(work):
            for numbers, found in work:
                if journal is not None:
                    add_rows(journal, numbers, found)
                for number, row in zip(numbers, found, strict=True):
                    rows[number] = row
                    if progress is not None:
                        progress(len(rows), len(points))

    if file is None:
        rows: dict[int, Row] = {}
        run(rows)
        return _table(study, points, rows)
    beside = journal_path(file)
    journal, rows = open_journal(beside, study.digest, len(points), resume)
    with journal:
        run(rows, journal)
    try:
        table = _table(study, points, rows)
    except ConfigError:
        beside.unlink()
        raise
    write_table(table, file)
    beside.unlink()
    return table


def sweep_axes(
    path: str | PathLike[str], overrides: dict[str, Any] | None = None
) -> dict[str, int]:
    """Return the number of values of each axis in a config's [sweep] section, without any run.

    Raises
    ------
    ConfigError
        If the section is missing or faulty.
    """
    study, points = read_study(path, overrides)
    columns = zip(*points, strict=True)
    return {key: len(set(map(repr, v))) for key, v in zip(study.keys, columns, strict=True)}


def _table(study: Study, points: list[Point], rows: dict[int, Row]) -> "pd.DataFrame":
    table = make_table(study, points, rows)
    if table[ERROR].notna().all():
        raise ConfigError(f"{study.name} at {study.where(points[0])}", [table[ERROR].iloc[0]])
    return table
