"""What pages tell of an op's wait and of what is in flight, by hand."""

import pytest

import pipesim as ps
from pipesim.base.ops import parse_op
from pipesim.plot.page.data import picture_of
from pipesim.plot.page.summary import summary_table
from pipesim.plot.page.window import choose_window
from pipesim.report.run_text import rank_text
from pipesim.run.idle import IDLE_CAUSES

# Two equal stages, 1F1B, half a millisecond from rank to rank.
PIPE = ps.Pipeline.from_costs([1, 1], [2, 2], latency_ms=0.5)


def picture(run):
    return picture_of(run, "title", choose_window([run], run.makespan))


def told_of(run, name):
    """Return what is told of the wait before an op: its parts by cause, and its source."""
    op = parse_op(name)
    columns = picture(run).bars[op.kind.name]
    keys = (op.stage, op.microbatch, op.slice if run.schedule.slices > 1 else -1)
    names = (columns[name].tolist() for name in ("stage", "microbatch", "slice"))
    row = list(zip(*names, strict=True)).index(keys)
    parts = {cause: float(columns[cause][row]) for cause in IDLE_CAUSES if cause in columns}
    parts = {cause: part for cause, part in parts.items() if part > 0}
    return columns["waited"][row], parts, int(columns["source"][row])


def test_of_the_wait_before_an_op_the_causes_are_told():
    # The last stage is slow, and one activation waits before it: so the others wait for room.
    slow = ps.Pipeline.from_costs([1, 1, 1, 3], [2, 2, 2, 2])
    full = ps.simulate(slow, "gpipe", 8, queue_capacity=1)
    assert told_of(full, "0F4") == (2, {"queue_full": 2}, -1)
    assert told_of(full, "3F0") == (3, {"fill": 3}, 2)
    assert told_of(ps.simulate(PIPE, "1f1b", 2), "0B1") == (1, {"wait_gradient": 1}, 1)
    # The first rank sends, half a millisecond, before it goes on.
    held = ps.simulate(PIPE, "1f1b", 2, protocol="paired")
    assert told_of(held, "0F1") == (0.5, {"blocked": 0.5}, -1)


@pytest.mark.parametrize(
    ("name", "protocol"),
    [
        ("gpipe", "eager"),
        ("gpipe", "odd_even"),
        ("gpipe", "paired"),
        ("interleaved", "eager"),
        ("dualpipe", "eager"),
        ("dualpipe", "posted"),
    ],
)
def test_the_causes_of_a_wait_make_up_all_of_it(name, protocol):
    schedule = ps.build_schedule(name, 4, 8)
    costs = {"forward": 1.0, "input_grad": 1.0, "weight_grad": 0.5, "overlap_ms": 2.0}
    pipe = ps.Pipeline.from_costs(
        **costs, stages=schedule.stages, placement=schedule.placement, latency_ms=0.25
    )
    run = ps.simulate(pipe, schedule, protocol=protocol)
    for columns in picture(run).bars.values():
        parts = sum(columns[cause] for cause in IDLE_CAUSES if cause in columns)
        assert parts == pytest.approx(columns["waited"])
    assert (picture(run).bars["F"]["waited"] > 0).any()


@pytest.mark.parametrize(
    ("name", "counted"),
    [
        ("1f1b", "micro-batches"),
        ("seq1f1b", "slices"),
        ("interleaved", "(stage, micro-batch) pairs"),
        ("chimera", "micro-batches"),  # of two stages, but each of them has its own
    ],
)
def test_what_is_in_flight_is_named(name, counted):
    schedule = ps.build_schedule(name, 2, 4)
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=schedule.stages, placement=schedule.placement)
    run = ps.simulate(pipe, schedule)
    assert picture(run).held["in flight"].words == f"{counted} in flight on each rank"
    most = max(schedule.peak_in_flight())
    assert f">{most} {counted}<" in summary_table([run])
    assert f"held: {counted} in flight at most" in rank_text(run)
    assert set(picture(run).bars["F"]["slice"].tolist()) == ({0, 1} if name == "seq1f1b" else {-1})
