"""Many pipelines at once: the same numbers as one run each."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipesim as ps
from pipesim.engine.op_costs import op_times
from pipesim.engine.workload import bind
from pipesim.pipeline.variants import CostVariants, cost_fields
from pipesim.run.lower_bound import makespan_bounds
from pipesim.run.many import METRICS, simulate_many
from pipesim.schedules.program.program import bare_program
from tests.strategies import cases, positive_costs


@st.composite
def batches(draw):
    """Draw (schedule, pipelines) that differ in their costs, as a list or as variants of one."""
    pipe, schedule = draw(cases(positive_costs))
    if schedule.remake is not None:
        return schedule, [pipe]
    count = draw(st.integers(1, 4))
    stages = len(pipe.stages)
    row = st.lists(positive_costs, min_size=stages, max_size=stages)
    if pipe.microbatches is not None:
        factors = draw(st.lists(row, min_size=count, max_size=count))
        return schedule, [scaled(pipe, row) for row in factors]
    rows = st.lists(row, min_size=count, max_size=count)
    costs = {name: np.array(draw(rows)) for name in cost_fields(pipe)}
    variants = CostVariants(pipe, costs)
    return schedule, draw(st.sampled_from([variants, list(variants)]))


def scaled(pipe, factors):
    from pipesim.studies.sweep.imbalance import scaled as scale

    return scale(pipe, factors)


@given(batches())
def test_a_batch_has_the_numbers_of_every_run(batch):
    schedule, pipelines = batch
    many = simulate_many(schedule, pipelines)
    for number, pipe in enumerate(pipelines):
        run = ps.simulate(pipe, schedule)
        assert many["makespan_ms"][number] == run.makespan
        summary = run.summary()
        for name in METRICS:
            if summary[name] is None:
                assert np.isnan(many[name][number])
            else:
                near = pytest.approx(summary[name], rel=1e-9, abs=1e-9)
                assert many[name][number] == near, name


@given(batches())
def test_a_row_does_not_depend_on_its_neighbours(batch):
    schedule, pipelines = batch
    many = simulate_many(schedule, pipelines)
    for number in range(len(pipelines)):
        alone = simulate_many(schedule, pipelines[number : number + 1])
        for name in METRICS:
            assert np.array_equal(many[name][number : number + 1], alone[name], equal_nan=True)


@given(batches())
def test_ops_take_the_same_time_to_the_bit(batch):
    schedule, pipelines = batch
    times = op_times(schedule, pipelines)
    for number, pipe in enumerate(pipelines):
        workload = bind(bare_program(schedule), pipe)
        assert np.array_equal(times.duration[number][times.entry], workload.duration)
        busy = np.bincount(
            schedule.rank, np.where(workload.second, 0, workload.duration), schedule.ranks
        )
        assert times.busy(schedule.ranks)[number] == pytest.approx(busy, rel=1e-12)


@given(batches())
def test_bounds_are_those_of_one_pipeline(batch):
    schedule, pipelines = batch
    bounds = makespan_bounds(schedule, pipelines)
    for bound, pipe in zip(bounds, pipelines, strict=True):
        assert bound == makespan_bounds(schedule, [pipe])[0]


protocols = st.fixed_dictionaries(
    {
        "protocol": st.sampled_from(["eager", "rendezvous", "paired", "posted"]),
        "queue_capacity": st.sampled_from([None, 1, 2]),
    }
)


@settings(max_examples=60)
@given(batches(), protocols)
def test_all_numbers_under_protocols_and_queues(batch, how):
    schedule, pipelines = batch
    try:
        many = simulate_many(schedule, pipelines, **how)
    except ps.DeadlockError:
        with pytest.raises(ps.DeadlockError):
            ps.simulate(pipelines[0], schedule, **how)
        return
    for number, pipe in enumerate(pipelines):
        run = ps.simulate(pipe, schedule, **how)
        summary = run.summary()
        for name in METRICS:
            expected = np.nan if summary[name] is None else summary[name]
            near = pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True)
            assert many[name][number] == near, name
        assert many["busy_ms"][number] == pytest.approx(run.ranks.busy.to_numpy(), rel=1e-9)
        idle = pytest.approx(run.ranks.idle.to_numpy(), rel=1e-9, abs=1e-9 * run.makespan)
        assert many["idle_ms"][number] == idle


@pytest.mark.parametrize("together", [1, 10_000])
def test_pipelines_of_every_kind_in_one_batch(monkeypatch, together):
    monkeypatch.setattr("pipesim.run.many.MOST_TIMES", together)
    schedule = ps.build_schedule("1f1b", 3, 4)
    links = {"latency_ms": 0.3, "bandwidth_gb_s": 1.0, "output_bytes": 10**6}
    pipelines = [
        ps.Pipeline.from_costs([1, 2, 3], [2, 1, 2]),
        ps.Pipeline.from_costs([[1, 2, 1, 3]] * 3, [2, 1, 2]),
        ps.Pipeline.from_costs([1, 2, 3], [2, 1, 2], **links),
        ps.Pipeline.from_costs([1, 2, 3], [2, 1, 2], speed=[1.0, 0.5, 2.0], overhead_ms=0.1),
        ps.Pipeline.from_costs([[3, 2, 1, 0]] * 3, [2, 1, 2], **links),
    ]
    for how in ({}, {"protocol": "paired", "eager_limit_bytes": 1000}):
        many = simulate_many(schedule, pipelines, **how)["makespan_ms"]
        assert many.tolist() == [ps.simulate(p, schedule, **how).makespan for p in pipelines]


def test_no_pipelines_and_bad_limits():
    schedule = ps.build_schedule("1f1b", 2, 3)
    assert all(len(values) == 0 for values in simulate_many(schedule, []).values())
    pipe = ps.Pipeline.from_costs([1, 1], [2, 2])
    for limit in (0, 1.5):
        with pytest.raises(ValueError, match=f"queue_capacity = {limit} is not"):
            simulate_many(schedule, [pipe], queue_capacity=limit)


def test_nothing_takes_no_time():
    pipe = ps.Pipeline.from_costs([0, 0], [0, 0])
    numbers = simulate_many(ps.build_schedule("1f1b", 2, 3), [pipe])
    summary = ps.simulate(pipe, "1f1b", 3).summary()
    for name in METRICS:
        values = numbers[name]
        assert (None if np.isnan(values[0]) else values[0]) == summary[name], name


def test_missing_costs_and_other_sizes_are_refused():
    schedule = ps.build_schedule("zb_h1", 2, 3)
    with pytest.raises(ps.ScheduleError, match="splits the backward"):
        simulate_many(schedule, [ps.Pipeline.from_costs([1, 1], [2, 2])])
    with pytest.raises(ps.ScheduleError, match="is for 2 stages on 2 ranks"):
        simulate_many(schedule, [ps.Pipeline.from_costs([1] * 3, [2] * 3)])


@settings(max_examples=40)
@given(cases(), st.integers(1, 9))
def test_a_run_and_many_give_the_same_bits(case, copies):
    pipe, schedule = case
    run = ps.simulate(pipe, schedule, engine="replay")
    summary = run.summary()
    numbers = simulate_many(schedule, [pipe] * copies)
    for name in METRICS:
        expected = np.nan if summary[name] is None else summary[name]
        assert np.array_equal(numbers[name], [expected] * copies, equal_nan=True), name
    assert (numbers["busy_ms"] == run.rank_times.busy).all()


@given(st.integers(1, 40), st.integers(1, 12), st.data())
def test_variants_and_single_runs_give_the_same_bits(stages, m, data):
    costs = st.lists(st.floats(0.1, 10.0), min_size=stages, max_size=stages)
    forward = np.array([data.draw(costs) for _ in range(3)])
    base = ps.Pipeline.from_costs(forward[0], 2.0, latency_ms=0.3, overhead_ms=0.1, stages=stages)
    schedule = ps.build_schedule("1f1b", stages, m)
    numbers = simulate_many(schedule, CostVariants(base, {"forward_ms": forward}))
    for row, values in enumerate(forward):
        pipe = ps.Pipeline.from_costs(values, 2.0, latency_ms=0.3, overhead_ms=0.1)
        summary = ps.simulate(pipe, schedule, engine="replay").summary()
        assert all(numbers[name][row] == summary[name] for name in METRICS)
