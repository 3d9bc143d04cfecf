"""The SimPy engine against an independent recursion, bit for bit, and its corner cases."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipesim as ps
from pipesim.engine.op_costs import stage_ms
from tests.engine.longest_path import Deadlock, longest_path
from tests.strategies import ONE_STAGE, cases


@settings(max_examples=300, deadline=None)
@given(cases(), st.sampled_from([None, 1, 2, 3]))
def test_every_start_and_end_is_the_longest_path_bit_for_bit(case, capacity):
    pipe, schedule = case
    try:
        expected = longest_path(schedule, pipe, capacity)
    except Deadlock:
        with pytest.raises(ps.DeadlockError):
            ps.simulate(pipe, schedule, queue_capacity=capacity)
        return
    spans = ps.simulate(pipe, schedule, queue_capacity=capacity).spans
    for number in range(len(schedule)):
        assert (spans.start[number], spans.end[number]) == expected[schedule.op(number)]


def random_orders(random, p, m, split):
    """Return any order a rank in which each stage's own ops come one after the other."""
    orders = []
    for stage in range(p):
        chains = [["F", "I", "W"] if split else ["F", "B"] for _ in range(m)]
        order = []
        while any(chains):
            microbatch = random.choice([i for i, chain in enumerate(chains) if chain])
            order.append(f"{stage}{chains[microbatch].pop(0)}{microbatch}")
        orders.append(order)
    return orders


@settings(max_examples=200, deadline=None)
@given(
    st.randoms(use_true_random=False),
    st.integers(1, 4),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from([None, 1, 2, 3]),
)
def test_random_orders_hang_exactly_when_the_recursion_finds_a_cycle(random, p, m, split, capacity):
    schedule = ps.Schedule.from_orders(random_orders(random, p, m, split))
    pipe = ps.Pipeline.from_costs(
        forward=[random.choice([0.0, 1.0, 2.5]) for _ in range(p)],
        input_grad=[random.choice([0.0, 1.0]) for _ in range(p)],
        weight_grad=0.5,
        latency_ms=0.25,
    )
    try:
        expected = longest_path(schedule, pipe, capacity)
    except Deadlock:
        with pytest.raises(ps.DeadlockError, match="waits for"):
            ps.simulate(pipe, schedule, queue_capacity=capacity)
        return
    run = ps.simulate(pipe, schedule, queue_capacity=capacity)
    ends = {schedule.op(n): run.spans.end[n] for n in range(len(schedule))}
    assert ends == {op: end for op, (_, end) in expected.items()}
    assert run.lower_bound <= run.makespan * (1 + 1e-12)


def test_a_message_is_matched_by_its_op_whatever_the_order_of_arrival():
    # Rank 0 sends 0F1 first, rank 1 wants 0F0 first: a plain first-in-first-out store would hand
    # over the wrong one. By hand: 0F1 0..1, 0F0 1..2, so 1F0 2..3 and 1F1 3..4.
    schedule = ps.Schedule.from_orders(["0F1 0F0", "1F0 1F1"])
    run = ps.simulate(ps.Pipeline.from_costs(forward=1.0, stages=2), schedule)
    assert run.spans.start.tolist() == [0, 1, 2, 3]


def test_messages_leave_a_link_one_after_the_other_and_then_travel():
    # 1 MB at 1 GB/s is 1 ms on the wire; F takes 0.25 ms; the latency is 10 ms. By hand:
    # departures 0.25, 1.25, 2.25 (the wire is taken), arrivals 11.25, 12.25, 13.25.
    pipe = ps.Pipeline.from_costs(
        forward=0.25, stages=2, latency_ms=10.0, bandwidth_gb_s=1.0, output_bytes=10**6
    )
    run = ps.simulate(pipe, "gpipe_forward", microbatches=3)
    links = run.trace[run.trace.resource == "link"]
    assert links.start.tolist() == [0.25, 1.25, 2.25]
    assert links.end.tolist() == [11.25, 12.25, 13.25]
    assert links.ready.tolist() == [0.25, 0.5, 0.75]


def test_stages_on_one_rank_hand_over_at_once():
    # Both stages on rank 0, a link that would take long: no transfer, no link row.
    schedule = ps.Schedule.from_orders(
        ["0F0 1F0 1B0 0B0"], placement=ps.Placement("mine", (0, 0)), microbatches=1
    )
    pipe = ps.Pipeline.from_costs(
        forward=1.0, backward=2.0, stages=2, placement=schedule.placement, latency_ms={(0, 0): 9.0}
    )
    run = ps.simulate(pipe, schedule)
    assert run.makespan == 6.0
    assert set(run.trace.resource) == {"compute"}


def test_a_bounded_queue_holds_what_is_in_transit_and_frees_it_when_the_consumer_starts():
    # F takes 1 on stage 0 and 5 on stage 1, room for one message. By hand: 0F0 0..1; its message
    # is taken when 1F0 starts at 1, so 0F1 runs 1..2; 1F1 starts at 6, so 0F2 runs 6..7.
    pipe = ps.Pipeline.from_costs(forward=[1.0, 5.0])
    run = ps.simulate(pipe, "gpipe_forward", microbatches=3, queue_capacity=1)
    first = run.schedule.stage == 0
    assert run.spans.start[first].tolist() == [0, 1, 6]
    assert run.ranks.queue_full.tolist() == [4, 0]


def test_a_deadlock_names_who_waits_for_whom():
    schedule = ps.Schedule.from_orders(["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"])
    with pytest.raises(ps.DeadlockError) as caught:
        ps.simulate(ps.Pipeline.from_costs(1.0, 2.0, stages=2), schedule)
    text = str(caught.value)
    assert "rank 0 at 0B0, op 2 of its 4: waits for the gradient from 1B0" in text
    assert "rank 1 at 1F1, op 2 of its 4: waits for the activation from 0F1" in text


def test_a_deadlock_over_a_full_queue_names_the_queue():
    # GPipe needs room for all of its backwards only if the other side does not take them; here
    # rank 1 takes its forwards last-in-first-out, so that room for one is too little.
    schedule = ps.Schedule.from_orders(["0F0 0F1", "1F1 1F0"])
    with pytest.raises(ps.DeadlockError, match="room in the queue from stage 0 to stage 1"):
        ps.simulate(ps.Pipeline.from_costs(1.0, stages=2), schedule, queue_capacity=1)


@pytest.mark.parametrize("name", ["gpipe_forward", "gpipe", "1f1b", "1f1b_eager"])
@pytest.mark.parametrize(("p", "m"), [(1, 1), (1, 4), (4, 1), (5, 2), (3, 3)])
def test_small_counts_are_ordinary_inputs(name, p, m):
    run = ps.simulate(ps.Pipeline.from_costs(1.0, 2.0, stages=p), name, m)
    assert run.makespan == (m + p - 1) * (1.0 if name == "gpipe_forward" else 3.0)


@pytest.mark.parametrize("name", ONE_STAGE)
def test_zero_costs_and_huge_ratios(name):
    parts = {"input_grad": 0.0, "weight_grad": 0.0}
    nothing = ps.simulate(ps.Pipeline.from_costs(0.0, **parts, stages=3), name, 4)
    assert (nothing.makespan, nothing.bubble_fraction, nothing.inflation) == (0.0, 0.0, None)
    only_transfers = ps.Pipeline.from_costs(0.0, **parts, stages=3, latency_ms=1.0)
    moving = ps.simulate(only_transfers, name, 4)
    assert moving.makespan >= 2
    assert (moving.bubble_fraction, moving.bubble_ratio) == (1.0, None)
    json.dumps(moving.summary(), allow_nan=False)
    assert (moving.balance, moving.filling, moving.inflation) == (1.0, 0.0, None)
    frozen = ps.Pipeline.from_costs(
        [1.0, 1.0, 1.0], input_grad=[0.0, 1.0, 1.0], weight_grad=[0.0, 1.0, 1.0]
    )
    assert ps.simulate(frozen, name, 4).makespan > 0
    apart = [1e-3, 1e3]
    far_apart = ps.Pipeline.from_costs(apart, input_grad=apart, weight_grad=apart)
    run = ps.simulate(far_apart, name, 4)
    assert run.makespan >= run.lower_bound * (1 - 1e-12)


def test_the_same_input_gives_the_same_bits():
    pipe = ps.Pipeline.from_costs([1.1, 1.3, 0.7], [2.3, 1.9, 2.2], latency_ms=0.1)
    first, second = (ps.simulate(pipe, "1f1b", 16).spans for _ in range(2))
    for name in ("ready", "start", "end", "departure", "arrival"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


def test_progress_counts_every_op_once():
    done = []
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=2)
    ps.simulate(pipe, "1f1b", 3000, progress=lambda *counts: done.append(counts))
    assert done == sorted(done)
    assert done[-1] == (12000, 12000)
    assert len(done) > 2


@pytest.mark.parametrize(
    ("recompute", "ops", "expected"),
    [
        ("early", 3, 9.5),  # F 2 + R 2 + B 4 and three overheads of 0.5
        ("with_backward", 2, 9.0),  # rebuilt within B: two overheads
    ],
)
def test_a_stage_takes_the_overhead_of_every_op_of_a_micro_batch(recompute, ops, expected):
    pipe = ps.Pipeline.from_costs(2.0, 4.0, recompute_ms=2.0, overhead_ms=0.5, stages=2)
    run = ps.simulate(pipe, "gpipe", 4, options={"recompute": recompute})
    assert stage_ms(run.schedule, pipe) == [expected] * 2
    assert run.rank_times.busy.tolist() == [4 * expected] * 2
    assert len(run.schedule) == 2 * 4 * ops


def test_an_r_with_nothing_to_rebuild_takes_no_time_and_no_overhead():
    pipe = ps.Pipeline.from_costs(2.0, 4.0, recompute_ms=[0.0, 2.0], overhead_ms=0.5, stages=2)
    run = ps.simulate(pipe, "gpipe", 1, options={"recompute": "early"})
    times = run.trace.set_index(["stage", "kind"])
    assert (times.end - times.start).loc[[(0, "R"), (1, "R")]].tolist() == [0.0, 2.5]
    assert stage_ms(run.schedule, pipe) == [7.0, 9.5]
