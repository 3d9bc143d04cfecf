"""Critical path, slack and derivatives of the makespan, against the graph evaluated again."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import pipesim as ps
from pipesim.engine.critical.critical_path import criticality, slack_table
from pipesim.engine.critical.sensitivity import sensitivity_table
from pipesim.engine.graph.marks import DURATION
from pipesim.engine.workload import bind
from pipesim.schedules.program.lowering import PROTOCOLS
from tests.strategies import ONE_STAGE, cases

# Sums of these are exact, so that ties are ties and small differences come out whole.
binary = st.sampled_from([1 / 64, 0.25, 0.5, 1.0, 1.0, 2.0, 2.0, 3.25])
EPS = 2.0**-24


@st.composite
def runs(draw):
    """Draw the run of any schedule under any protocol, all of whose numbers are short in binary."""
    pipe, schedule = draw(cases(value=binary))
    assume(all(fraction in (0.25, 0.5, 1.0) for fraction in schedule.fractions))
    p = pipe.ranks
    latency, size = draw(st.sampled_from([0.25, 0.5, 3.0])), draw(st.integers(0, 64))
    link = ps.Link(latency, draw(st.sampled_from([None, 1.0])))
    speeds = draw(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=p, max_size=p))
    overhead = draw(st.sampled_from([0.0, 0.125]))
    overlap = draw(st.sampled_from([None, 1.5]))
    pipe = replace(
        pipe,
        stages=tuple(
            replace(s, output_bytes=2 * 15625 * size, overlap_ms=overlap) for s in pipe.stages
        ),
        devices=tuple(ps.Device(speed, overhead) for speed in speeds),
        links={(a, b): link for a in range(p) for b in range(p) if a != b},
        overlap_factor=draw(st.sampled_from([1.0, 0.75])),
    )
    protocol = draw(st.sampled_from(PROTOCOLS))
    limit = None if protocol == "eager" else draw(st.sampled_from([None, 10**6]))
    capacity = draw(st.sampled_from([None, 1, 2]))
    try:
        return ps.simulate(
            pipe, schedule, protocol=protocol, queue_capacity=capacity, eager_limit_bytes=limit
        )
    except ps.DeadlockError:
        assume(False)


def makespan(run, duration, wire, latency):
    graph = run.criticality.graph
    times = graph.times(*graph.costs(duration, wire, latency))
    return times[graph.cost_kind == DURATION, 2].max()


def changed(pipe, parameter, amount):
    """Return a pipeline in which a parameter is larger by an amount, of a speed by its share."""
    section, _, key = parameter.partition(".")
    if section == "links":
        near, far = key.split('"')[1].split("->")
        pair = int(near), int(far)
        link = pipe.links[pair]
        link = replace(link, latency_ms=link.latency_ms + amount)
        return replace(pipe, links={**pipe.links, pair: link})
    field, number = key[:-1].split("[")
    parts = list(getattr(pipe, section))
    value = getattr(parts[int(number)], field)
    if section == "devices":
        value = value * (1 + amount)
    elif isinstance(value, tuple):
        value = tuple(one + amount for one in value)
    else:
        value = value + amount
    parts[int(number)] = replace(parts[int(number)], **{field: value})
    return replace(pipe, **{section: tuple(parts)})


@settings(max_examples=120, deadline=None)
@given(runs())
def test_derivatives_are_the_finite_differences(run):
    def at(parameter, amount):
        pipe = changed(run.pipeline, parameter, amount)
        work = bind(run.program, pipe, run.eager_limit_bytes)
        return makespan(run, work.duration, work.wire, work.latency)

    assert run.criticality.makespan == run.makespan
    for row in run.sensitivity.itertuples():
        less, more = (run.makespan - at(row.parameter, sign * EPS) for sign in (-1, 1))
        if row.unit == "1 %":  # faster is what gains
            gain, loss, tolerance = more / 100, -less / 100, 1e-4 * run.makespan
        else:
            gain, loss, tolerance = less, -more, 1e-6
        assert gain / EPS == pytest.approx(row.gain_ms, abs=tolerance), row
        assert loss / EPS == pytest.approx(row.loss_ms, abs=tolerance), row


@settings(max_examples=120, deadline=None)
@given(runs())
def test_an_op_may_end_later_by_its_slack_and_by_no_more(run):
    work, delta = run.workload, 1 / 1024
    assert (run.slack.end == run.spans.end).all()
    assert (run.slack.slack >= 0).all()
    assert (run.slack.critical == (run.slack.slack == 0)).all()
    for op in np.flatnonzero(~work.second).tolist():
        for more in (0.0, delta):
            duration = work.duration.copy()
            duration[op] += run.slack.slack[op] + more
            assert makespan(run, duration, work.wire, work.latency) == run.makespan + more


@settings(max_examples=120, deadline=None)
@given(runs())
def test_the_critical_path_goes_from_the_start_to_the_end_without_a_gap(run):
    path = run.critical_path
    assert path.start[0] == 0
    assert path.end.iloc[-1] == run.makespan
    assert (path.start[1:].to_numpy() == path.end[:-1].to_numpy()).all()
    assert path.ms.sum() == run.makespan
    # Its ops are critical, and it meets each cost as often as some path does.
    critical = run.slack.loc[run.slack.critical, ["stage", "kind", "microbatch", "slice"]]
    computes = path[path.resource == "compute"]
    assert set(map(tuple, computes[list(critical.columns)].values)) <= set(
        map(tuple, critical.values)
    )
    rows = run.sensitivity[["parameter", "gain_ms", "loss_ms"]].values.tolist()
    for parameter, gain, loss in rows:
        met = -1
        if parameter.startswith("devices"):
            rank = int(parameter[:-1].rpartition("[")[2])
            mine = computes[computes["rank"] == rank]
            # An R with nothing to rebuild has no overhead either.
            work = (mine.ms - run.pipeline.devices[rank].overhead_ms).clip(lower=0.0)
            met = work.sum() / 100
            assert gain - 1e-9 <= met <= loss + 1e-9
        assert 0 <= gain <= loss
    if not path.ties.any():  # the only one
        assert [row[1] for row in rows] == [row[2] for row in rows]


def by_parameter(run):
    rows = run.sensitivity[["parameter", "gain_ms", "loss_ms"]].values.tolist()
    return {parameter: (gain, loss) for parameter, gain, loss in rows}


def test_equal_stages_gain_as_the_path_that_avoids_them_and_lose_as_the_one_that_stays():
    run = ps.simulate(ps.Pipeline.from_costs(1.0, 2.0, stages=4), "1f1b", 8)
    found = by_parameter(run)
    # Rank s idles for p - 1 - s pairs in the midst of its work: no path can stay there then.
    # All paths come by the last stage twice, down with 3F0 and down again in the end with 3F7.
    for stage, gain, loss in [(0, 1, 5), (1, 1, 6), (2, 1, 7), (3, 2, 8)]:
        assert found[f"stages.forward_ms[{stage}]"] == (gain, loss)
        assert found[f"stages.backward_ms[{stage}]"] == (gain, loss)
        assert found[f"devices.speed[{stage}]"] == pytest.approx((0.03 * gain, 0.03 * loss))
    assert run.critical_path.ties.any()


def test_ties_that_rounding_breaks_can_be_told():
    def found(forward, backward, rounding):
        run = ps.simulate(ps.Pipeline.from_costs(forward, backward, stages=4), "1f1b", 8)
        critical = criticality(run.criticality.graph, run.workload, rounding)
        table = sensitivity_table(critical, run.pipeline, run.workload)
        return table[:8][["gain_ms", "loss_ms"]].values.tolist(), slack_table(critical).critical

    whole, tenths = found(1.0, 2.0, 0.0), found(0.1, 0.2, 1e-12)
    assert tenths[0] == whole[0]
    assert (tenths[1] == whole[1]).all()
    assert found(0.1, 0.2, 0.0)[0] != whole[0]  # or else nothing is told


def test_with_one_slow_stage_all_but_fill_and_drain_is_that_stage():
    run = ps.simulate(ps.Pipeline.from_costs([1, 1, 1, 2], [2, 2, 2, 4]), "1f1b", 8)
    assert run.critical_path.op.tolist() == [
        *["0F0", "1F0", "2F0"],
        *[f"3{kind}{unit}" for unit in range(8) for kind in "FB"],
        *["2B7", "1B7", "0B7"],
    ]
    assert not run.critical_path.ties.any()
    found = by_parameter(run)
    assert found["stages.forward_ms[3]"] == found["stages.backward_ms[3]"] == (8, 8)
    assert found["stages.forward_ms[0]"] == found["stages.backward_ms[1]"] == (1, 1)
    assert found['links.latency_ms."0->1"'] == (0, 1)  # there is none to take off
    assert found["devices.speed[3]"] == pytest.approx((0.48, 0.48))


def test_costs_of_each_microbatch_move_together():
    forward = [[1.0, 1.0, 1.0], [2.0, 2.0, 5.0]]
    run = ps.simulate(ps.Pipeline.from_costs(forward, [[2.0] * 3] * 2), "gpipe", 3)
    row = run.sensitivity.set_index("parameter").loc["stages.forward_ms[1]"]
    assert (row.value, row.gain_ms, row.loss_ms) == (3.0, 3.0, 3.0)


def test_a_whole_backward_of_two_parts_depends_on_both():
    pipe = ps.Pipeline.from_costs(1.0, input_grad=1.0, weight_grad=1.0, stages=2)
    found = by_parameter(ps.simulate(pipe, "gpipe", 1))
    assert found["stages.input_grad_ms[0]"] == found["stages.weight_grad_ms[1]"] == (1, 1)


def test_a_wait_for_the_wire_belongs_to_the_message_on_it():
    pipe = ps.Pipeline.from_costs(
        0.5, stages=2, output_bytes=10**6, bandwidth_gb_s=1.0, latency_ms=0.25
    )
    path = ps.simulate(pipe, "gpipe_forward", 3).critical_path
    assert path[["op", "start", "end"]].values.tolist() == [
        ["0F0", 0.0, 0.5],
        ["0SEND_F0", 0.5, 1.5],
        ["0SEND_F1", 1.5, 2.5],
        ["0SEND_F2", 2.5, 3.75],
        ["1F2", 3.75, 4.25],
    ]


def test_a_partner_that_comes_late_is_on_the_path_and_not_who_waits():
    pipe = ps.Pipeline.from_costs([1.0, 4.0], [2.0, 2.0], latency_ms=0.5)
    run = ps.simulate(pipe, "gpipe", 2, protocol="rendezvous")
    # Rank 0 has 0F1 at 3.0, but rank 1 takes it when 1F0 is done, at 5.5.
    assert run.critical_path.op.tolist()[:5] == ["0F0", "0SEND_F0", "1F0", "0SEND_F1", "1F1"]
    assert run.critical_path.start.tolist()[:5] == [0.0, 1.0, 1.5, 5.5, 6.0]


def test_an_overlapped_pair_is_one_piece():
    pipe = ps.Pipeline.from_costs(1.0, input_grad=1.0, weight_grad=1.0, stages=4)
    path = ps.simulate(pipe, "dualpipe", 8).critical_path
    assert path.op.str.contains("&").any()
    assert path.ms.sum() == path.end.iloc[-1]


@pytest.mark.parametrize("schedule", ONE_STAGE)
def test_it_is_the_same_every_time(schedule):
    pipe = ps.Pipeline.from_costs(1.0, input_grad=1.0, weight_grad=1.0, stages=4)
    one, two = (ps.simulate(pipe, schedule, 6).critical_path for _ in range(2))
    assert one.equals(two)


def test_the_path_stays_on_a_rank_where_it_can():
    path = ps.simulate(ps.Pipeline.from_costs(1.0, 2.0, stages=4), "gpipe", 4).critical_path
    assert path.op.tolist()[-4:] == ["0B3", "0B2", "0B1", "0B0"]
