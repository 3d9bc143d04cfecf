"""Perfetto's own trace format, which ui.perfetto.dev opens: what Chrome's has, in fewer bytes.

A file is a sequence of packets: first the names of kinds and arguments, each with a number, then
a descriptor of every track, then the begin and the end of every slice and the values of the
counters. Ranks are tracks with tracks of their own, below one of the whole run, which keeps them
in order. An arrow is a number that slices share.
"""

import json
from collections.abc import Callable, Iterator
from itertools import count
from os import PathLike
from typing import TYPE_CHECKING, TypeAlias

from pipesim.base.files import check_library, replacing
from pipesim.engine.trace import KINDS, RESOURCES
from pipesim.files.traces.viewer import NUMBERS, Slice, ViewerTrace

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

    New: TypeAlias = Callable[..., TracePacket]  # adds a packet with some fields

MOST_TOGETHER = 5_000  # packets that are turned into bytes at a time
SEQUENCE = 1  # all packets are of one sequence, which shares its names
CLEARED, NEEDED = 1, 2  # flags of a packet: it starts new names, or needs those before
EXPLICIT = 3  # the tracks below a track are ordered by their sibling_order_rank
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4  # types of events
ROOT = 1  # the track of the whole run; those of ranks, threads and counters follow
# Names of arguments, numbered from 1; whole-number arguments are in the order of Slice's fields.
ARGUMENTS = ("row", *NUMBERS, "resource", "ready_us")
RESOURCE, READY = len(ARGUMENTS) - 1, len(ARGUMENTS)
NONES = (None, *NUMBERS.values())


def write_perfetto_trace(trace: ViewerTrace, path: str | PathLike[str]) -> None:
    """Write a trace in Perfetto's format, whole or not at all; the same trace gives the same bytes.

    Parameters
    ----------
    trace
        The trace; its metadata have a `title`.
    path
        The file.

    Raises
    ------
    ValueError
        If the library perfetto is not installed.
    OSError
        If the file cannot be written; whatever was there stays.
    """
    check_library(str(path))
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    with replacing(path) as temporary, temporary.open("wb") as file:
        part = Trace()

        def new(**fields: int) -> "TracePacket":
            return part.packet.add(trusted_packet_sequence_id=SEQUENCE, **fields)

        for _ in _packets(trace, new):
            if len(part.packet) >= MOST_TOGETHER:
                # Concatenated traces are one trace, so that only a part is ever in memory.
                file.write(part.SerializeToString())
                part = Trace()
        file.write(part.SerializeToString())


def _packets(trace: ViewerTrace, new: "New") -> Iterator[None]:
    """Add all packets of a trace; yield after each slice and each change of a counter."""
    ranks = range(ROOT + 1, ROOT + 1 + len(trace.processes))
    threads = range(ranks.stop, ranks.stop + len(trace.tracks))
    _add_names(new)
    _add_track(new, ROOT, trace.metadata["title"])
    for rank, name in zip(ranks, trace.processes, strict=True):
        _add_track(new, rank, name, ROOT)
    for thread, track in zip(threads, trace.tracks, strict=True):
        _add_track(new, thread, track.name, ranks[track.process])
    _add_what_was_run(new, trace)
    for shown in trace.slices():
        _add_slice(new, shown, threads[shown.track])
        yield
    free = count(threads.stop)
    for counter in trace.counters:
        tracks = {process: next(free) for process in sorted(set(counter.process.tolist()))}
        for process, number in tracks.items():
            _add_track(new, number, counter.name, ranks[process], unit_name=counter.unit)
        for process, time, value in counter.changes():
            _add_event(new, time, COUNTER, tracks[process]).track_event.counter_value = value
            yield


def _add_names(new: "New") -> None:
    """Add the packet that numbers the texts of kinds, arguments and resources."""
    packet = new(sequence_flags=CLEARED)
    named = packet.interned_data
    for number, text in enumerate(KINDS, start=1):
        named.event_categories.add(iid=number, name=text)
    for number, text in enumerate(ARGUMENTS, start=1):
        named.debug_annotation_names.add(iid=number, name=text)
    for number, text in enumerate(RESOURCES, start=1):
        named.debug_annotation_string_values.add(iid=number, str=text.encode())


def _add_track(
    new: "New", number: int, name: str, parent: int | None = None, unit_name: str | None = None
) -> None:
    """Add a track; those below the same parent are ordered by their numbers."""
    track = new().track_descriptor
    track.uuid, track.name, track.child_ordering = number, name, EXPLICIT
    if parent is not None:
        track.parent_uuid, track.sibling_order_rank = parent, number
    if unit_name is not None:
        track.counter.unit_name = unit_name


def _add_what_was_run(new: "New", trace: ViewerTrace) -> None:
    """Add a mark at the start of the trace with the metadata as its arguments."""
    event = _add_event(new, next(trace.slices()).start, INSTANT, ROOT).track_event
    event.name = "what was run"
    for name, value in trace.metadata.items():
        text = value if isinstance(value, str) else json.dumps(value, allow_nan=False)
        event.debug_annotations.add(name=name, string_value=text)


def _add_slice(new: "New", shown: Slice, track: int) -> None:
    event = _add_event(new, shown.start, BEGIN, track).track_event
    event.name = shown.name
    event.category_iids.append(KINDS.index(shown.kind) + 1)
    argument = event.debug_annotations.add
    for number, (value, none) in enumerate(zip(shown, NONES, strict=False), start=1):
        if value != none:
            argument(name_iid=number, int_value=value)
    argument(name_iid=RESOURCE, string_value_iid=RESOURCES.index(shown.resource) + 1)
    argument(name_iid=READY, double_value=shown.ready / 1000)
    for message in (shown.carried, shown.sent):
        if message >= 0:
            event.flow_ids.append(message + 1)  # 0 is none
    if shown.taken >= 0:
        event.terminating_flow_ids.append(shown.taken + 1)
    _add_event(new, shown.end, END, track)


def _add_event(new: "New", time: int, what: int, track: int) -> "TracePacket":
    packet = new(sequence_flags=NEEDED, timestamp=time)
    event = packet.track_event
    event.type, event.track_uuid = what, track
    return packet
