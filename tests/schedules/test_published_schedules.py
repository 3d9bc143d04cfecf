"""Published answers for every schedule beyond GPipe and 1F1B, case by case."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

import pipesim as ps

CASES = json.loads((Path(__file__).parents[1] / "data" / "published_schedules.json").read_text())


def of(*names):
    chosen = [case for case in CASES if case["schedule"] in names]
    return pytest.mark.parametrize("case", chosen, ids=[case["id"] for case in chosen])


def pipeline(case, stages, **more):
    costs = case["costs"]
    return ps.Pipeline.from_costs(
        costs["F"],
        input_grad=costs["B"],
        weight_grad=costs["W"],
        stages=stages,
        latency_ms=costs.get("comm", 0),
        **more,
    )


@of("interleaved_1f1b")
def test_interleaved(case):
    p, m, v, costs = case["p"], case["m"], case["v"], case["costs"]
    f, b = (
        (costs["F_chunk"], costs["B_chunk"])
        if "F_chunk" in costs
        else (costs["F_stage"] / v, costs["B_stage"] / v)
    )
    pipe = ps.Pipeline.from_costs(f, b, stages=p * v, ranks=p, latency_ms=costs["comm"])
    run = ps.simulate(pipe, "interleaved", m)
    expected = case["expected"]
    assert run.makespan == pytest.approx(expected["makespan"], rel=1e-9)
    if costs["comm"] == 0:
        assert run.bubble_ratio == pytest.approx(expected["bubble_idle_ideal"], rel=1e-9)
        assert run.bubble_fraction == pytest.approx(expected["bubble_idle_total"], rel=1e-9)
        assert run.closed_form == pytest.approx(run.bubble_fraction, rel=1e-9)
        held = run.ranks.peak_in_flight.tolist()
        assert held == expected["peak_chunk_activations_per_rank"]
        assert held[0] / v == pytest.approx(expected["peak_rank0_microbatch_equiv"], rel=1e-9)


@of("looped_bfs")
def test_looped_breadth_first(case):
    p, m, v = case["p"], case["m"], case["v"]
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=p * v, ranks=p)
    run = ps.simulate(pipe, "looped_bfs", m)
    assert run.makespan == case["expected"]["makespan"]
    assert run.bubble_ratio == pytest.approx(case["expected"]["bubble_idle_ideal"], rel=1e-9)
    assert run.ranks.peak_in_flight.tolist() == case["expected"]["peak_chunk_activations_per_rank"]
    assert run.closed_form == pytest.approx(run.bubble_fraction, rel=1e-9)


@of("zb_h1", "zb_h2")
def test_zero_bubble_by_hand(case):
    p, m, expected = case["p"], case["m"], case["expected"]
    pipe = pipeline(case, p)
    run = ps.simulate(pipe, case["schedule"], m)
    if "makespan" in expected:  # fewer micro-batches than stages
        assert run.makespan == pytest.approx(expected["makespan"], rel=1e-9)
        fused = ps.simulate(pipe, "1f1b", m)
        assert fused.makespan == pytest.approx(expected["makespan_1f1b"], rel=1e-9)
        return
    assert run.span_bubble == pytest.approx(expected["bubble_zb"], abs=1e-12)
    assert run.rank_times.span.max() == pytest.approx(expected["cost_max_stage_span"], rel=1e-9)
    # Memory: with a stash of 10 of which W alone holds 4 after I, worker i (from 1) holds at
    # most (p-i+1) whole and (i-1) parts with H1, (2p-2i+1) and (2i-2) with H2.
    pipe = pipeline(case, p, stash_bytes=10, input_grad_frees_bytes=6)
    held = ps.simulate(pipe, case["schedule"], m).ranks.peak_stash_bytes
    for rank, most in enumerate(held):
        whole, parts = (
            (p - rank, rank)
            if case["schedule"] == "zb_h1"
            else (
                min(m, 2 * (p - rank) - 1),
                2 * rank,
            )
        )
        assert most <= 10 * whole + 4 * parts
    assert max(held) == 10 * min(m, p if case["schedule"] == "zb_h1" else 2 * p - 1)


@of("zb_v")
def test_zb_v(case):
    p, m, expected = case["p"], case["m"], case["expected"]
    pipe = ps.Pipeline.from_costs(1.0, input_grad=1.0, weight_grad=1.0, stages=2 * p, ranks=p)
    run = ps.simulate(pipe, "zb_v", m)
    assert run.rank_times.span.max() == expected["cost_slots"]
    assert run.span_bubble == pytest.approx(0.0, abs=1e-12)
    assert max(run.ranks.peak_in_flight) <= expected["peak_mem_chunks"]


@of("dualpipe")
def test_dualpipe(case):
    p, m, expected = case["p"], case["m"], case["expected"]
    pipe = ps.Pipeline.from_costs(
        1.0, input_grad=1.0, weight_grad=1.0, stages=p, overlap_ms=3.0, param_bytes=7
    )
    run = ps.simulate(pipe, "dualpipe", m)
    assert run.makespan == expected["makespan"]
    assert run.ranks.idle.tolist() == [expected["bubble_time_every_device"]] * p
    assert run.ranks.peak_in_flight.tolist() == [expected["peak_inflight_per_device"]] * p
    assert run.ranks.param_bytes.tolist() == [14] * p  # two copies
    pairs = run.trace[run.trace.group >= 0]
    assert (pairs.groupby("group").size() == 2).all()
    assert (pairs.groupby("group")[["ready", "start", "end"]].nunique() == 1).all(axis=None)


@pytest.mark.parametrize("together", [3.0, 2.0])
@pytest.mark.parametrize("p", [2, 4, 8])
def test_dualpipe_bubble_formula(p, together):
    pipe = ps.Pipeline.from_costs(
        1.0, input_grad=1.0, weight_grad=1.0, stages=p, overlap_ms=together
    )
    run = ps.simulate(pipe, "dualpipe", 20)
    assert run.ranks.idle.max() == pytest.approx((p / 2 - 1) * (together + 2 - 3), abs=1e-9)


@pytest.mark.parametrize(("m", "makespan"), [(8, 54), (10, 66)])
def test_dualpipe_v_as_pytorch_draws_it(m, makespan):
    pipe = ps.Pipeline.from_costs(1.0, input_grad=1.0, weight_grad=1.0, stages=8, ranks=4)
    assert ps.simulate(pipe, "dualpipe_v", m).makespan == makespan


@of("chimera")
def test_chimera(case):
    p, m, expected = case["p"], case["m"], case["expected"]
    run = ps.simulate(ps.Pipeline.from_costs(1.0, 1.0, stages=p), "chimera", m)
    assert run.makespan == expected["makespan_slots"]
    assert run.bubble_fraction == pytest.approx(expected["bubble_idle_total"], rel=1e-9)


@pytest.mark.parametrize("p", [4, 6, 8])
@pytest.mark.parametrize("units", [1, 2, 4])
def test_chimera_reaches_its_closed_forms_and_holds_p_microbatches(p, units):
    m = units * p
    for b, bubble in ((1.0, (p - 2) / (2 * m + p - 2)), (2.0, (p - 2) / (1.5 * m + p - 2))):
        run = ps.simulate(ps.Pipeline.from_costs(1.0, b, stages=p), "chimera", m)
        assert run.bubble_fraction == pytest.approx(bubble, rel=1e-9)
        assert max(run.ranks.peak_in_flight) <= p


@pytest.mark.parametrize(("p", "waves"), [(2, 1), (2, 2), (3, 2), (4, 1), (4, 2), (4, 4), (8, 2)])
def test_hanayo_reaches_the_bound_of_its_docstring(p, waves):
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=2 * p * waves, ranks=p)
    run = ps.simulate(pipe, "hanayo", p)
    assert run.makespan == 6 * p * waves + 4 * (p - 1)
    expected = (2 * p - 2) / (3 * p * waves + 2 * p - 2)
    assert run.bubble_fraction == pytest.approx(expected, rel=1e-9)
    assert max(run.ranks.peak_in_flight) <= 2 * p * waves


@of("seq1f1b")
def test_seq1f1b(case):
    p, m, k, expected = case["p"], case["m"], case["costs"]["k_slices"], case["expected"]
    pipe = ps.Pipeline.from_costs(1.0 * k, 2.0 * k, stages=p)
    run = ps.simulate(pipe, "seq1f1b", m, options={"slices": k})
    assert run.makespan == pytest.approx(expected["makespan"], rel=1e-9)
    assert run.bubble_fraction == pytest.approx(expected["bubble_idle_total"], rel=1e-9)
    assert run.ranks.peak_in_flight.tolist() == expected["peak_slices_per_stage"]


@of("forward_only_sliced")
def test_terapipe(case):
    times = case["costs"]["slice_times"]
    pipe = ps.Pipeline.from_costs(float(sum(times)), stages=case["p"])
    fractions = [t / sum(times) for t in times]
    run = ps.simulate(pipe, "terapipe", 1, options={"slices": fractions})
    assert run.makespan == pytest.approx(case["expected"]["makespan"], rel=1e-9)


def test_pipedream_has_no_flush_and_keeps_versions():
    # Steady period max t = 6: every batch more adds 4 x 6.
    pipe = ps.Pipeline.from_costs([1, 2, 1], [2, 4, 2], param_bytes=10)
    steps = [ps.simulate(pipe, "pipedream", 4, options={"batches": n}).makespan for n in (5, 6, 7)]
    assert [b - a for a, b in pairwise(steps)] == [24, 24]
    run = ps.simulate(pipe, "pipedream", 4)
    assert run.schedule.microbatches == 8
    assert run.ranks.param_bytes.tolist() == [30, 20, 10]  # p-s versions
    two = ps.simulate(pipe, "pipedream_2bw", 4)
    assert two.ranks.param_bytes.tolist() == [20, 20, 20]
    assert two.makespan == run.makespan


TABLE_5 = json.loads((Path(__file__).parents[1] / "data" / "zero_bubble_table_5.json").read_text())


@pytest.mark.parametrize("case", TABLE_5, ids=[case["id"] for case in TABLE_5])
def test_zero_bubble_table_5(case):
    p, m, v, published = case["p"], case["m"], case["v"], case["published"]
    pipe = pipeline(case, p)
    for name in ("1f1b", "zb_h1", "zb_h2"):
        assert ps.simulate(pipe, name, m).span_bubble == pytest.approx(published[name], abs=6e-5)
    for name in ("zb_1p", "zb_2p"):
        run = ps.simulate(pipe, name, m)
        assert run.span_bubble <= published[name] + 0.003  # as published, or better
        assert run.makespan >= run.lower_bound * (1 - 1e-12)
    chunks = {key: case["costs"][key] / v for key in "FBW"} | {"comm": case["costs"]["comm"]}
    cut = pipeline({"costs": chunks}, p * v, ranks=p)
    interleaved = ps.simulate(cut, "interleaved", m).span_bubble
    assert interleaved == pytest.approx(published["1f1b_interleaved"], abs=0.004)
    # Megatron's order takes p transfers longer than the paper's model of it.
    assert interleaved > published["1f1b_interleaved"]


MEASURED = json.loads(
    (Path(__file__).parents[1] / "data" / "zero_bubble_measured.json").read_text()
)


@pytest.mark.parametrize("case", MEASURED, ids=[case["id"] for case in MEASURED])
def test_measured_speedups_of_zero_bubble(case):
    # Samples a second on A100, Tables 4 and 12 (m <= p), with the profiled costs of that model.
    costs = next(other for other in TABLE_5 if other["id"] == case["costs_of"])
    pipe = pipeline(costs, case["p"])
    fused = ps.simulate(pipe, "1f1b", case["m"]).rank_times.span.max()
    for name, tolerance in case["tolerance"].items():
        speedup = fused / ps.simulate(pipe, name, case["m"]).rank_times.span.max()
        measured = case["samples"][name] / case["samples"]["1f1b"]
        assert speedup == pytest.approx(measured, rel=tolerance)


# What the paper's planner held: stash 34h + 5as a token, of which W needs 32h.
@pytest.mark.parametrize(("name", "times"), [("zb_1p", 1), ("zb_2p", 2)])
def test_the_memory_limit_is_kept_in_bytes(name, times):
    stash, left = 34 * 2304 + 5 * 24 * 1024, 32 * 2304
    pipe = ps.Pipeline.from_costs(
        18.522,
        input_grad=18.086,
        weight_grad=9.337,
        stages=8,
        latency_ms=0.601,
        stash_bytes=stash,
        input_grad_frees_bytes=stash - left,
    )
    run = ps.simulate(pipe, name, 24)
    assert max(run.ranks.peak_stash_bytes) <= times * 8 * stash
    assert run.span_bubble <= {"zb_1p": 0.1585, "zb_2p": 0.0433}[name] + 0.003


@of("v_half", "v_adaptive")
def test_v_family(case):
    p, m, expected = case["p"], case["m"], case["expected"]
    limit = expected["peak_mem_chunks"]
    pipe = ps.Pipeline.from_costs(1.0, input_grad=1.0, weight_grad=1.0, stages=2 * p, ranks=p)
    runs = [ps.simulate(pipe, "v_schedule", m, options={"limit": limit})]
    if case["schedule"] == "v_half":
        runs.append(ps.simulate(pipe, "v_half", m))
    for run in runs:
        assert run.rank_times.span.max() - 6 * m <= expected["max_stage_bubble_slots"]
        assert max(run.ranks.peak_in_flight) <= limit


@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 6, 9, 12])
def test_v_min_has_a_third_of_the_memory(p):
    pipe = ps.Pipeline.from_costs(1.0, input_grad=1.0, weight_grad=1.0, stages=2 * p, ranks=p)
    run = ps.simulate(pipe, "v_min", 2 * p)
    assert max(run.ranks.peak_in_flight) <= 2 * ((p + 4) // 3)
    assert run.rank_times.span.max() - 12 * p <= 4 * p


@pytest.mark.parametrize("p", range(3, 10))
def test_v_half_has_half_the_memory_and_half_the_bubble_of_1f1b(p):
    pipe = ps.Pipeline.from_costs(1.0, input_grad=1.0, weight_grad=1.0, stages=2 * p, ranks=p)
    for m in (2 * p, 4 * p):  # and it does not grow with m
        run = ps.simulate(pipe, "v_half", m)
        assert max(run.ranks.peak_in_flight) <= p + p % 2
        assert run.rank_times.span.max() - 6 * m <= 3 * p - 1
