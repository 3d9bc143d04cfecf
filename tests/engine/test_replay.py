"""The replay engine against the SimPy engine, bit for bit, alone and in batches."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipesim as ps
from pipesim.engine.graph.event_graph import event_graph
from pipesim.engine.op_costs import messages_of, op_times
from pipesim.engine.replay.cost_index import cost_index
from pipesim.engine.replay.replay import make_plan
from pipesim.run.many import simulate_many
from pipesim.schedules.program.lowering import PROTOCOLS, lower
from tests.strategies import cases

options = st.fixed_dictionaries(
    {
        "protocol": st.sampled_from(PROTOCOLS),
        "queue_capacity": st.sampled_from([None, 1, 2, 3]),
        "eager_limit_bytes": st.sampled_from([None, 0, 10**6]),
    }
).map(lambda o: o | {"eager_limit_bytes": None} if o["protocol"] == "eager" else o)


@settings(max_examples=150, deadline=None)
@given(cases(), options)
def test_both_engines_give_the_same_run_to_the_last_bit(case, options):
    pipe, schedule = case
    try:
        expected = ps.simulate(pipe, schedule, **options)
    except ps.DeadlockError as error:
        with pytest.raises(ps.DeadlockError, match=f"^{re.escape(str(error))}$"):
            ps.simulate(pipe, schedule, engine="replay", **options)
        return
    run = ps.simulate(pipe, schedule, engine="replay", **options)
    for name in ("ready", "start", "end", "departure", "arrival", "enter", "leave"):
        np.testing.assert_array_equal(getattr(run.spans, name), getattr(expected.spans, name))
    assert run.trace.equals(expected.trace)
    assert run.summary() == expected.summary()


def with_other_costs(pipe, factors, sizes):
    """Return pipelines that differ in all that a cost set holds."""
    from dataclasses import replace

    def times(cost, factor):
        return tuple(factor * c for c in cost) if isinstance(cost, tuple) else factor * cost

    for number, factor in enumerate(factors):
        stages = tuple(
            replace(
                stage,
                forward_ms=times(stage.forward_ms, factor + place),
                input_grad_ms=times(stage.input_grad_ms, factor),
                weight_grad_ms=times(stage.weight_grad_ms, factor * place),
                output_bytes=stage.output_bytes + (1000 * number if sizes else 0),
            )
            for place, stage in enumerate(pipe.stages)
        )
        yield replace(pipe, stages=stages)


@settings(max_examples=80, deadline=None)
@given(cases(), options, st.lists(st.floats(0.0, 100.0), min_size=1, max_size=70))
def test_a_batch_gives_what_the_runs_give_one_by_one(case, options, factors):
    pipe, schedule = case
    # Whether a limit lets messages pass, and so what hangs, is to be the same for all.
    sizes = options["eager_limit_bytes"] is None
    pipes = [pipe, *with_other_costs(pipe, factors[:5], sizes)]
    # More than a block of cost sets, the others over and over.
    columns = [n % len(pipes) for n in range(len(factors))]
    try:
        numbers = simulate_many(schedule, [pipes[n] for n in columns], **options)
    except ps.DeadlockError:
        with pytest.raises(ps.DeadlockError):
            ps.simulate(pipe, schedule, **options)
        return
    for number, one in enumerate(pipes):
        run = ps.simulate(one, schedule, **options)
        for column in np.flatnonzero(np.equal(columns, number)):
            assert numbers["makespan_ms"][column] == run.makespan
            span = numbers["span_bubble"][column]
            assert span == pytest.approx(run.span_bubble, rel=1e-9, abs=1e-9, nan_ok=True)


@settings(max_examples=100, deadline=None)
@given(cases(), options)
def test_a_plan_knows_when_every_op_starts_and_ends(case, options):
    pipe, schedule = case
    options = options | {"eager_limit_bytes": None}
    program = lower(schedule, options["protocol"])
    wires = any(link.bandwidth_gb_s is not None for link in pipe.links.values())
    capacity = options["queue_capacity"]
    graph = event_graph(program, queue_capacity=capacity, wires=wires)
    times = op_times(schedule, [pipe])
    index = cost_index(program, times.entry, times.duration.shape[1], wires=wires)
    try:
        plan = make_plan(graph, index)
    except ps.DeadlockError:
        with pytest.raises(ps.DeadlockError):
            ps.simulate(pipe, schedule, **options)
        return
    costs = index.cost_sets(times.duration, *messages_of(program, [pipe], index.messages))
    expected = ps.simulate(pipe, schedule, **options).spans
    start, end = plan.op_times(np.ascontiguousarray(costs[:, 0]))
    np.testing.assert_array_equal(start, expected.start)
    np.testing.assert_array_equal(end, expected.end)
    many = simulate_many(schedule, [pipe, pipe], ops=True, **options)
    np.testing.assert_array_equal(many["start_ms"][1], expected.start)
    np.testing.assert_array_equal(many["end_ms"][0], expected.end)


def test_costs_that_do_not_vary_make_a_short_cost_set_and_one_step_an_op():
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=8, latency_ms=0.1)
    program = lower(ps.build_schedule("1f1b", 8, 64), "eager")
    times = op_times(program.order, [pipe])
    index = cost_index(program, times.entry, times.duration.shape[1], wires=False)
    assert len(index.messages) == 7 * 2  # of all that are sent, there and back over 7 boundaries
    graph = event_graph(program, wires=False)
    plan = make_plan(graph, index)
    assert len(plan) == 8 * 64 * 2 + 7  # and when ranks 1 to 7 start
    assert plan.cell_count <= 4 * 8
    costs = index.cost_sets(times.duration, *messages_of(program, [pipe], index.messages))
    assert plan.run(costs).makespan[0] == ps.simulate(pipe, "1f1b", 64).makespan


def test_a_policy_cannot_be_replayed_but_its_order_can():
    pipe = ps.Pipeline.from_costs([1, 2, 1], [2, 3, 2])
    with pytest.raises(ps.UnsupportedByEngine, match=r"decides on line.*run\.order"):
        ps.simulate(pipe, ps.backward_first(3), 4, engine="replay")
    order = ps.simulate(pipe, ps.backward_first(3), 4).order()
    replayed = ps.simulate(pipe, order, engine="replay")
    assert replayed.makespan == ps.simulate(pipe, order).makespan


def test_a_graph_is_kept_for_the_same_schedule_only(monkeypatch):
    from pipesim.engine.graph import event_graph as graph_cache

    built = []
    monkeypatch.setattr(
        graph_cache, "event_graph", lambda *a, **k: built.append(k) or event_graph(*a, **k)
    )
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=3, latency_ms=0.5)
    schedule = ps.build_schedule("1f1b", 3, 5)

    def steps(**options):
        return ps.simulate(pipe, schedule, engine="replay", **options).makespan

    assert steps(queue_capacity=1) == steps(queue_capacity=1) >= steps()
    assert len(built) == 1  # and none where messages leave by themselves
    assert steps(protocol="paired") == steps(protocol="paired") != steps()
    assert steps(queue_capacity=2) >= steps()
    assert len(built) == 3
    for _ in range(2):  # a schedule by its name is the same one, too
        ps.simulate(pipe, "1f1b", 5, engine="replay", queue_capacity=1)
    assert len(built) == 3
    schedule = ps.build_schedule("1f1b", 3, 5).relabelled(name="another")
    assert steps(queue_capacity=1) == ps.simulate(pipe, schedule, queue_capacity=1).makespan
    assert len(built) == 4
