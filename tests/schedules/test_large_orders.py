"""What compiled code says of large orders is what the slow checks say of small ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipesim as ps
from pipesim.schedules.order import op_columns
from pipesim.schedules.order.dataflow import consumers, local_inputs, producers
from pipesim.schedules.order.kernels import check_and_connect
from tests.strategies import cases


def looked_at(schedule, **columns):
    given = {name: columns.get(name, getattr(schedule, name)) for name in ("kind", "stage")}
    unit = columns.get("microbatch", schedule.microbatch)
    return check_and_connect(
        given["kind"], given["stage"], unit, schedule.offsets, schedule.rank_table
    )


@settings(max_examples=50)
@given(cases())
def test_orders_of_the_registry_are_right_and_connected_alike(case):
    _, schedule = case
    if schedule.slices > 1:
        return
    right, taken, source, needed = looked_at(schedule)
    assert right
    np.testing.assert_array_equal(taken, consumers(schedule))
    np.testing.assert_array_equal(source, producers(schedule))
    np.testing.assert_array_equal(needed, local_inputs(schedule))


@settings(max_examples=60)
@given(cases(), st.sampled_from(["kind", "stage", "microbatch"]), st.data())
def test_a_changed_op_is_found_by_both(case, name, data):
    _, schedule = case
    if schedule.slices > 1 or (schedule.group >= 0).any():
        return
    place = data.draw(st.integers(0, len(schedule) - 1))
    column = getattr(schedule, name).copy()
    column[place] = data.draw(st.integers(-1, max(4, int(column.max()) + 1)))
    fields = ("name", "placement", "microbatches", "stage", "kind", "microbatch", "offsets")
    values = {field: getattr(schedule, field) for field in (*fields, "directions")}
    try:
        ps.Schedule(**(values | {name: column}))
        fine = True
    except ps.ScheduleError:
        fine = False
    assert bool(looked_at(schedule, **{name: column})[0]) == fine


def test_a_fault_of_a_large_order_is_told_as_that_of_a_small_one(monkeypatch):
    monkeypatch.setattr(op_columns, "LARGE", 0)
    good = ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]
    assert ps.Schedule.from_orders(good) == ps.build_schedule("1f1b", 2, 2)
    with pytest.raises(ps.ScheduleError, match="1B0 comes before its own stage's input"):
        ps.Schedule.from_orders([good[0], "1B0 1F0 1F1 1B1"])
    with pytest.raises(ps.ScheduleError, match="1F1 is there twice"):
        ps.Schedule.from_orders([good[0], "1F0 1B0 1F1 1F1 1B1"])


def test_half_a_million_ops_have_the_closed_form_and_the_summary():
    p, m = 256, 1024
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=p)
    run = ps.simulate(pipe, "1f1b", m, engine="replay")
    assert len(run.schedule) == 524_288
    summary = run.summary()
    assert summary["makespan_ms"] == (m + p - 1) * 3
    assert summary["inflation"] == 1
    assert summary["bubble_fraction"] == pytest.approx((p - 1) / (m + p - 1))
    assert summary["lower_bound_ms"] == pytest.approx(summary["makespan_ms"])
    assert run.schedule.peak_in_flight() == tuple(range(p, 0, -1))
