"""What holds of every schedule on every pipeline, drawn at random over the whole registry."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipesim as ps
from pipesim.base.ops import Kind
from pipesim.schedules.families.registry import FAMILIES
from tests.schedules import theory
from tests.strategies import WITH_BACKWARD, cases, positive_costs

ROUNDING = 1e-12
COSTS = ("forward_ms", "backward_ms", "input_grad_ms", "weight_grad_ms", "recompute_ms")
counts = st.integers(1, 12)


@settings(max_examples=200, deadline=None)
@given(cases())
def test_every_op_is_there_once_in_order_and_on_its_rank(case):
    _, schedule = case
    rank_of = {}
    for rank in range(schedule.ranks):
        order = schedule.order(rank)
        place = {op: number for number, op in enumerate(order)}
        assert len(place) == len(order)
        for op in order:
            direction = int(schedule.directions[op.microbatch])
            assert rank_of.setdefault((op.stage, direction), rank) == rank
            for kind, earlier in (
                (Kind.B, Kind.F),
                (Kind.I, Kind.F),
                (Kind.W, Kind.I),
                (Kind.R, Kind.F),
                (Kind.B, Kind.R),
            ):
                if op.kind == kind and (earlier != Kind.R or op._replace(kind=Kind.R) in place):
                    assert place[op._replace(kind=earlier)] < place[op]
    ops = {schedule.op(number) for number in range(len(schedule))}
    units = list(product(range(schedule.stages), range(schedule.microbatches)))
    for stage, microbatch in units:
        for part in range(schedule.slices):
            kinds = {k for k in Kind if ps.Op(stage, k, microbatch, part) in ops}
            if schedule.separate_recompute:
                kinds.discard(Kind.R)
            backward = FAMILIES[schedule.family].backward
            allowed = [{Kind.F}] if backward == "none" else []
            allowed += [{Kind.F, Kind.B}] if "B" in backward else []
            allowed += [{Kind.F, Kind.I, Kind.W}] if "I" in backward else []
            assert kinds in allowed


@settings(max_examples=150, deadline=None)
@given(cases())
def test_makespan_lies_between_the_lower_bound_and_everything_in_a_row(case):
    pipe, schedule = case
    run = ps.simulate(pipe, schedule)
    work = run.workload.duration[~run.workload.second].sum()
    transfers = (run.workload.wire + run.workload.latency).sum()
    assert run.lower_bound <= run.makespan * (1 + ROUNDING)
    assert run.makespan <= (work + transfers) * (1 + ROUNDING)


@settings(max_examples=150, deadline=None)
@given(cases(), st.sampled_from([None, 2]))
def test_idle_parts_add_up(case, capacity):
    pipe, schedule = case
    try:
        run = ps.simulate(pipe, schedule, queue_capacity=capacity)
    except ps.DeadlockError:
        assert capacity is not None
        return
    times = run.rank_times
    tolerance = 1e-9 * run.makespan
    np.testing.assert_allclose(times.idle, run.makespan - times.busy, rtol=0, atol=tolerance)
    for cause in ("fill", "wait_forward", "wait_gradient", "blocked", "queue_full", "drain"):
        assert (getattr(times, cause) >= 0).all()
    waits = times.wait_forward + times.wait_gradient
    assert (times.exposed_communication <= waits + tolerance).all()
    assert (times.exposed_communication >= 0).all()
    assert run.balance * run.filling == pytest.approx(1 - run.bubble_fraction, abs=1e-9)


def scaled(pipe, factor):
    """Return the pipeline with all costs, overheads, latencies and bytes times a factor."""

    def times(cost):
        return tuple(factor * c for c in cost) if isinstance(cost, tuple) else factor * cost

    stages = tuple(
        replace(
            stage,
            **{
                name: times(getattr(stage, name))
                for name in COSTS
                if getattr(stage, name) is not None
            },
            output_bytes=factor * stage.output_bytes,
        )
        for stage in pipe.stages
    )
    devices = tuple(replace(d, overhead_ms=factor * d.overhead_ms) for d in pipe.devices)
    links = {
        pair: replace(link, latency_ms=factor * link.latency_ms)
        for pair, link in pipe.links.items()
    }
    return replace(pipe, stages=stages, devices=devices, links=links)


@settings(max_examples=100, deadline=None)
@given(cases())
def test_doubling_all_costs_latencies_and_bytes_doubles_every_time_exactly(case):
    pipe, schedule = case
    once, twice = (ps.simulate(p, schedule).spans for p in (pipe, scaled(pipe, 2)))
    np.testing.assert_array_equal(twice.start, 2 * once.start)
    np.testing.assert_array_equal(twice.end, 2 * once.end)
    np.testing.assert_array_equal(twice.arrival, 2 * once.arrival)


@settings(max_examples=100, deadline=None)
@given(cases(), st.data())
def test_raising_one_cost_never_lowers_the_makespan(case, data):
    pipe, schedule = case
    number = data.draw(st.integers(0, len(pipe.stages) - 1))
    stage = pipe.stages[number]
    given_costs = [n for n in COSTS if getattr(stage, n) is not None]
    cost_name = data.draw(st.sampled_from(given_costs))
    more = data.draw(st.floats(0.0, 100.0))
    cost = getattr(stage, cost_name)
    raised = tuple(c + more for c in cost) if isinstance(cost, tuple) else cost + more
    stages = list(pipe.stages)
    stages[number] = replace(stage, **{cost_name: raised})
    slower = replace(pipe, stages=tuple(stages))
    assert ps.simulate(slower, schedule).makespan >= ps.simulate(pipe, schedule).makespan


stage_times = st.lists(positive_costs, min_size=1, max_size=7)


@settings(max_examples=100, deadline=None)
@given(stage_times, counts, st.floats(0.0, 5.0))
def test_forward_only_closed_form(forward, m, latency):
    run = ps.simulate(ps.Pipeline.from_costs(forward, latency_ms=latency), "gpipe_forward", m)
    expected = theory.forward_only_makespan(forward, m, latency)
    assert run.makespan == pytest.approx(expected, rel=1e-12)
    assert run.lower_bound <= run.makespan * (1 + ROUNDING)


@settings(max_examples=100, deadline=None)
@given(st.data(), counts, st.floats(0.0, 5.0), st.sampled_from(["lifo", "fifo"]))
def test_gpipe_closed_form_for_any_stages(data, m, latency, order):
    forward = data.draw(stage_times)
    backward = data.draw(st.lists(positive_costs, min_size=len(forward), max_size=len(forward)))
    pipe = ps.Pipeline.from_costs(forward, backward, latency_ms=latency)
    run = ps.simulate(pipe, "gpipe", m, options={"order": order})
    expected = theory.gpipe_makespan(forward, backward, m, latency)
    assert run.makespan == pytest.approx(expected, rel=1e-12)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 12), st.integers(1, 40), positive_costs, positive_costs, st.floats(0, 1))
def test_one_f_one_b_closed_form_with_latency(p, m, f, b, share):
    latency = share * 2 * min(f, b)
    pipe = ps.Pipeline.from_costs(f, b, stages=p, latency_ms=latency)
    expected = theory.one_f_one_b_makespan([f] * p, [b] * p, m, latency if p > 1 else 0.0)
    assert ps.simulate(pipe, "1f1b", m).makespan == pytest.approx(expected, rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 12), st.integers(1, 40), positive_costs, positive_costs, st.floats(0, 1))
def test_eager_closed_form_with_latency(p, m, f, b, share):
    latency = share * min(f, b) / 2
    pipe = ps.Pipeline.from_costs(f, b, stages=p, latency_ms=latency)
    expected = theory.eager_one_f_one_b_makespan([f] * p, [b] * p, m, latency)
    assert ps.simulate(pipe, "1f1b_eager", m).makespan == pytest.approx(expected, rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 8), st.data(), counts, st.floats(1.0, 4.0), st.floats(0.0, 1.0))
def test_one_f_one_b_closed_form_with_one_slow_stage(p, data, m, ratio, share):
    slow = data.draw(st.integers(0, p - 1))
    # The last stage may be slower by any factor, the others by 1 + 1/ratio to 1 + ratio.
    least, most = (1.0, 10.0) if slow == p - 1 else (1 + 1 / ratio, 1 + ratio)
    factor = min(least + share * (most - least), most)
    forward = [factor if stage == slow else 1.0 for stage in range(p)]
    backward = [ratio * f for f in forward]
    run = ps.simulate(ps.Pipeline.from_costs(forward, backward), "1f1b", m)
    expected = theory.one_f_one_b_makespan(forward, backward, m)
    assert run.makespan == pytest.approx(expected, rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(stage_times, counts, st.data())
def test_one_f_one_b_stays_above_its_own_bound_and_below_alpas_estimate(forward, m, data):
    ratio = data.draw(st.floats(0.25, 4.0))
    backward = [ratio * f for f in forward]
    run = ps.simulate(ps.Pipeline.from_costs(forward, backward), "1f1b", m)
    bound = theory.one_f_one_b_lower_bound(forward, backward, m)
    assert run.lower_bound <= bound * (1 + ROUNDING)
    assert bound <= run.makespan * (1 + ROUNDING)
    total = [f + b for f, b in zip(forward, backward, strict=True)]
    assert run.makespan <= theory.alpa_makespan(total, m) * (1 + ROUNDING)


@settings(max_examples=100, deadline=None)
@given(st.data(), positive_costs, positive_costs)
def test_equal_stages_meet_the_closed_form(data, f, b):
    known = ("gpipe_forward", "gpipe", "1f1b", "1f1b_eager", "interleaved", "looped_bfs")
    known += ("seq1f1b", "terapipe", "pipedream", "pipedream_2bw")
    _, schedule = data.draw(cases(of=known))
    pipe = ps.Pipeline.from_costs(f, b, stages=schedule.stages, placement=schedule.placement)
    run = ps.simulate(pipe, schedule)
    if run.closed_form is None:  # slices of unequal time, or recomputing early
        assert len(set(schedule.fractions)) > 1 or schedule.separate_recompute
        return
    assert run.bubble_fraction == pytest.approx(run.closed_form, abs=1e-9)
    assert run.excess_bubble == pytest.approx(0.0, abs=1e-9)
    assert run.inflation == pytest.approx(1.0, rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(cases(value=positive_costs, of=WITH_BACKWARD), st.data())
def test_memory_returns_to_nothing_and_peaks_as_the_order_says(case, data):
    pipe, schedule = case
    stash = 60
    rebuilt = data.draw(st.sampled_from([0, 30, 120]))
    frees = data.draw(st.sampled_from([12, 0, -60]))
    sizes = {"stash_bytes": stash, "rebuilt_bytes": rebuilt, "input_grad_frees_bytes": frees}
    pipe = replace(pipe, stages=tuple(replace(s, **sizes) for s in pipe.stages))
    run = ps.simulate(pipe, schedule)
    table = run.in_flight
    last = table.groupby(["stage", "rank"])[["in_flight", "stash_bytes"]].last()
    assert (last == 0).all(axis=None)
    assert (table[["in_flight", "stash_bytes"]] >= 0).all(axis=None)
    each = (stash + max(rebuilt, -frees)) // schedule.slices
    assert (table.stash_bytes <= each * table.in_flight).all()
    if schedule.stages == schedule.ranks and schedule.placement.directions == 1:
        peaks = table.groupby("stage").in_flight.max().tolist()
        assert peaks == run.ranks.peak_in_flight.tolist()
    assert all(
        0 < peak <= each * held
        for peak, held in zip(run.ranks.peak_stash_bytes, run.ranks.peak_in_flight, strict=True)
    )


def test_the_bubble_fraction_can_fall_below_the_closed_form_while_the_step_grows():
    # p=4, m=4, F=1, B=2, stage 0 x 1.5: makespan 21 -> 22.5, bubble .4286 -> .4.
    slow = ps.simulate(ps.Pipeline.from_costs([1.5, 1, 1, 1], [3, 2, 2, 2]), "1f1b", 4)
    assert (slow.makespan, slow.bubble_fraction) == (22.5, pytest.approx(0.4))
    assert slow.excess_bubble < 0
    assert slow.equal_stages.makespan == 23.625
    assert slow.inflation < 1  # unequal stages can beat equal ones of the same mean


@given(data=st.data(), p=st.integers(1, 4), m=st.integers(1, 7), times=st.sampled_from([1, 2]))
def test_searched_orders_are_never_worse_than_handmade_ones_and_keep_their_limit(data, p, m, times):
    def costs():
        return data.draw(st.lists(positive_costs, min_size=p, max_size=p))

    pipe = ps.Pipeline.from_costs(
        costs(),
        input_grad=costs(),
        weight_grad=costs(),
        latency_ms=data.draw(st.sampled_from([0.0, 0.3])),
        stash_bytes=100,
        input_grad_frees_bytes=data.draw(st.integers(0, 100)),
    )
    objective = data.draw(st.sampled_from(["span", "makespan"]))
    options = {"objective": objective}
    run = ps.simulate(pipe, f"zb_{times}p", m, options=options)
    assert max(run.ranks.peak_stash_bytes) <= 100 * times * p
    for name in ("zb_h1", "zb_h2")[:times]:  # the first fits into p micro-batches, both into 2p
        handmade = ps.simulate(pipe, name, m)
        if objective == "makespan":
            assert run.makespan <= handmade.makespan * (1 + 1e-9)
        else:
            assert run.rank_times.span.max() <= handmade.rank_times.span.max() * (1 + 1e-9)


@given(data=st.data(), p=st.integers(1, 3), m=st.integers(1, 6), limit=st.integers(2, 7))
def test_searched_orders_on_a_v_keep_their_limit(data, p, m, limit):
    def costs():
        return data.draw(st.lists(positive_costs, min_size=2 * p, max_size=2 * p))

    pipe = ps.Pipeline.from_costs(costs(), input_grad=costs(), weight_grad=costs(), ranks=p)
    options = {"limit": limit, "objective": "span"}
    run = ps.simulate(pipe, "v_schedule", m, options=options)
    assert max(run.ranks.peak_in_flight) <= limit
    if limit >= 2 * p:
        handmade = ps.simulate(pipe, "zb_v", m).rank_times.span.max()
        assert run.rank_times.span.max() <= handmade * (1 + 1e-9)
