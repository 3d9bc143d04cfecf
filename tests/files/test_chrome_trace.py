"""Traces in Chrome's format: what is written, the rules of the format, and reading it back."""

import gzip
import json
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipesim as ps
from pipesim.cli import main
from pipesim.config.read import parse_pipeline
from pipesim.files.traces.tracks import lanes
from pipesim.report.run_config import run_config
from pipesim.run.memory import in_flight_of_ranks
from pipesim.schedules.families.registry import FAMILIES
from tests.files.viewer_rules import by_phase, check_rules, read_events
from tests.strategies import cases

STRAGGLER = str(Path(__file__).parents[2] / "experiments" / "configs" / "straggler.toml")
HALF_NS = 0.5001e-6  # [ms], and what rounds

# 1F1B on two stages, F = 1 and 2, B = 2 and 4, 0.5 a hop, two micro-batches; all times in us.
SLICES = """
rank 0  compute    0F0           0  1000
rank 0  to rank 1  0SEND_F0   1000   500
rank 0  compute    0F1        1000  1000
rank 1  compute    1F0        1500  2000
rank 0  to rank 1  0SEND_F1   2000   500
rank 1  compute    1B0        3500  4000
rank 1  to rank 0  1SEND_B0   7500   500
rank 1  compute    1F1        7500  2000
rank 0  compute    0B0        8000  2000
rank 1  compute    1B1        9500  4000
rank 1  to rank 0  1SEND_B1  13500   500
rank 0  compute    0B1       14000  2000
"""
ARROWS = """
s 0F0   999.999   t 0SEND_F0  1000.001   f 1F0  1500.001
s 0F1  1999.999   t 0SEND_F1  2000.001   f 1F1  7500.001
s 1B0  7499.999   t 1SEND_B0  7500.001   f 0B0  8000.001
s 1B1 13499.999   t 1SEND_B1 13500.001   f 0B1 14000.001
"""
COUNTERS = """
rank 0  in flight  micro-batches      0  1
rank 0  in flight  micro-batches   1000  2
rank 0  in flight  micro-batches  10000  1
rank 0  in flight  micro-batches  16000  0
rank 1  in flight  micro-batches   1500  1
rank 1  in flight  micro-batches   7500  1
rank 1  in flight  micro-batches  13500  0
rank 0  memory     bytes              0  7
rank 0  memory     bytes              0 17
rank 0  memory     bytes           1000 27
rank 0  memory     bytes          10000 17
rank 0  memory     bytes          16000  7
rank 1  memory     bytes              0  7
rank 1  memory     bytes           1500 17
rank 1  memory     bytes           7500  7
rank 1  memory     bytes           7500 17
rank 1  memory     bytes          13500  7
"""


def small_run(**more):
    pipe = ps.Pipeline.from_costs([1, 2], [2, 4], latency_ms=0.5, **more)
    return ps.simulate(pipe, "1f1b", microbatches=2)


def words(text):
    return [line.split() for line in text.strip().splitlines()]


def test_a_small_run_worked_out_by_hand(tmp_path):
    path = tmp_path / "run.json"
    ps.write_trace(small_run(stash_bytes=10, param_bytes=7), path)
    document = read_events(path)
    events = by_phase(document)
    names = {
        (event["pid"], event["tid"] if event["name"] == "thread_name" else None): event["args"]
        for event in events["M"]
        if event["name"] in ("process_name", "thread_name")
    }

    def row(event, *values):
        thread = [] if event["ph"] == "C" else [names[event["pid"], event["tid"]]["name"]]
        parts = [names[event["pid"], None]["name"], *thread, event["name"], *values]
        return " ".join(str(part) for part in parts).split()

    slices = [
        row(event, event["ts"].normalize(), event["dur"].normalize()) for event in events["X"]
    ]
    assert [[*texts[:-2], *map(float, texts[-2:])] for texts in slices] == [
        [*texts[:-2], *map(float, texts[-2:])] for texts in words(SLICES)
    ]
    counters = [
        row(event, unit, event["ts"], value)
        for event in events["C"]
        for unit, value in event["args"].items()
    ]
    assert [[*texts[:-2], *map(float, texts[-2:])] for texts in counters] == [
        [*texts[:-2], *map(float, texts[-2:])] for texts in words(COUNTERS)
    ]
    assert arrow_rows(events) == [
        [float(text) if "." in text else text for text in row] for row in words(ARROWS)
    ]
    assert events["X"][3] == {
        "ph": "X",
        "name": "1F0",
        "cat": "F",
        "pid": 1,
        "tid": 3,
        "ts": 1500,
        "dur": 2000,
        "args": {
            "row": 3,
            "rank": 1,
            "resource": "compute",
            "stage": 1,
            "chunk": 0,
            "microbatch": 0,
            "ready_us": 1500,
        },
    }
    assert document["displayTimeUnit"] == "ms"


def arrow_rows(events):
    """Return the arrows, each a row of its three parts with the slices that they lie in."""
    rows = {}
    for phase in "stf":
        for event in events[phase]:
            (bound,) = (
                shown["name"]
                for shown in events["X"]
                if (shown["pid"], shown["tid"]) == (event["pid"], event["tid"])
                and shown["ts"] < event["ts"] < shown["ts"] + shown["dur"]
            )
            rows.setdefault(event["id"], []).extend([phase, bound, float(event["ts"])])
    return list(rows.values())


def any_pipeline(name, p, **more):
    family = FAMILIES[name]
    chunks = family.chunks or 2
    return ps.Pipeline.from_costs(
        forward=[1 + stage / 7 for stage in range(p * chunks)],
        input_grad=1.1,
        weight_grad=0.9,
        recompute_ms=0.25,
        ranks=p,
        placement=family.placement,
        **{"latency_ms": 1.5, "bandwidth_gb_s": 10, "output_bytes": 10**6, **more},
    )


def with_protocol(protocol, **more):
    return ps.simulate(any_pipeline("gpipe", 4), "gpipe", 6, protocol=protocol, **more)


def step_of_replicas(schedule, protocol="eager"):
    training = ps.Training(
        replicas=3,
        zero=1,
        bandwidth_gb_s=1.0,
        optimizer_ms=0.5,
        tied_bytes=10**5,
        overlap=False,
        speed=(1.0, 0.7, 1.0),
    )
    pipe = any_pipeline(schedule, 4, param_bytes=10**6, stash_bytes=1000)
    return ps.simulate_step(pipe, schedule, 8, training=training, protocol=protocol)


RUNS = {
    **{name: partial(lambda n: ps.simulate(any_pipeline(n, 4), n, 8), name) for name in FAMILIES},
    **{
        f"under {protocol}": partial(with_protocol, protocol)
        for protocol in ("rendezvous", "odd_even", "paired", "posted", "posted_blocking")
    },
    "small messages": partial(with_protocol, "paired", eager_limit_bytes=10**6),
    "one rank": lambda: ps.simulate(any_pipeline("1f1b", 1), "1f1b", 3),
    "one micro-batch": lambda: ps.simulate(any_pipeline("gpipe", 3), "gpipe", 1),
    "no time": lambda: ps.simulate(ps.Pipeline.from_costs([0] * 3, [0] * 3), "1f1b", 4),
    "picoseconds": lambda: ps.simulate(
        ps.Pipeline.from_costs([1e-9] * 3, [2e-7] * 3, latency_ms=3e-7), "1f1b", 4
    ),
    "recompute as ops": lambda: ps.simulate(
        any_pipeline("gpipe", 3), "gpipe", 3, options={"recompute": "early"}
    ),
    "replicas": partial(step_of_replicas, "1f1b"),
    "replicas both ways": partial(step_of_replicas, "chimera"),
    "replicas under paired": partial(step_of_replicas, "1f1b", "paired"),
}


def counts_of(run):
    """Return how many slices, messages and changes of counters a run or step has."""
    runs = run.runs if isinstance(run, ps.Step) else [run]
    counters = sum(len(in_flight_of_ranks(each.in_flight)) for each in runs)
    if any(max(each.peak_memory) for each in runs):
        counters += sum(len(each.memory) for each in runs)
    return len(run.trace), int((run.trace.resource == "link").sum()), counters


def check_trace(run, path):
    """Check a trace by the rules, that it has all of the run, and that it is read back."""
    ps.write_trace(run, path)
    document = read_events(path)
    check_rules(document)
    events = by_phase(document)
    slices, messages, counters = counts_of(run)
    assert len(events["X"]) == slices
    assert len(events["s"]) == len(events["t"]) == len(events["f"]) == messages
    assert len(events["C"]) == counters
    table = ps.read_chrome_trace(path)
    pd.testing.assert_frame_equal(table, run.trace, check_exact=False, rtol=0, atol=HALF_NS)


@pytest.mark.parametrize("name", RUNS)
def test_every_run_keeps_the_rules_and_is_read_back(name, tmp_path):
    check_trace(RUNS[name](), tmp_path / "run.json")


@settings(deadline=None)
@given(cases())
def test_any_run_keeps_the_rules_and_is_read_back(case):
    with TemporaryDirectory() as folder:
        check_trace(ps.simulate(*case), Path(folder) / "run.json")


def test_pairs_and_messages_under_way_together_have_threads_of_their_own(tmp_path):
    ps.write_trace(RUNS["dualpipe"](), tmp_path / "run.json")
    events = by_phase(read_events(tmp_path / "run.json"))
    threads = [event["args"]["name"] for event in events["M"] if event["name"] == "thread_name"]
    assert threads[:4] == ["compute", "compute (2)", "to rank 1", "to rank 1 (2)"]
    pairs = [event for event in events["X"] if "group" in event["args"]]
    pairs.sort(key=lambda event: event["args"]["group"])
    first, second = pairs[:2]
    assert first["args"]["group"] == second["args"]["group"]
    assert (first["ts"], first["dur"]) == (second["ts"], second["dur"])
    assert {event["cat"] for event in pairs if event["tid"] == first["tid"]} == {"F"}


def test_counters_reach_the_peaks_of_the_run(tmp_path):
    run = small_run(stash_bytes=10, param_bytes=7)
    ps.write_trace(run, tmp_path / "run.json")
    most = {}
    for event in by_phase(read_events(tmp_path / "run.json"))["C"]:
        (value,) = event["args"].values()
        counter = event["name"], event["pid"]
        most[counter] = max(most.get(counter, 0), value)
    assert [most["in flight", rank] for rank in (0, 1)] == run.ranks.peak_in_flight.tolist()
    assert [most["memory", rank] for rank in (0, 1)] == list(run.peak_memory)


@pytest.mark.parametrize("name", ["1f1b", "hanayo", "interleaved", "dualpipe"])
def test_ranks_hold_in_flight_what_their_stages_do(name):
    run = RUNS[name]()
    table = in_flight_of_ranks(run.in_flight)
    assert table.groupby("rank")["in_flight"].max().tolist() == run.ranks.peak_in_flight.tolist()
    assert table.groupby("rank")["in_flight"].last().tolist() == [0] * 4
    assert table.equals(table.sort_values(["rank", "time"], ignore_index=True))


def test_times_of_whole_nanoseconds_come_back_as_they_were(tmp_path):
    pipe = ps.Pipeline.from_costs([0.000001, 1.234567], [2e3, 40000.75], latency_ms=0.125)
    run = ps.simulate(pipe, "1f1b", microbatches=3)
    ps.write_trace(run, tmp_path / "run.json")
    nearest = run.trace.round({"ready": 6, "start": 6, "end": 6})
    assert ps.read_chrome_trace(tmp_path / "run.json").equals(nearest)


def test_times_that_nanoseconds_are_lost_in_are_refused(tmp_path):
    run = ps.simulate(ps.Pipeline.from_costs([1e9], [2e9]), "1f1b", microbatches=1)
    with pytest.raises(ValueError, match=r"up to 1e\+09 ms to the nanosecond, this one has 3e\+09"):
        ps.write_trace(run, tmp_path / "run.json")
    assert list(tmp_path.iterdir()) == []


def test_spans_shorter_than_a_nanosecond_are_told_of(tmp_path):
    tiny = ps.simulate(ps.Pipeline.from_costs([1e-9], [2e-9]), "1f1b", microbatches=1)
    with pytest.raises(ValueError, match="all spans of this one are shorter, up to 2e-09 ms"):
        ps.write_trace(tiny, tmp_path / "run.json")
    assert list(tmp_path.iterdir()) == []
    pipe = ps.Pipeline.from_costs([1, 1e-9], [0.1, 0.2])
    ps.write_trace(ps.simulate(pipe, "1f1b", microbatches=3), tmp_path / "run.json")
    note = json.loads((tmp_path / "run.json").read_text())["otherData"]["note"]
    assert note.startswith("3 of 18 spans take less than a nanosecond")
    ps.write_trace(small_run(), tmp_path / "run.json")
    assert "note" not in json.loads((tmp_path / "run.json").read_text())["otherData"]


def test_the_counter_says_what_is_in_flight(tmp_path):
    pipe = ps.Pipeline.from_costs([1, 1], [2, 2])
    ps.write_trace(ps.simulate(pipe, "seq1f1b", microbatches=4), tmp_path / "run.json")
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert {key for e in events if e["ph"] == "C" for key in e["args"]} == {"slices"}


def test_the_same_run_gives_the_same_bytes(tmp_path):
    paths = [tmp_path / name for name in ("a.json.gz", "b.json.gz", "c.json")]
    for path in paths:
        ps.write_trace(small_run(), path)
    first, second, plain = (path.read_bytes() for path in paths)
    assert first == second
    assert first[3:8] == bytes(5)  # neither a name nor a time stamp
    assert gzip.decompress(first) == plain
    assert ps.read_chrome_trace(paths[0]).equals(ps.read_chrome_trace(paths[2]))


def test_the_metadata_tell_what_was_run(tmp_path):
    run = small_run(title="two stages", source="by hand")
    ps.write_trace(run, tmp_path / "run.json")
    metadata = json.loads((tmp_path / "run.json").read_text())["otherData"]
    assert metadata["title"] == "two stages: 2 stages x 2 micro-batches, 1f1b"
    assert metadata["pipesim"] == ps.__version__
    assert metadata["summary"] == run.summary()
    assert metadata["config"]["source"] == "by hand"
    step = step_of_replicas("1f1b")
    ps.write_trace(step, tmp_path / "step.json")
    metadata = json.loads((tmp_path / "step.json").read_text())["otherData"]
    assert metadata["training"]["replicas"] == 3
    assert metadata["summary"]["step_ms"] == step.step_ms


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"latency_ms": {(0, 1): 0.5, (2, 1): 1}, "bandwidth_gb_s": [1, 2, 3]},
        {"speed": [1, 2, 1, 1], "overhead_ms": 0.1, "memory_bytes": 10**9, "overlap_factor": 0.9},
        {"forward": np.arange(1, 33).reshape(4, 8), "stash_bytes": [1, 2, 3, 4], "overlap_ms": 2},
        {"weight_grad": 0, "input_grad_frees_bytes": -5, "title": "t", "source": "s"},
    ],
)
def test_the_config_of_a_run_gives_its_pipeline(more):
    costs = {"forward": [1, 2, 3, 4], "input_grad": 2, "weight_grad": 1, "stages": 4} | more
    pipe = ps.Pipeline.from_costs(**costs)
    run = ps.simulate(pipe, "zb_h1", 8, protocol="paired", eager_limit_bytes=5)
    config = run_config(run)
    sections, same = parse_pipeline(json.loads(json.dumps(config)), "config")
    assert same == pipe
    assert (sections.run.schedule, sections.run.microbatches) == ("zb_h1", 8)
    assert (sections.run.protocol, sections.run.eager_limit_bytes) == ("paired", 5)


@pytest.mark.parametrize("options", [None, {"batches": 3}])
def test_the_config_has_the_micro_batches_of_one_batch(options):
    run = ps.simulate(ps.Pipeline.from_costs([1, 1], [2, 2]), "pipedream", 4, options=options)
    assert run_config(run, options)["run"]["microbatches"] == 4


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_the_command_writes_traces_under_both_flags(ending, tmp_path, capsys):
    paths = [tmp_path / f"{name}{ending}" for name in ("gantt", "trace")]
    flags = ["--gantt", str(paths[0]), "--trace", str(paths[1])]
    assert main(["run", STRAGGLER, *flags]) == 0
    assert all(f"wrote {path}" in capsys.readouterr().err for path in paths[:1])
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert len(ps.read_chrome_trace(paths[0])) == 32 + 24
    assert sorted(tmp_path.iterdir()) == sorted(paths)


def test_the_options_of_the_schedule_are_in_the_config_of_a_command(tmp_path):
    path = tmp_path / "run.json"
    costs = ["--forward", "1,1,1,1", "--backward", "2,2,2,2", "--ranks", "2"]
    flags = ["--schedule", "interleaved", "--microbatches", "4", "--option", "warm_up=short"]
    assert main(["run", *costs, *flags, "--trace", str(path)]) == 0
    config = json.loads(path.read_text())["otherData"]["config"]
    assert config["run"]["options"] == {"warm_up": "short"}


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--trace", "x.gz"], "--trace x.gz: the ending must be .csv, .parquet, .json, .json.gz"),
        (["--trace", ".json"], "--trace .json: the ending must be"),
        (["--gantt", "x.json", "--critical-path"], "--critical-path is drawn on charts: give .png"),
    ],
)
def test_what_cannot_be_written_exits_2_before_the_run(arguments, message, capsys):
    assert main(["run", STRAGGLER, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


def test_other_endings_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"run.txt: the ending of a trace is one of .csv, .parq"):
        ps.write_trace(small_run(), tmp_path / "run.txt")


def test_tables_are_written_as_the_trace(tmp_path):
    run = small_run()
    ps.write_trace(run, tmp_path / "run.parquet")
    ps.write_trace(run, tmp_path / "run.CSV")
    assert pd.read_parquet(tmp_path / "run.parquet")["end"].equals(run.trace["end"])
    assert pd.read_csv(tmp_path / "run.CSV")["end"].equals(run.trace["end"])


SHOWN = '{"ph": "X", "cat": "F", "ts": 0, "dur": 1, "args": {"row": 0}}'
OURS = '{"otherData": {"pipesim": "1"}, "traceEvents": [%s]}'


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "cannot be read: No such file or directory"),
        ('{"otherData": {"pipesim": "1"}}', "traceEvents is missing; write the file again"),
        ('{"otherData": {"pipesim": "1"}, "traceEvents": {}}', "traceEvents is missing"),
        ("", "is malformed: Expecting value"),
        ("PNG", "is malformed: Expecting value"),
        (b"\x1f\x8b\x08", "is damaged: "),
        (gzip.compress(b"{}" * 1000, mtime=0)[:-9], "is damaged: "),
        (b"\xff\xfe", "is malformed: 'utf-8' codec"),
        ("[" * 100_000, "is malformed: "),
        ("[]", "otherData.pipesim is missing: pipesim did not write it"),
        ('{"otherData": 1}', "otherData.pipesim is missing"),
        ('{"traceEvents": []}', "otherData.pipesim is missing"),
        (OURS % SHOWN, "traceEvents: a slice lacks 'ready_us'"),
        (OURS % SHOWN.replace("{", "3", 2), "is malformed: "),
        (OURS % SHOWN.replace('{"row": 0}', "3"), "is malformed: "),
    ],
)
def test_what_cannot_be_read_names_the_file(content, message, tmp_path):
    path = tmp_path / "mine.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ps.ConfigError) as caught:
        ps.read_chrome_trace(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=30))
def test_as_few_lanes_as_there_can_be_and_none_with_overlaps(spans):
    spans = sorted((start, start + length) for start, length in spans)
    chosen = lanes(*zip(*spans, strict=True)) if spans else []
    for lane in set(chosen):
        own = [span for span, of in zip(spans, chosen, strict=True) if of == lane]
        assert all(end <= start for (_, end), (start, _) in pairwise(own))
    times = [half / 2 for half in range(52)]
    at_once = [sum(s < t < e for s, e in spans) + any(s == t == e for s, e in spans) for t in times]
    assert len(set(chosen)) == max(at_once)
