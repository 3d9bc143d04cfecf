"""Chrome's trace format, which chrome://tracing and ui.perfetto.dev open, and reading it back.

One JSON object, an event a line:

    {"displayTimeUnit": "ms", "otherData": {...}, "traceEvents": [
    {"ph": "M", ...}        names and places of processes (ranks) and threads
    {"ph": "X", ...}        a slice: a row of the span table, whole in its args
    {"ph": "s"|"t"|"f"}     an arrow: leaves an op, goes over a link, reaches an op
    {"ph": "C", ...}]}      a counter's new value

Times are in microseconds with three decimals. A file that ends in .gz is compressed.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from pipesim.base.errors import ConfigError
from pipesim.base.files import replacing
from pipesim.engine.trace import COLUMNS, KINDS, RESOURCES, category
from pipesim.files.traces.viewer import NS_A_MS, NUMBERS, Slice, ViewerTrace

if TYPE_CHECKING:
    import pandas as pd

COMPRESSION = 5  # of 9; more takes longer and gains little
MOST_TOGETHER = 10_000  # events that are written at a time
OURS = "pipesim"  # the metadata key that marks a file of pipesim's
GZIP = b"\x1f\x8b"  # how compressed files begin
TIMES = ("ready", "start", "end")
LEFT_OUT = {name: none for name, none in NUMBERS.items() if none is not None}
TEXTS = {"resource": RESOURCES, "kind": KINDS}


def write_chrome_trace(trace: ViewerTrace, path: str | PathLike[str]) -> None:
    """Write a trace in Chrome's format, whole or not at all; the same trace gives the same bytes.

    Parameters
    ----------
    trace
        The trace; its metadata have the version of `pipesim` that made it.
    path
        The file; one that ends in .gz is compressed.

    Raises
    ------
    OSError
        If the file cannot be written; whatever was there stays.
    """
    packed = Path(path).suffix.lower() == ".gz"
    metadata = json.dumps(trace.metadata, allow_nan=False)
    with replacing(path) as temporary, _opened(temporary, packed) as file:
        file.write(f'{{"displayTimeUnit":"ms","otherData":{metadata},"traceEvents":['.encode())
        events, before = _events(trace), "\n"
        while part := list(islice(events, MOST_TOGETHER)):
            file.write((before + ",\n".join(part)).encode())
            before = ",\n"
        file.write(b"\n]}\n")


@contextmanager
def _opened(path: Path, packed: bool) -> Iterator[IO[bytes]]:
    with path.open("wb") as raw:
        if not packed:
            yield raw
            return
        # Neither a name nor a time stamp, so that the same run gives the same bytes.
        with gzip.GzipFile("", "wb", COMPRESSION, raw, mtime=0) as file:
            yield file  # type: ignore[misc]  # it writes bytes, too


def _events(trace: ViewerTrace) -> Iterator[str]:
    first = len(trace.processes) + 1  # the first thread of any process
    for process, name in enumerate(trace.processes):
        yield _named("process", process, first, name, process)
    for track in trace.tracks:
        yield _named("thread", track.process, track.thread, track.name, track.thread)
    for shown in trace.slices():
        yield _slice_event(shown)
        yield from _arrow_events(shown)
    for counter in trace.counters:
        name, unit = json.dumps(counter.name), json.dumps(counter.unit)
        for process, time, value in counter.changes():
            yield (
                f'{{"ph":"C","name":{name},"pid":{process},"tid":{first},'
                f'"ts":{time / 1000},"args":{{{unit}:{value}}}}}'
            )


def _named(what: str, process: int, thread: int, name: str, place: int) -> str:
    """Return the two metadata events with the name and the sort index of a process or thread."""
    of = {"ph": "M", "pid": process, "tid": thread}
    return ",\n".join(
        json.dumps({**of, "name": f"{what}_{key}", "args": args}, separators=(",", ":"))
        for key, args in (("name", {"name": name}), ("sort_index", {"sort_index": place}))
    )


def _slice_event(shown: Slice) -> str:
    more = ""  # the optional fields that are set
    if shown.microbatch >= 0:
        more = f',"microbatch":{shown.microbatch}'
    if shown.slice:
        more += f',"slice":{shown.slice}'
    if shown.group >= 0:
        more += f',"group":{shown.group}'
    if shown.replica:
        more += f',"replica":{shown.replica}'
    return (
        f'{{"ph":"X","name":"{shown.name}","cat":"{shown.kind}","pid":{shown.process},'
        f'"tid":{shown.thread},"ts":{shown.start / 1000},"dur":{(shown.end - shown.start) / 1000},'
        f'"args":{{"row":{shown.row},"rank":{shown.rank},"resource":"{shown.resource}",'
        f'"stage":{shown.stage},"chunk":{shown.chunk}{more},"ready_us":{shown.ready / 1000}}}}}'
    )


def _arrow_events(shown: Slice) -> Iterator[str]:
    """Yield the events of the arrows that end at a slice, pass through it or start from it.

    A viewer binds an event to the slice around its time, so the events lie inside: at the ends of
    a slice another may end or begin. A slice of up to a nanosecond has no room for that.
    """
    inside = shown.start + (shown.end - shown.start >= 2)
    for phase, message, time in (
        ("f", shown.taken, inside),
        ("t", shown.carried, inside),
        ("s", shown.sent, max(shown.start, shown.end - 1)),
    ):
        if message >= 0:
            bound = "" if phase == "s" else ',"bp":"e"'
            yield (
                f'{{"ph":"{phase}","name":"message","cat":"message","id":{message},'
                f'"pid":{shown.process},"tid":{shown.thread},"ts":{time / 1000}{bound}}}'
            )


def read_chrome_trace(path: str | PathLike[str]) -> "pd.DataFrame":
    """Return the span table in a trace in Chrome's format.

    It has the columns and rows of `Run.trace` or `Step.trace`, with times to the nanosecond.

    Parameters
    ----------
    path
        A .json or .json.gz file that pipesim wrote.

    Raises
    ------
    ConfigError
        If the file cannot be read, is damaged, or was not written by pipesim.

    Examples
    --------
    >>> import pipesim as ps
    >>> from tempfile import mkdtemp
    >>> pipe = ps.Pipeline.from_costs(forward=[1, 1], backward=[2, 2], latency_ms=0.5)
    >>> run, path = ps.simulate(pipe, "1f1b", microbatches=2), Path(mkdtemp()) / "trace.json"
    >>> ps.write_trace(run, path)
    >>> read_chrome_trace(path).equals(run.trace)
    True
    """
    fields: dict[str, list[Any]] = {name: [] for name in (*COLUMNS, "row")}

    def keep(table: dict[str, Any]) -> dict[str, Any] | None:
        """Keep the fields of a slice, and nothing of any other event: a file may hold millions."""
        if "ph" not in table:
            return table
        if table["ph"] == "X":
            args = LEFT_OUT | table["args"] | {"kind": table["cat"]}
            args |= {"ready": args["ready_us"], "start": table["ts"], "end": table["dur"]}
            for name, values in fields.items():
                values.append(args[name])
        return None

    try:
        document = json.loads(_content(path), object_hook=keep)
        metadata = document.get("otherData") if isinstance(document, dict) else None
        if not isinstance(metadata, dict) or OURS not in metadata:
            reason = "pipesim did not write it, and can read back only what `write_trace` writes"
            raise ConfigError(str(path), [f"otherData.{OURS} is missing: {reason}"])
        if not isinstance(document.get("traceEvents"), list):
            raise ConfigError(str(path), ["traceEvents is missing; write the file again"])
        return _span_table(fields)
    except ConfigError:
        raise
    except KeyError as error:
        raise ConfigError(str(path), [f"traceEvents: a slice lacks {error}"]) from None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ConfigError(str(path), [f"is malformed: {error}; write it again"]) from None


def _content(path: str | PathLike[str]) -> str:
    """Return the text of a file, compressed or not.

    Raises
    ------
    ConfigError
        If it cannot be read or decompressed.
    """
    try:
        content = Path(path).read_bytes()
        packed = content.startswith(GZIP)
        return (gzip.decompress(content) if packed else content).decode()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        fault = f"is damaged: {error}; write it, or fetch it, again"
    except OSError as error:
        fault = f"cannot be read: {error.strerror}"
    raise ConfigError(str(path), [fault])


def _span_table(fields: dict[str, list[Any]]) -> "pd.DataFrame":
    """Return the span table from its columns, times in microseconds; `end` holds durations."""
    import pandas as pd

    row_order = np.argsort(fields.pop("row"), kind="stable")
    columns: dict[str, Any] = {}
    for name, values in fields.items():
        if name in TEXTS:
            codes = {text: code for code, text in enumerate(TEXTS[name])}
            columns[name] = category(np.array([codes[text] for text in values]), TEXTS[name])
        elif name in TIMES:
            columns[name] = np.rint(np.array(values, dtype=np.float64) * 1000)
        else:
            columns[name] = np.array(values, dtype=np.int32)
    columns["end"] += columns["start"]
    for name in TIMES:
        columns[name] /= NS_A_MS
    return pd.DataFrame(columns).iloc[row_order].reset_index(drop=True)
