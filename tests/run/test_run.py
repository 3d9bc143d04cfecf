"""The numbers of a run, worked out by hand, and the ways to ask for one."""

import dataclasses
import json

import numpy as np
import pytest

import pipesim as ps
from pipesim.report.run_text import rank_text
from pipesim.run.idle import IDLE_CAUSES, RankTimes, causes_of


@pytest.fixture(scope="module")
def small():
    """Return the run of p=2, m=2, F=[1,2], B=[2,4], half a hop.

    rank 0:  F0 0-1  F1 1-2 | wait .................... | B0 8-10 | wait | B1 14-16
    rank 1:  fill   F0 1.5-3.5 B0 3.5-7.5 F1 7.5-9.5 B1 9.5-13.5 | drain to 16
    """
    pipe = ps.Pipeline.from_costs([1, 2], [2, 4], latency_ms=0.5, stash_bytes=[10, 20])
    return ps.simulate(pipe, "1f1b", 2)


def test_every_time_by_hand(small):
    ops = {str(op): n for n, op in ((n, small.schedule.op(n)) for n in range(8))}
    starts = {name: small.spans.start[n] for name, n in ops.items()}
    assert starts == {
        "0F0": 0, "0F1": 1, "0B0": 8, "0B1": 14,
        "1F0": 1.5, "1B0": 3.5, "1F1": 7.5, "1B1": 9.5,
    }  # fmt: skip
    assert small.makespan == 16
    ready = {name: small.spans.ready[n] for name, n in ops.items()}
    assert ready == {
        "0F0": 0, "0F1": 0, "0B0": 8, "0B1": 14,
        "1F0": 1.5, "1B0": 3.5, "1F1": 2.5, "1B1": 9.5,
    }  # fmt: skip


def test_where_the_time_goes_by_hand(small):
    ranks = small.ranks
    assert ranks.busy.tolist() == [6, 12]
    assert ranks.fill.tolist() == [0, 1.5]
    assert ranks.wait_forward.tolist() == [0, 0]
    assert ranks.wait_gradient.tolist() == [10, 0]
    assert ranks.drain.tolist() == [0, 2.5]
    assert ranks.idle.tolist() == [10, 4]
    assert ranks.exposed_communication.tolist() == [1, 0]  # two gradients, half each
    assert ranks.bubble_fraction.tolist() == [10 / 16, 4 / 16]
    assert ranks.peak_in_flight.tolist() == [2, 1]
    assert ranks.peak_stash_bytes.tolist() == [20, 20]


def test_every_cause_of_idle_time_is_measured_and_is_a_column(small):
    assert list(small.idle_spans) == list(IDLE_CAUSES)
    fields = [field.name for field in dataclasses.fields(RankTimes)]
    places = [fields.index(cause) for cause in IDLE_CAUSES]
    assert [fields[place] for place in sorted(places)] == list(IDLE_CAUSES)
    assert [column for column in small.ranks if column in IDLE_CAUSES] == list(IDLE_CAUSES)
    assert all(f"{cause}_ms" in small.summary()["per_rank"][0] for cause in IDLE_CAUSES)


@pytest.mark.parametrize(
    ("options", "heads"),
    [
        ({}, "fill, wait F, wait B, exposed, drain"),
        ({"queue_capacity": 1}, "fill, wait F, wait B, exposed, queue full, drain"),
        ({"protocol": "odd_even"}, "fill, wait F, wait B, blocked, exposed, drain"),
    ],
)
def test_a_run_has_the_causes_that_it_can_have(options, heads):
    pipe = ps.Pipeline.from_costs([1, 2], [2, 4], latency_ms=0.5)
    run = ps.simulate(pipe, "gpipe", 2, **options)
    columns = [cause.column for cause in causes_of(run.program, run.queue_capacity)]
    assert columns == [head for head in heads.split(", ") if head != "exposed"]
    found = rank_text(run).splitlines()
    head = "  ".join(found[0].split())
    assert "  ".join(heads.replace(",", "").split()) in head
    blocked = "; blocked: in a send or receive" if "protocol" in options else ""
    assert found[3] == (
        f"wait F, B: for an activation, a gradient{blocked}; exposed: of these waits, the part "
        "with the"
    )


def test_the_three_bubbles_and_the_reference(small):
    assert small.bubble_fraction == 14 / 32
    assert small.bubble_ratio == 14 / 18
    assert small.span_bubble == 1 - 18 / (2 * 16)
    assert small.closed_form == 1 / 3
    assert small.excess_bubble == 14 / 32 - 1 / 3
    assert (small.balance, small.filling) == (9 / 12, 12 / 16)
    assert small.equal_stages.makespan == 3 * 4.5
    assert small.inflation == 16 / 13.5
    assert (small.lower_bound, small.above_lower_bound) == (16, 0)


def test_the_trace_has_its_columns_and_its_order(small):
    trace = small.trace
    assert {name: str(dtype) for name, dtype in trace.dtypes.items()} == {
        "rank": "int32",
        "resource": "category",
        "stage": "int32",
        "chunk": "int32",
        "microbatch": "int32",
        "slice": "int32",
        "kind": "category",
        "group": "int32",
        "ready": "float64",
        "start": "float64",
        "end": "float64",
        "replica": "int32",
    }
    assert list(trace.resource.cat.categories) == ["compute", "link", "exchange", "network"]
    assert len(trace) == 8 + 4
    keys = list(zip(trace.start, trace.end, trace["rank"], trace.resource, strict=True))
    assert keys == sorted(keys)
    assert set(trace.group) == {-1}
    assert set(trace.slice) == {0}
    links = trace[trace.resource == "link"]
    assert list(links.kind) == ["SEND_F", "SEND_F", "SEND_B", "SEND_B"]
    assert list(links["rank"]) == [0, 0, 1, 1]
    assert list(links.start) == [1, 2, 7.5, 13.5]
    assert list(links.end) == [1.5, 2.5, 8, 14]


def test_in_flight_over_time_by_hand(small):
    rows = small.in_flight[["stage", "time", "in_flight", "stash_bytes"]].to_numpy().tolist()
    assert rows == [
        [0, 0, 1, 10],
        [0, 1, 2, 20],
        [0, 10, 1, 10],
        [0, 16, 0, 0],
        [1, 1.5, 1, 20],
        [1, 7.5, 1, 20],  # one ends and one starts
        [1, 13.5, 0, 0],
    ]


def test_the_summary_is_plain_and_complete(small):
    summary = small.summary()
    assert json.loads(json.dumps(summary)) == summary
    assert list(summary)[:13] == [
        "schedule",
        "protocol",
        "ranks",
        "stages",
        "microbatches",
        "makespan_ms",
        "inflation",
        "bubble_fraction",
        "bubble_ratio",
        "span_bubble",
        "closed_form_bubble_fraction",
        "excess_bubble_fraction",
        "lower_bound_ms",
    ]
    first = summary["per_rank"][0]
    assert list(first)[:5] == ["rank", "busy_ms", "idle_ms", "bubble_fraction", "peak_in_flight"]
    assert first["wait_gradient_ms"] == 10
    assert first["peak_stash_bytes"] == 20


def test_the_order_that_was_run_can_be_run_again(small):
    again = ps.simulate(small.pipeline, small.order())
    np.testing.assert_array_equal(again.spans.end, small.spans.end)
    assert repr(again) == "Run(1f1b, ranks=2, microbatches=2, makespan=16 ms, bubble=43.8%)"


def test_a_schedule_of_ones_own_as_a_function():
    def backwards_at_once(placement, microbatches, flush=False):
        orders = [
            [f"{stage}{kind}{i}" for i in range(microbatches) for kind in "FB"]
            for stage in range(placement.stages)
        ]
        return ps.Schedule.from_orders(orders, placement=placement, name="one by one")

    pipe = ps.Pipeline.from_costs([1, 1], [2, 2])
    run = ps.simulate(pipe, backwards_at_once, 3)
    assert run.makespan == 18
    assert run.closed_form is None
    assert run.excess_bubble is None
    assert run.summary()["closed_form_bubble_fraction"] is None
    with pytest.raises(ps.ScheduleError, match="returned str, not a Schedule"):
        ps.simulate(pipe, lambda placement, m: "1f1b", 3)


def test_a_split_backward_runs_in_an_order_of_ones_own():
    # rank 0 can do its W while it waits. By hand, F=I=W=1, no transfers:
    # rank 1: F0 1-2, I0 2-3, W0 3-4, F1 4-5, I1 5-6, W1 6-7; rank 0: F0 F1 0-2, I0 3-4, W0 4-5,
    # I1 6-7, W1 7-8.
    schedule = ps.Schedule.from_orders(["0F0 0F1 0I0 0W0 0I1 0W1", "1F0 1I0 1W0 1F1 1I1 1W1"])
    pipe = ps.Pipeline.from_costs(1.0, input_grad=1.0, weight_grad=1.0, stages=2)
    run = ps.simulate(pipe, schedule)
    assert run.spans.start.tolist() == [0, 1, 3, 4, 6, 7, 1, 2, 3, 4, 5, 6]
    assert run.schedule.peak_in_flight() == (2, 1)
    only_b = ps.Pipeline.from_costs(1.0, 2.0, stages=2)
    with pytest.raises(ps.ScheduleError, match="give input_grad_ms and weight_grad_ms"):
        ps.simulate(only_b, schedule)


def test_costs_by_microbatch_fix_the_number_of_microbatches():
    pipe = ps.Pipeline.from_costs([[1, 2, 3], [1, 2, 3]], 2.0)
    assert ps.simulate(pipe, "1f1b").schedule.microbatches == 3
    with pytest.raises(ps.ScheduleError, match="4 micro-batches, the costs are given for 3"):
        ps.simulate(pipe, "1f1b", 4)


def test_whole_and_split_backwards_in_one_order():
    # By hand, F=1, I=1, W=0.5, an overhead of 0.5 on every op, so B = 2: F 0-3, B0 3-5,
    # I1 5-6.5, W1 6.5-7.5.
    schedule = ps.Schedule.from_orders(["0F0 0F1 0B0 0I1 0W1"])
    pipe = ps.Pipeline.from_costs(1.0, input_grad=1.0, weight_grad=0.5, stages=1, overhead_ms=0.5)
    run = ps.simulate(pipe, schedule)
    assert (run.makespan, run.lower_bound, run.inflation) == (7.5, 7.5, 1.0)
    assert run.ranks.peak_in_flight.tolist() == [2]
    assert (run.in_flight.in_flight >= 0).all()


def test_the_bound_of_a_rank_counts_all_its_stages():
    # Two ranks of two stages, F = 1: rank 1 starts at 1 and has 2 x 3 F to do.
    placement = ps.Placement("looped", (0, 1, 0, 1))
    orders = ["0F0 0F1 2F0 0F2 2F1 2F2", "1F0 1F1 3F0 1F2 3F1 3F2"]
    schedule = ps.Schedule.from_orders(orders, placement=placement)
    pipe = ps.Pipeline.from_costs(1.0, stages=4, placement=placement)
    run = ps.simulate(pipe, schedule)
    assert run.lower_bound == 7
    assert run.makespan == 7


def test_only_what_a_family_built_has_its_closed_form():
    same_name = ps.Schedule.from_orders(["0F0 0B0 0F1 0B1", "1F0 1B0 1F1 1B1"], name="1f1b")
    pipe = ps.Pipeline.from_costs([1, 1], [2, 2])
    assert ps.simulate(pipe, same_name).closed_form is None
    assert ps.simulate(pipe, ps.build_schedule("1f1b", 2, 2)).closed_form == 1 / 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"schedule": "1f2b", "microbatches": 4}, "unknown schedule"),
        ({"schedule": "1f1b"}, "microbatches = None"),
        ({"schedule": None, "microbatches": 4}, "None is no schedule"),
        ({"schedule": "1f1b", "microbatches": 4.7}, "microbatches = 4.7"),
        ({"schedule": "1f1b", "microbatches": 4, "engine": "warp"}, "'warp' is unknown"),
        ({"schedule": "1f1b", "microbatches": 4, "protocol": "polite"}, "'polite' is unknown"),
        ({"schedule": "1f1b", "microbatches": 4, "queue_capacity": 0}, "queue_capacity = 0"),
        ({"schedule": "1f1b", "microbatches": 4, "options": {"a": 1}}, "has no option 'a'"),
        ({"schedule": ps.build_schedule("1f1b", 2, 3), "microbatches": 4}, "has 3 micro-batches"),
        ({"schedule": ps.build_schedule("1f1b", 2, 3), "options": {"a": 1}}, "takes no options"),
        ({"schedule": ps.build_schedule("1f1b", 3, 3)}, "3 stages on 3 ranks, the pipeline has 2"),
    ],
)
def test_bad_requests_are_refused(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ps.simulate(ps.Pipeline.from_costs([1, 1], [2, 2]), **arguments)


def test_a_backward_that_is_missing_is_asked_for():
    with pytest.raises(ps.ScheduleError, match="1f1b runs backwards: give backward_ms"):
        ps.simulate(ps.Pipeline.from_costs([1, 1]), "1f1b", 4)


def test_the_ladder_by_hand(small):
    rungs = ps.ladder(small)
    assert rungs.rung.tolist() == ["equal stages", "+ unequal stages", "+ transfers"]
    # Without transfers: 1 + 12 + 2 = 15.
    assert rungs.step_ms.tolist() == [13.5, 15, 16]
    assert rungs.added_ms.tolist()[1:] == [1.5, 1]
    assert rungs["rank"].tolist() == [-1, 1, -1]


def test_the_ladder_tells_varying_costs_and_queues_apart():
    pipe = ps.Pipeline.from_costs([[1, 3, 1], [2, 1, 3]], [[2, 2, 2], [1, 5, 1]], latency_ms=0.5)
    run = ps.simulate(pipe, "gpipe", queue_capacity=1)
    rungs = ps.ladder(run)
    assert rungs.rung.tolist() == [
        "equal stages",
        "+ unequal stages",
        "+ varying micro-batches",
        "+ transfers",
        "+ bounded queues",
    ]
    assert rungs.step_ms.iloc[-1] == run.makespan
    assert rungs.step_ms.iloc[0] == pytest.approx(run.equal_stages.makespan)
    assert np.nansum(rungs.added_ms) == pytest.approx(run.makespan - rungs.step_ms.iloc[0])


def test_slices_hold_all_bytes_of_their_microbatch():
    pipe = ps.Pipeline.from_costs([1, 1], [2, 2], stash_bytes=1)
    whole = ps.simulate(pipe, "seq1f1b", 1, options={"slices": 3})
    assert whole.ranks.peak_stash_bytes.tolist() == [1, 1]
    table = ps.simulate(pipe, "seq1f1b", 4).in_flight
    assert table.stash_bytes.iloc[-1] == 0
    assert table.stash_bytes.max() == 2  # the first slices of two micro-batches
