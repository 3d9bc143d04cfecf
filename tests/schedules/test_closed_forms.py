"""Closed forms: by hand, in their ranges and outside. Of makespans: test_properties.py."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipesim as ps
from pipesim.run import lower_bound as bounds
from pipesim.schedules.families.registry import (
    FAMILIES,
    closed_form_bubble,
    closed_form_bubbles,
)
from tests.schedules import theory
from tests.strategies import positive_costs


def test_by_hand():
    # p=2, m=3, F=[1,2], B=[2,3].
    assert theory.forward_only_makespan([1, 2], 3) == 1 + 2 + 2 * 2
    assert theory.forward_only_makespan([1, 2], 3, latency=0.5) == 7.5
    assert theory.gpipe_makespan([1, 2], [2, 3], 3) == 8 + 2 * (2 + 3)
    assert theory.gpipe_makespan([1, 2], [2, 3], 3, latency=0.5) == 19
    assert theory.one_f_one_b_makespan([1, 1], [2, 2], 3) == 4 * 3
    # Two hops in the fill and drain, and one of the two more micro-batches pays two.
    assert theory.one_f_one_b_makespan([1, 1], [2, 2], 3, latency=0.5) == 12 + 2 * 0.5 * 2
    assert theory.eager_one_f_one_b_makespan([1, 1], [2, 2], 3, latency=0.5) == 13
    assert theory.alpa_makespan([3, 5], 3) == 8 + 2 * 5


@pytest.mark.parametrize(("slow", "makespan"), [(0, 51), (1, 53), (2, 55), (3, 57)])
def test_one_slow_stage(slow, makespan):
    f = [2 if stage == slow else 1 for stage in range(4)]
    assert theory.one_f_one_b_makespan(f, [2 * x for x in f], 8) == makespan


def test_bounds_by_hand():
    # Two stages, two micro-batches, F=[1,2], B=[2,4], half a hop: stage 1 starts at 1.5, works
    # 12, and then a gradient takes 0.5 and B of stage 0 takes 2.
    f, b = [[1, 1], [2, 2]], [[2, 2], [4, 4]]
    assert bounds.fused_lower_bound(f, b, [0.5], [0.5]) == 16
    # Forwards only: stage 1 starts at 1.5 and works 4.
    assert bounds.forward_lower_bound(f, [0.5]) == 5.5
    # Split, I = W = B/2: stage 1 starts at 1.5 and works 12, no way back needed after its last W;
    # or its F and I alone, 8, and then 0.5 and I of stage 0, 1.
    i = [[1, 1], [2, 2]]
    assert bounds.split_lower_bound(f, i, i, [0.5], [0.5]) == 13.5
    # One micro-batch: the longest way, 1 + .5 + 2 + 2 + .5 + 1, and W of stage 0, 1.
    one = [[1], [2]]
    assert bounds.split_lower_bound(one, one, one, [0.5], [0.5]) == 8
    # With ten micro-batches of ten each the zero-bubble paper's H1 takes 270 at p=4, m=8.
    tens = [[10] * 8] * 4
    assert bounds.split_lower_bound(tens, tens, tens, [0] * 3, [0] * 3) <= 270


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.forward_only_makespan([], 1), "forward is empty"),
        (lambda: theory.forward_only_makespan([1, -1], 1), r"forward\[1\] = -1"),
        (lambda: theory.forward_only_makespan([1], 0), "microbatches = 0"),
        (lambda: theory.forward_only_makespan([1], 1, latency=-1), "latency = -1"),
        (lambda: theory.gpipe_makespan([1, 1], [1], 1), "2 forward times, but 1 backward"),
        (lambda: theory.one_f_one_b_makespan([1, 2, 3], [1, 2, 3], 4), "no closed form"),
        (lambda: theory.one_f_one_b_makespan([2, 1], [4, 2], 4, 0.1), "no closed form"),
        (lambda: theory.one_f_one_b_makespan([1.1, 1], [2.2, 2], 4), "no closed form"),
        (lambda: theory.one_f_one_b_makespan([2, 1], [4, 3], 4), "no closed form"),
        (lambda: theory.one_f_one_b_makespan([1, 1], [2, 2], 4, 2.5), "latency 2.5 is above"),
        (lambda: theory.eager_one_f_one_b_makespan([1, 2], [1, 2], 4), "not equal"),
        (lambda: theory.eager_one_f_one_b_makespan([1, 1], [1, 1], 4, 1), "is above min"),
    ],
)
def test_outside_their_range_they_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_one_rank_pays_no_latency():
    assert theory.one_f_one_b_makespan([1], [2], 4, latency=100.0) == 12
    assert theory.eager_one_f_one_b_makespan([1], [2], 4, latency=100.0) == 12


# By hand, two ranks: what is idle beside the work of a rank, m (F+I+W) of a stage.
@pytest.mark.parametrize(
    ("name", "chunks", "m", "costs", "idle"),
    [
        # rank 0: F0 F1 . I0 W0 F2 I1 W1 ..; rank 1 starts at F and waits for nothing.
        ("zb_h1", 1, 4, (2, 3, 1), 2 + 3 - 1),
        ("zb_h1", 1, 4, (2, 1, 2), 2),  # rank 0 waits for less than rank 1 starts later
        ("zb_h1", 1, 1, (2, 3, 1), 2 + 3),  # F F I I, and W of rank 0
        ("zb_h2", 1, 3, (2, 5, 1), 2 + 5 - 2),
        ("zb_h2", 1, 3, (2, 2, 1), 2),
        ("zb_v", 2, 3, (1, 1, 1), 1),
        ("zb_v", 2, 3, (1, 4, 1), 6),
        ("interleaved_zb", 2, 2, (2, 3, 1), 2 + 3 - 1),
        ("hanayo", 2, 1, (1, 1, 2), 2 * 4),  # all four stages in turn, two a rank
        ("hanayo", 2, 2, (1, 1, 2), 2 * 3),
        ("chimera", 1, 2, (1, 1, 1), 0),
        ("dualpipe", 1, 4, (1, 1, 1), 0),
        ("dualpipe_v", 2, 4, (2, 1, 1), 2 * 2 + 1 - 1),
    ],
)
def test_bubbles_by_hand(name, chunks, m, costs, idle):
    f, i, w = costs
    pipe = ps.Pipeline.from_costs(
        f,
        input_grad=i,
        weight_grad=w,
        stages=2 * chunks,
        placement=FAMILIES[name].placement,
        ranks=2,
    )
    run = ps.simulate(pipe, name, m)
    work = m * chunks * sum(costs)
    assert run.makespan == work + idle
    assert run.closed_form == pytest.approx(idle / (work + idle), rel=1e-12)


def within(name, p, m, chunks, f, i, w, pair):
    """Return what a closed form's range asks for: (at most this, this) of times, or a truth."""
    b = i + w
    return {
        "zb_h1": [(w, f)] + ([(w, i)] if m < p else []),
        "zb_h2": [(w, f), m >= 2 * p - 1],
        "zb_v": [(f, i), (w, i), m >= 2 * p - 1],
        "interleaved_zb": [(w, f), m >= p],
        "dualpipe": [(i, f), (f, pair), (b, pair)],
        "dualpipe_v": [(i, f), (f, pair), (b, pair)],
        "chimera": [(f, b), m % p == 0],
        "hanayo": [(2 * f, b), m <= p or chunks == 2],
    }[name]


BY_TIMES = [
    n for n, family in FAMILIES.items() if family.closed_form and family.closed_form.of_times
]


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(BY_TIMES), st.data())
def test_a_closed_form_is_the_bubble_inside_its_range_and_none_outside(name, data):
    p = data.draw(st.integers(1, 6))
    if name in ("dualpipe", "chimera"):
        p = 2 * data.draw(st.integers(1, 4))
    chunks = FAMILIES[name].chunks or data.draw(st.integers(1, 3))
    chunks = 2 * chunks if name == "hanayo" else chunks
    least = 2 * p if "dualpipe" in name else 1
    m = data.draw(st.integers(least, least + 14))
    if name == "dualpipe":
        m += m % 2
    if name == "interleaved_zb" and m > p:
        m -= m % (m // p)
    if name == "chimera" and data.draw(st.booleans()):
        m = p * data.draw(st.integers(1, 3))
    # Small whole numbers meet the ends of ranges.
    time = st.one_of(st.integers(1, 4).map(float), st.floats(0.1, 10.0))
    f, i, w = data.draw(time), data.draw(time), data.draw(time)
    if name == "hanayo" and data.draw(st.booleans()):
        f = min(f, (i + w) / 2)
    share = data.draw(st.sampled_from([0.5, 0.75, 0.9, 1.0, 1.1]))
    pair = share * (f + i + w)
    pipe = ps.Pipeline.from_costs(
        f,
        input_grad=i,
        weight_grad=w,
        overlap_ms=pair,
        stages=p * chunks,
        ranks=p,
        placement=FAMILIES[name].placement,
    )
    run = ps.simulate(pipe, name, m, engine="replay")
    limits = within(name, p, m, chunks, f, i, w, pair)
    if all(one if isinstance(one, bool) else one[0] <= one[1] for one in limits):
        assert run.closed_form == pytest.approx(run.bubble_fraction, abs=1e-9)
        assert run.excess_bubble == pytest.approx(0.0, abs=1e-9)
    elif any(not one if isinstance(one, bool) else one[0] > one[1] * (1 + 1e-9) for one in limits):
        assert run.closed_form is None
        assert run.excess_bubble is None


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 14), positive_costs, positive_costs)
def test_chunks_in_a_loop_have_one_closed_form_for_any_number_of_microbatches(p, v, m, f, b):
    pipe = ps.Pipeline.from_costs(f, b, stages=p * v, ranks=p)
    orders = [("looped_bfs", {})]
    if m % max(1, m // p) == 0:
        orders.append(("interleaved", {"grouping": "pytorch"}))
    if m >= p:
        orders.append(("interleaved", {"group": m, "warm_up": "short"}))
    for name, options in orders:
        run = ps.simulate(pipe, name, m, options=options, engine="replay")
        assert run.closed_form == pytest.approx(run.bubble_fraction, abs=1e-9)


@pytest.mark.parametrize("name", ["zb_auto", "zb_1p", "zb_2p", "v_schedule", "v_half", "v_min"])
def test_searched_orders_have_none(name):
    chunks = FAMILIES[name].chunks
    pipe = ps.Pipeline.from_costs(
        1.0,
        input_grad=1.0,
        weight_grad=1.0,
        stages=2 * chunks,
        ranks=2,
        placement=FAMILIES[name].placement,
    )
    assert ps.simulate(pipe, name, 4).closed_form is None


def test_the_closed_form_is_that_of_the_mean_costs():
    # Means F = 2, I = 2, W = 1: idle (p-1)(F+I-W) = 3 of 3 + 4 x 5.
    pipe = ps.Pipeline.from_costs([1, 3], input_grad=[3, 1], weight_grad=[1, 1], latency_ms=1.0)
    run = ps.simulate(pipe, "zb_h1", 4)
    assert run.closed_form == pytest.approx(3 / 23)
    assert run.closed_form == run.equal_stages.closed_form
    assert run.excess_bubble == pytest.approx(run.bubble_fraction - 3 / 23)
    # W <= F holds for the mean of these, too, but not for that of the next.
    pipe = ps.Pipeline.from_costs([1, 1], input_grad=[3, 1], weight_grad=[1, 2])
    assert ps.simulate(pipe, "zb_h1", 4).closed_form is None


def test_overheads_are_a_part_of_the_times():
    pipe = ps.Pipeline.from_costs(1.5, input_grad=1, weight_grad=1, stages=3, overhead_ms=0.5)
    assert ps.simulate(pipe, "zb_h1", 6).closed_form == pytest.approx(2 * 2 / (6 * 5 + 4))
    # A backward in two parts pays them twice: DualPipe, which runs both, has no closed form then.
    pipe = ps.Pipeline.from_costs(2, input_grad=1, weight_grad=1, stages=4, overhead_ms=0.5)
    assert ps.simulate(pipe, "dualpipe", 8).closed_form is None


def test_ops_without_time_have_no_closed_form_by_times():
    pipe = ps.Pipeline.from_costs(0.0, input_grad=0.0, weight_grad=0.0, stages=2)
    assert ps.simulate(pipe, "zb_h1", 2).closed_form is None


def test_closed_forms_of_many_pipelines_are_those_of_each():
    base = ps.Pipeline.from_costs([1, 1], input_grad=[1, 1], weight_grad=[1, 1])
    forward = np.array([[1.0, 1.0], [2.0, 2.0], [0.5, 0.5]])
    variants = ps.CostVariants(base, {"forward_ms": forward})
    order = ps.build_schedule("zb_h1", 2, 4)
    found = closed_form_bubbles(order, variants)
    assert found[:2].tolist() == [
        closed_form_bubble(order, lambda k=k: variants[k]) for k in (0, 1)
    ]
    assert np.isnan(found[2])  # W > F
    assert found.tolist()[:2] == closed_form_bubbles(order, list(variants)[:2]).tolist()
    assert closed_form_bubbles(ps.build_schedule("1f1b", 2, 4), variants).tolist() == [1 / 5] * 3
    assert np.isnan(closed_form_bubbles(ps.build_schedule("zb_1p", 2, 4), variants)).all()
    assert closed_form_bubble(order) is None  # without times


def test_the_public_table_names_every_schedule_and_its_range():
    table = ps.closed_forms()
    assert table.columns.tolist() == ["schedule", "formula", "range", "source"]
    assert table.schedule.tolist() == list(ps.schedule_names())
    none = table[table.formula == "-"]
    assert none.range.str.startswith("none known: ").all()
    assert set(none.schedule) == {n for n, f in FAMILIES.items() if f.closed_form is None}
    assert (table.range != "").all()
