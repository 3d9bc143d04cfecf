"""The trace of a run in a file: a table, or something to open in a trace viewer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from pipesim.base.files import TABLE_ENDINGS, VIEWER_ENDINGS, check_library, has_ending
from pipesim.base.text import plural
from pipesim.files.table_file import write_table
from pipesim.files.traces.chrome import write_chrome_trace
from pipesim.files.traces.perfetto import write_perfetto_trace
from pipesim.files.traces.viewer import Counter, ViewerTrace, viewer_trace
from pipesim.report.run_config import run_config
from pipesim.report.run_text import headline
from pipesim.run.memory import flight_noun, in_flight_of_ranks
from pipesim.run.run import Run
from pipesim.run.step import Step

if TYPE_CHECKING:
    import pandas as pd


def write_trace(
    run: Run | Step, path: str | PathLike[str], *, options: Mapping[str, Any] | None = None
) -> None:
    """Write the trace of a run or a step, in the format that the file's ending names.

    A table has one row a span, as `Run.trace` has it. A trace for viewers has a process a rank,
    of each replica, with threads for its compute and its links; arrows from each op that sends a
    message to the one that takes it; micro-batches in flight and bytes held as counters; and what
    was run in its metadata.

    Parameters
    ----------
    run
        What was simulated.
    path
        The file: .csv or .parquet, a table; .json or .json.gz, Chrome's format, which
        chrome://tracing and ui.perfetto.dev open and `read_chrome_trace` reads back; .pftrace,
        Perfetto's own, which is smaller.
    options
        Options of the schedule, for the metadata: a run does not know what its schedule was made
        with.

    Raises
    ------
    ValueError
        If the ending is another, the library for it is not installed, a time is too long to be
        told to the nanosecond, or all times are shorter than one.
    OSError
        If the file cannot be written; whatever was there stays.

    Examples
    --------
    >>> from json import loads
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> import pipesim as ps
    >>> pipe = ps.Pipeline.from_costs(forward=[1, 1], backward=[2, 2])
    >>> path = Path(mkdtemp()) / "trace.json"
    >>> write_trace(ps.simulate(pipe, "1f1b", microbatches=2), path)
    >>> events = loads(path.read_text())["traceEvents"]
    >>> [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == 1][:3]
    [('1F0', 1000.0, 1000.0), ('1B0', 2000.0, 2000.0), ('1SEND_B0', 4000.0, 0.0)]
    """
    if not has_ending(path, TABLE_ENDINGS + VIEWER_ENDINGS):
        known = ", ".join(TABLE_ENDINGS + VIEWER_ENDINGS)
        raise ValueError(f"{path}: the ending of a trace is one of {known}")
    check_library(str(path))
    if has_ending(path, TABLE_ENDINGS):
        write_table(run.trace, path)
    elif has_ending(path, (".pftrace",)):
        write_perfetto_trace(_shown(run, options), path)
    else:
        write_chrome_trace(_shown(run, options), path)


def _shown(run: Run | Step, options: Mapping[str, Any] | None) -> ViewerTrace:
    """Return what viewers show of a run."""
    runs = run.runs if isinstance(run, Step) else (run,)
    slowest = runs[run.slowest_replica] if isinstance(run, Step) else run
    metadata = {
        "title": headline(slowest),
        "pipesim": version("pipesim"),
        "config": run_config(slowest, options),
        **({"training": asdict(run.training)} if isinstance(run, Step) else {}),
        "summary": run.summary(),
    }
    return viewer_trace(run.trace, list(_counters(runs)), metadata)


def _counters(runs: Sequence[Run]) -> Iterator[Counter]:
    """Yield what the ranks of all replicas have in flight over time, and bytes held if any."""
    flights = [in_flight_of_ranks(run.in_flight) for run in runs]
    yield _counter("in flight", plural(flight_noun(runs[0].schedule)), flights, "in_flight")
    if any(max(run.peak_memory) for run in runs):
        yield _counter("memory", "bytes", [run.memory for run in runs], "total")


def _counter(name: str, unit: str, tables: Sequence["pd.DataFrame"], column: str) -> Counter:
    """Return a column of the tables of all replicas, which have a rank and a time, as a counter."""
    ranks = int(tables[0]["rank"].max()) + 1
    processes = [replica * ranks + table["rank"].to_numpy() for replica, table in enumerate(tables)]
    time, value = (
        np.concatenate([table[which].to_numpy() for table in tables]) for which in ("time", column)
    )
    return Counter(name, unit, np.concatenate(processes), time, value)
