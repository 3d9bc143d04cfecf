"""What must hold in any trace in Chrome's format, whoever wrote it; and what ours has besides."""

import gzip
import json
import re
from collections import defaultdict
from decimal import Decimal

REQUIRED = {
    "M": {"name", "pid", "tid", "args"},
    "X": {"name", "cat", "pid", "tid", "ts", "dur", "args"},
    "s": {"name", "cat", "id", "pid", "tid", "ts"},
    "t": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
    "f": {"name", "cat", "id", "pid", "tid", "ts", "bp"},
    "C": {"name", "pid", "tid", "ts", "args"},
}
SEND = re.compile(r"(\d+)SEND_([FB])(\d+(?:\.\d+)?)")


def no_number(text):
    raise AssertionError(f"{text} is no JSON number")


def read_events(path):
    """Return the document in a file, with exact times."""
    content = path.read_bytes()
    text = gzip.decompress(content) if path.name.endswith(".gz") else content
    return json.loads(text, parse_float=Decimal, parse_constant=no_number)


def by_phase(document):
    events = defaultdict(list)
    for event in document["traceEvents"]:
        events[event["ph"]].append(event)
    return events


def check_rules(document):
    """Check phases, keys, whole nanoseconds, names of all threads, overlaps and arrows."""
    events = by_phase(document)
    assert set(events) <= set(REQUIRED)
    for phase, wanted in REQUIRED.items():
        for event in events[phase]:
            assert set(event) == wanted | {"ph"}
            for time in (event.get("ts", 0), event.get("dur", 0)):
                assert time >= 0
                assert time * 1000 == int(time * 1000)
    check_names(events)
    check_overlaps(events["X"])
    check_arrows(document["traceEvents"])


def check_names(events):
    named = defaultdict(dict)
    for event in events["M"]:
        about = named[event["pid"], event["tid"]]
        assert event["name"] not in about, "named twice"
        about[event["name"]] = next(iter(event["args"].values()))
    processes = {pid: about for (pid, _), about in named.items() if "process_name" in about}
    assert len({about["process_name"] for about in processes.values()}) == len(processes)
    assert len({about["process_sort_index"] for about in processes.values()}) == len(processes)
    for pid, tid in {(event["pid"], event["tid"]) for event in events["X"]}:
        assert {"thread_name", "thread_sort_index"} <= set(named[pid, tid])
        assert pid in processes
    assert {event["pid"] for event in events["C"]} <= set(processes)
    # Thread 0 is special to viewers, and so is one with the number of a process.
    assert not {tid for _, tid in named} & {0, *processes}
    for pid in processes:
        own = [about for (of, _), about in named.items() if of == pid]
        assert len({about["thread_name"] for about in own}) == len(own)
        assert len({about["thread_sort_index"] for about in own}) == len(own)


def check_overlaps(slices):
    ends = defaultdict(Decimal)
    for event in sorted(slices, key=lambda event: (event["ts"], event["ts"] + event["dur"])):
        thread = event["pid"], event["tid"]
        assert event["ts"] >= ends[thread], event
        ends[thread] = event["ts"] + event["dur"]


def check_arrows(events):
    """Check arrows as a viewer meets them: by time, and at one time in the order of the file.

    Each of the three parts of an arrow lies in the slice that began last on its thread.
    """
    open_slice, arrows = {}, defaultdict(list)
    for event in sorted((e for e in events if e["ph"] in "Xstf"), key=lambda event: event["ts"]):
        thread = event["pid"], event["tid"]
        if event["ph"] == "X":
            open_slice[thread] = event
            continue
        bound = open_slice[thread]
        assert bound["ts"] <= event["ts"] <= bound["ts"] + bound["dur"]
        assert event.get("bp", "e") == "e"
        arrows[event["cat"], event["name"], event["id"]].append((event["ph"], bound))
    for parts in arrows.values():
        assert [phase for phase, _ in parts] == ["s", "t", "f"]
        source, link, taker = (bound for _, bound in parts)
        stage, way, unit = SEND.fullmatch(link["name"]).groups()
        other = int(stage) + (1 if way == "F" else -1)
        kinds = "F" if way == "F" else "[BI]"
        assert re.fullmatch(f"{stage}{kinds}{re.escape(unit)}", source["name"])
        assert re.fullmatch(f"{other}{kinds}{re.escape(unit)}", taker["name"])
        assert source["pid"] == link["pid"] != taker["pid"]
