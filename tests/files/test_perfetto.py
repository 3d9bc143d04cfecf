"""Traces in Perfetto's format, parsed back with Perfetto's own definitions."""

import json
from collections import defaultdict
from importlib import util

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

import pipesim as ps
from pipesim.base import files
from pipesim.cli import main
from tests.files.test_chrome_trace import RUNS, STRAGGLER, counts_of, small_run

ROOT = "2 stages x 2 micro-batches, 1f1b"


def read_packets(path):
    return Trace.FromString(path.read_bytes()).packet


def read_tracks(packets):
    """Return the descriptor of every track by its number, each with the names from the root on."""
    tracks = {}
    for packet in packets:
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in tracks
            above = tracks[track.parent_uuid][1] if track.parent_uuid else ()
            tracks[track.uuid] = track, (*above, track.name)
    return tracks


def read_slices(packets):
    """Return (begin packet, end) of all slices, as a viewer meets them: by time, stably.

    Every slice is over when the next one of its track begins.
    """
    open_slice, slices = {}, []
    for packet in sorted(packets, key=lambda packet: packet.timestamp):
        track = packet.track_event.track_uuid
        if packet.track_event.type == TrackEvent.TYPE_SLICE_BEGIN:
            assert track not in open_slice
            open_slice[track] = packet
        elif packet.track_event.type == TrackEvent.TYPE_SLICE_END:
            slices.append((open_slice.pop(track), packet.timestamp))
    assert not open_slice
    return slices


def arguments(packets, event):
    """Return the arguments of an event, with their names and texts as they were told once."""
    told = packets[0].interned_data
    names = {entry.iid: entry.name for entry in told.debug_annotation_names}
    texts = {entry.iid: entry.str.decode() for entry in told.debug_annotation_string_values}
    found = {}
    for argument in event.debug_annotations:
        kind = argument.WhichOneof("value")
        value = getattr(argument, kind)
        found[names[argument.name_iid]] = texts[value] if kind == "string_value_iid" else value
    return found


def check_trace(run, path):
    """Check that a trace has all of the run, in order and in whole."""
    ps.write_trace(run, path)
    packets = read_packets(path)
    assert {packet.trusted_packet_sequence_id for packet in packets} == {1}
    assert packets[0].sequence_flags == TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    tracks = read_tracks(packets)
    assert len({names for _, names in tracks.values()}) == len(tracks)
    slices, messages, counters = counts_of(run)
    shown = read_slices(packets)
    assert len(shown) == slices
    check_rows(run, packets, shown)
    check_arrows(packets, messages)
    changes = [p for p in packets if p.track_event.type == TrackEvent.TYPE_COUNTER]
    assert len(changes) == counters
    assert all(tracks[p.track_event.track_uuid][0].HasField("counter") for p in changes)


def check_rows(run, packets, shown):
    """Check that slices are the rows of the trace."""
    kinds = {entry.iid: entry.name for entry in packets[0].interned_data.event_categories}
    none = {"microbatch": -1, "slice": 0, "group": -1, "replica": 0}
    rows = run.trace.to_dict(orient="records")
    for packet, end in shown:
        event = packet.track_event
        told = none | arguments(packets, event)
        row = rows[told.pop("row")]
        assert [kinds[number] for number in event.category_iids] == [row["kind"]]
        assert packet.timestamp == round(row["start"] * 1e6)
        assert end == round(row["end"] * 1e6)
        assert round(told.pop("ready_us") * 1000) == round(row["ready"] * 1e6)
        assert told == {name: row[name] for name in told}
        assert len(told) == 8


def check_arrows(packets, messages):
    """Check that every arrow goes from an op over a link to an op, in this order."""
    arrows = defaultdict(list)
    begins = [p for p in packets if p.track_event.type == TrackEvent.TYPE_SLICE_BEGIN]
    for packet in sorted(begins, key=lambda packet: packet.timestamp):
        event = packet.track_event
        for number in (*event.flow_ids, *event.terminating_flow_ids):
            arrows[number].append((event.name, number in event.terminating_flow_ids))
    assert 0 not in arrows
    assert len(arrows) == messages
    for parts in arrows.values():
        assert [last for _, last in parts] == [False, False, True]
        assert ["SEND" in name for name, _ in parts] == [False, True, False]


@pytest.mark.parametrize("name", RUNS)
def test_every_run_is_parsed_back(name, tmp_path):
    check_trace(RUNS[name](), tmp_path / "run.pftrace")


def test_the_tracks_of_a_small_run(tmp_path):
    ps.write_trace(small_run(stash_bytes=10), tmp_path / "run.pftrace")
    packets = read_packets(tmp_path / "run.pftrace")
    tracks = read_tracks(packets)
    children = defaultdict(list)
    for track, names in tracks.values():
        children[names[:-1]].append((track.sibling_order_rank, names[-1]))
    below = {above: [name for _, name in sorted(found)] for above, found in children.items()}
    assert below == {
        (): [ROOT],
        (ROOT,): ["rank 0", "rank 1"],
        (ROOT, "rank 0"): ["compute", "to rank 1", "in flight", "memory"],
        (ROOT, "rank 1"): ["compute", "to rank 0", "in flight", "memory"],
    }
    units = {
        names[-1]: t.counter.unit_name for t, names in tracks.values() if t.HasField("counter")
    }
    assert units == {"in flight": "micro-batches", "memory": "bytes"}
    memory = [
        (packet.timestamp, packet.track_event.counter_value)
        for packet in packets
        if packet.track_event.type == TrackEvent.TYPE_COUNTER
        and tracks[packet.track_event.track_uuid][1][1:] == ("rank 1", "memory")
    ]
    ms = 1_000_000
    assert memory == [(0, 0), (1.5 * ms, 10), (7.5 * ms, 0), (7.5 * ms, 10), (13.5 * ms, 0)]


def test_a_mark_at_the_begin_tells_what_was_run(tmp_path):
    run = small_run()
    ps.write_trace(run, tmp_path / "run.pftrace")
    packets = read_packets(tmp_path / "run.pftrace")
    (mark,) = (p for p in packets if p.track_event.type == TrackEvent.TYPE_INSTANT)
    told = {a.name: a.string_value for a in mark.track_event.debug_annotations}
    assert told["title"] == ROOT
    assert told["pipesim"] == ps.__version__
    assert json.loads(told["summary"]) == run.summary()
    assert json.loads(told["config"])["stages"]["forward_ms"] == [1, 2]


def test_the_same_bytes_each_time_and_fewer_than_json(tmp_path):
    run = RUNS["dualpipe"]()
    paths = [tmp_path / name for name in ("a.pftrace", "b.pftrace", "c.json")]
    for path in paths:
        ps.write_trace(run, path)
    first, second, other = (path.read_bytes() for path in paths)
    assert first == second
    assert len(first) < 0.5 * len(other)


@pytest.mark.parametrize("flag", ["--gantt", "--trace"])
def test_the_command_writes_it(flag, tmp_path, capsys):
    path = tmp_path / "run.pftrace"
    assert main(["run", STRAGGLER, flag, str(path)]) == 0
    assert f"wrote {path}" in capsys.readouterr().err
    assert len(read_slices(read_packets(path))) == 32 + 24


def test_without_the_library_nothing_is_run(tmp_path, monkeypatch, capsys):
    found = util.find_spec
    monkeypatch.setattr(
        files, "find_spec", lambda name: None if name == "perfetto" else found(name)
    )
    path = tmp_path / "run.pftrace"
    for flag in ("--gantt", "--trace"):
        assert main(["run", STRAGGLER, flag, str(path)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        way_out = "needs perfetto; pip install 'pipesim[perfetto]'"
        assert captured.err.strip().endswith(f"{flag} {path}: {way_out}")
    with pytest.raises(ValueError, match=r"pip install 'pipesim\[perfetto\]'"):
        ps.write_trace(small_run(), path)
    assert main(["run", STRAGGLER, "--trace", str(tmp_path / "run.json")]) == 0
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]
