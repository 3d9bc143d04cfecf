"""A run as trace viewers show it: slices on tracks, arrows between them, counters.

    rank 0                                       a process is a rank, of each replica
      compute      [2F0 ]                        its threads: what it computes,
      to rank 1         |[ 2SEND_F0 ]            what it sends to each rank, what holds it in
    rank 1                          |            exchanges, its collectives
      compute                       |[3F0 ]

The slices of a thread never overlap, as viewers garble those that do: where they would, there are
further threads, "compute (2)". An arrow leads from the op that makes a message through the slice
of the link to the op that takes it. Times are whole nanoseconds, so that neighbours meet exactly.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pipesim.base.ops import Kind
from pipesim.base.types import FloatArray, Int32Array, IntArray
from pipesim.engine.trace import KINDS, RESOURCES
from pipesim.files.traces.tracks import Track, tracks_of

if TYPE_CHECKING:
    import pandas as pd

NS_A_MS = 1e6
MOST_NS = 10**15  # a float holds microseconds of up to 15 digits exactly
BLOCK = 50_000  # slices that are in memory at a time
COMPUTE, LINK = RESOURCES.index("compute"), RESOURCES.index("link")
FORWARDS = (Kind.F, Kind.SEND_F, Kind.RECV_F)
NO_MESSAGE = -1
# Whole-number columns of the span table, and the value that stands for none.
NUMBERS = {"rank": None, "stage": None, "chunk": None, "microbatch": -1, "slice": 0}
NUMBERS |= {"group": -1, "replica": 0}


class Slice(NamedTuple):
    """A row of the span table, as it is shown; times in nanoseconds.

    `carried`, `taken` and `sent` are numbers of messages, -1 for none: the message that a slice
    of a link carries, the message that an op takes, and the message with the op's output.
    """

    row: int
    rank: int
    stage: int
    chunk: int
    microbatch: int
    slice: int
    group: int
    replica: int
    resource: str
    kind: str
    process: int
    thread: int
    track: int
    ready: int
    start: int
    end: int
    carried: int
    taken: int
    sent: int

    @property
    def name(self) -> str:
        """The op as text: 2F0, or 2F0.1 for a slice of a micro-batch; 2REDUCE at a step's end."""
        part = f".{self.slice}" if self.slice else ""
        return f"{self.stage}{self.kind}{self.microbatch if self.microbatch >= 0 else ''}{part}"


class Counter(NamedTuple):
    """A quantity of each process over time, one entry a change.

    Parameters
    ----------
    name, unit
        Such as "in flight" and "micro-batches".
    process
        Number of the process, array (changes,).
    time
        Time of the change [ms], array (changes,).
    value
        Value from then on, array (changes,).
    """

    name: str
    unit: str
    process: Int32Array
    time: FloatArray
    value: IntArray

    def changes(self) -> Iterator[tuple[int, int, int]]:
        """Return the process, the time [ns] and the value of every change."""
        columns = (self.process, nanoseconds(self.time), self.value)
        return zip(*(column.tolist() for column in columns), strict=True)


@dataclass(frozen=True, slots=True, eq=False)
class ViewerTrace:
    """The slices, tracks, counters and metadata of a trace, whatever its format.

    Parameters
    ----------
    processes
        Names of the processes.
    tracks
        The threads of all processes.
    columns
        The fields of `Slice` as arrays (slices,), in the order in which they are written: by
        time, and what makes a message before what takes it.
    counters
        Shown below the slices of each process.
    metadata
        Description of the run, as plain values; its `title` is text.
    """

    processes: tuple[str, ...]
    tracks: tuple[Track, ...]
    columns: Mapping[str, Any]
    counters: tuple[Counter, ...]
    metadata: Mapping[str, Any]

    def slices(self) -> Iterator[Slice]:
        """Return the slices, one after the other; only a block of them is in memory at once."""
        columns = [self.columns[name] for name in Slice._fields]
        for first in range(0, len(columns[0]), BLOCK):
            block = (column[first : first + BLOCK].tolist() for column in columns)
            yield from map(Slice._make, zip(*block, strict=True))


def viewer_trace(
    spans: "pd.DataFrame",
    counters: Sequence[Counter] = (),
    metadata: Mapping[str, Any] | None = None,
) -> ViewerTrace:
    """Return the trace for viewers of a span table: slices on tracks, messages and counters.

    Parameters
    ----------
    spans
        The whole span table of a run or a step, with the columns of `pipesim.engine.trace`.
    counters, metadata
        As for `ViewerTrace`. A `note` is added where some spans are too short to be seen.

    Raises
    ------
    ValueError
        If a time is too long to be exact to the nanosecond, or all spans are shorter than one.
    """
    columns = {str(name): column.to_numpy() for name, column in spans.items()}
    columns |= {name: spans[name].cat.codes.to_numpy() for name in ("resource", "kind")}
    note = _note(columns["start"], columns["end"])
    columns |= {name: nanoseconds(columns[name]) for name in ("ready", "start", "end")}
    columns["row"] = np.arange(len(spans))
    ranks, replicas = int(columns["rank"].max()) + 1, int(columns["replica"].max()) + 1
    columns["process"] = columns["replica"] * ranks + columns["rank"]
    target = _add_messages(columns)
    order = np.lexsort((_way(columns), columns["end"], columns["start"]))
    columns = {name: column[order] for name, column in columns.items()}
    columns["track"], tracks = tracks_of(columns, target[order], ranks * replicas)
    columns["thread"] = np.array([track.thread for track in tracks])[columns["track"]]
    for name, texts in (("resource", RESOURCES), ("kind", KINDS)):
        columns[name] = np.array(texts, dtype=object)[columns[name]]
    names = tuple(
        f"replica {replica}, rank {rank}" if replicas > 1 else f"rank {rank}"
        for replica in range(replicas)
        for rank in range(ranks)
    )
    return ViewerTrace(names, tracks, columns, tuple(counters), {**(metadata or {}), **note})


def _note(start: FloatArray, end: FloatArray) -> dict[str, str]:
    """Return a note on spans [ms] that are shown as if they took no time; empty if none is.

    Raises
    ------
    ValueError
        If that holds for all spans that take time.
    """
    taken = end - start > 8 * np.spacing(end)  # less is rounding
    lost = taken & (nanoseconds(end) == nanoseconds(start))
    if not lost.any():
        return {}
    if (lost == taken).all():
        raise ValueError(
            "a trace for viewers is in whole nanoseconds, and all spans of this one are shorter, "
            f"up to {(end - start).max():g} ms: write .csv or .parquet, or give times in smaller "
            "units"
        )
    count = f"{lost.sum()} of {len(lost)} spans"
    return {"note": f"{count} take less than a nanosecond, and stand here as if they took none"}


def _add_messages(columns: dict[str, Any]) -> Int32Array:
    """Add the messages that each slice carries, takes and sends; return each link's receiver.

    The receiving rank of each slice of a link, array (slices,); -1 for the other slices.
    """
    kind, resource = columns["kind"], columns["resource"]
    forwards = np.isin(kind, FORWARDS)
    names = ("replica", "stage", "microbatch", "slice")
    sizes = [int(columns[name].max()) + 1 for name in names]
    sizes[2] = max(sizes[2], 1)

    def place(rows: IntArray, stages_on: int | IntArray = 0) -> IntArray:
        replica, stage, microbatch, part = (columns[name][rows] for name in names)
        index = (forwards[rows].astype(int), replica, stage + stages_on, microbatch, part)
        return np.ravel_multi_index(index, (2, *sizes))

    passing = np.flatnonzero((resource == COMPUTE) & np.isin(kind, (Kind.F, Kind.B, Kind.I)))
    op_at = np.full(2 * np.prod(sizes), -1)
    op_at[place(passing)] = passing
    link = np.flatnonzero(resource == LINK)
    source = op_at[place(link)]
    taker = op_at[place(link, np.where(forwards[link], 1, -1))]
    message = np.arange(len(link))
    for name, rows in (("carried", link), ("taken", taker), ("sent", source)):
        columns[name] = np.full(len(kind), NO_MESSAGE)
        columns[name][rows] = message
    target = np.full(len(kind), -1, dtype=np.int32)
    target[link] = columns["rank"][taker]
    return target


def _way(columns: Mapping[str, Any]) -> IntArray:
    """Return the sort key of simultaneous slices that take no time: the way of their messages.

    Array (slices,): a message comes after the op that sends it, and before the op that takes it.
    In an overlapped pair the forward comes first.
    """
    stage = columns["stage"].astype(np.int64)
    stages = stage.max() + 1
    place = np.where(np.isin(columns["kind"], FORWARDS), stage, 2 * stages - stage)
    way: IntArray = 2 * place + (columns["resource"] == LINK)
    return way


def nanoseconds(times: FloatArray) -> IntArray:
    """Return times given in milliseconds as whole nanoseconds [ns].

    Raises
    ------
    ValueError
        If a time is too long to be exact.
    """
    rounded = np.rint(times * NS_A_MS)
    if not (np.abs(rounded) <= MOST_NS).all():
        raise ValueError(
            f"a trace for viewers goes up to {MOST_NS / NS_A_MS:g} ms to the nanosecond, this one "
            f"has {np.abs(times).max():g} ms: write .csv or .parquet, or give times in larger units"
        )
    whole: IntArray = rounded.astype(np.int64)
    return whole
