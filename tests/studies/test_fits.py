"""Overhead and latency are found again where runs were simulated with them; nonsense is named."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipesim as ps

UNEQUAL = ps.Pipeline.from_costs([10, 20, 15, 10], [20, 30, 25, 20])


def simulated(pipe, schedule, m, overhead, latency, *, ends=False, protocol="eager"):
    """Return a measured run that is a simulated one."""
    fit = ps.OverheadFit(overhead, latency, (), (), ())
    run = ps.simulate(fit.apply(pipe), schedule, m, protocol=protocol)
    end_ms = run.spans.end if ends else None
    return ps.MeasuredRun(pipe, schedule, run.makespan, m, protocol, end_ms)


def stage_costs(p):
    return st.lists(st.floats(1.0, 10.0), min_size=p, max_size=p)


@st.composite
def truths(draw):
    p = draw(st.integers(2, 5))
    pipe = ps.Pipeline.from_costs(draw(stage_costs(p)), draw(stage_costs(p)))
    amount = st.one_of(st.just(0.0), st.floats(0.01, 5.0))
    return pipe, draw(amount), draw(amount)


@settings(max_examples=25, deadline=None)
@given(truths(), st.sampled_from(["1f1b", "gpipe"]))
def test_the_ends_of_one_run_give_both_back(truth, schedule):
    pipe, overhead, latency = truth
    fit = ps.fit_overhead([simulated(pipe, schedule, 6, overhead, latency, ends=True)])
    assert fit.overhead_ms == pytest.approx(overhead, abs=1e-6)
    assert fit.latency_ms == pytest.approx(latency, abs=1e-6)
    assert fit.note == ""


@settings(max_examples=25, deadline=None)
@given(truths())
def test_step_times_alone_are_met_and_give_both_back(truth):
    pipe, overhead, latency = truth
    sizes = [("1f1b", pipe.ranks), ("gpipe", 2 * pipe.ranks), ("1f1b", 3 * pipe.ranks)]
    fit = ps.fit_overhead([simulated(pipe, name, m, overhead, latency) for name, m in sizes])
    assert np.abs(fit.residual_ms).max() < 1e-6
    assert (fit.overhead_ms, fit.latency_ms) == pytest.approx((overhead, latency), abs=1e-5)


@pytest.mark.parametrize("protocol", ["paired", "posted", "rendezvous"])
def test_under_protocols(protocol):
    schedule = "gpipe" if protocol == "rendezvous" else "1f1b"
    run = simulated(UNEQUAL, schedule, 6, 0.5, 0.3, ends=True, protocol=protocol)
    fit = ps.fit_overhead([run])
    assert (fit.overhead_ms, fit.latency_ms) == pytest.approx((0.5, 0.3), abs=1e-8)


def test_a_fit_predicts_another_run():
    fit = ps.fit_overhead([simulated(UNEQUAL, "1f1b", 8, 0.5, 0.2, ends=True)])
    other = simulated(UNEQUAL, "gpipe", 16, 0.5, 0.2)
    assert ps.simulate(fit.apply(UNEQUAL), "gpipe", 16).makespan == pytest.approx(other.step_ms)


def test_what_the_pipeline_has_itself_is_not_looked_at_but_bandwidths_stay():
    slow = ps.Pipeline.from_costs(
        [1, 2], [2, 4], overhead_ms=9, latency_ms=9, bandwidth_gb_s=1e-3, output_bytes=1000
    )
    fit = ps.fit_overhead([simulated(slow, "1f1b", 4, 0.1, 0.0, ends=True)])
    assert fit.overhead_ms == pytest.approx(0.1)
    assert fit.latency_ms == pytest.approx(0.0, abs=1e-9)
    assert fit.apply(slow).link(0, 1) == ps.Link(0.0, 1e-3)


def test_noise_is_averaged():
    run = simulated(UNEQUAL, "1f1b", 32, 0.5, 0.3, ends=True)
    noise = np.random.default_rng(0).normal(0, 0.2, len(run.end_ms))
    noisy = ps.MeasuredRun(UNEQUAL, "1f1b", run.step_ms, 32, end_ms=run.end_ms + noise)
    fit = ps.fit_overhead([noisy])
    assert fit.overhead_ms == pytest.approx(0.5, abs=0.02)
    assert fit.latency_ms == pytest.approx(0.3, abs=0.1)


def test_the_overhead_alone_of_one_run():
    run = simulated(UNEQUAL, "1f1b", 8, 0.5, 0.2)
    assert ps.fit_overhead([run], latency_ms=0.2).overhead_ms == pytest.approx(0.5)


def test_one_rank_sends_nothing():
    run = simulated(ps.Pipeline.from_costs([1], [2]), "gpipe", 4, 0.5, 0.0)
    with pytest.raises(ValueError, match="cannot tell overhead and latency apart"):
        ps.fit_overhead([run])
    assert ps.fit_overhead([run], latency_ms=0).overhead_ms == pytest.approx(0.5)


@pytest.mark.parametrize("count", [1, 2])
def test_the_same_run_cannot_tell_the_two_apart(count):
    run = simulated(UNEQUAL, "1f1b", 8, 0.5, 0.2)
    with pytest.raises(ValueError, match=r"Add a run .*\(end_ms\), or say latency_ms"):
        ps.fit_overhead([run] * count)


def test_steps_shorter_than_their_costs_fit_no_overhead():
    short = [
        ps.MeasuredRun(UNEQUAL, "1f1b", 0.9 * simulated(UNEQUAL, "1f1b", m, 0, 0).step_ms, m)
        for m in (4, 8)
    ]
    fit = ps.fit_overhead(short)
    assert (fit.overhead_ms, fit.latency_ms) == (0, 0)
    assert "no overhead and latency from 0 up fit" in str(fit)


def test_degenerate_inputs():
    with pytest.raises(ValueError, match="no runs"):
        ps.fit_overhead([])
    with pytest.raises(ValueError, match="step_ms = nan is not a time above 0"):
        ps.fit_overhead([ps.MeasuredRun(UNEQUAL, "1f1b", float("nan"), 4)])
    with pytest.raises(ValueError, match=r"an array \(3,\), not 32 finite times"):
        ps.fit_overhead([ps.MeasuredRun(UNEQUAL, "1f1b", 1.0, 4, end_ms=[1, 2, 3])])
    with pytest.raises(ValueError, match="latency_ms = -1 is not"):
        ps.fit_overhead([simulated(UNEQUAL, "1f1b", 4, 0, 0)], latency_ms=-1)
    with pytest.raises(ValueError, match="give two or more"):
        ps.fit_step_times({4: 1.0}, ranks=2)
    with pytest.raises(ValueError, match="step_ms = 0 is not a time above 0"):
        ps.fit_step_times({4: 0, 8: 1.0}, ranks=2)
    with pytest.raises(ValueError, match="microbatches = 0 is not a whole number"):
        ps.fit_step_times({0: 1.0, 8: 1.0}, ranks=2)


def test_more_micro_batches_and_no_gain():  # marin-community/marin#6532
    fit = ps.fit_step_times({8: 1 / 8077, 16: 1 / 7987}, ranks=8)
    assert fit.overhead_ms / fit.compute_ms == pytest.approx(0.0586, abs=5e-5)
    assert fit.overhead_ms / (fit.compute_ms / 8) == pytest.approx(0.47, abs=0.005)
    promised = ps.bubble_formula(8, 8), ps.bubble_formula(8, 16)
    assert (1 - promised[1]) / (1 - promised[0]) == pytest.approx(1.3043, abs=5e-5)
    assert fit.step_ms(8) / fit.step_ms(16) == pytest.approx(7987 / 8077)
    assert fit.note == ""


def test_more_micro_batches_and_slower():  # facebookresearch/fairscale#51
    fit = ps.fit_step_times({1: 30.72, 2: 53.51, 4: 81.93}, ranks=2)
    assert fit.compute_ms == 0
    assert np.abs(np.divide(fit.fitted_ms, fit.measured_ms) - 1).max() > 0.05
    assert "no compute and overhead from 0 up fit" in str(fit)
    assert "one after the other" in fit.note
    assert "host that waits" in fit.note


def test_a_step_that_gains_more_than_the_bubble():
    fit = ps.fit_step_times({1: 40.0, 2: 20.0, 4: 10.0}, ranks=2)
    assert fit.overhead_ms == 0
    assert "warm-up step" in fit.note


@given(st.integers(1, 16), st.floats(0.1, 100), st.floats(0, 10), st.integers(0, 2**32 - 1))
def test_the_formula_gives_both_back(ranks, compute, overhead, seed):
    counts = np.random.default_rng(seed).choice(np.arange(1, 65), 3, replace=False).tolist()
    times = {m: (m + ranks - 1) * (compute / m + overhead) for m in counts}
    fit = ps.fit_step_times(times, ranks)
    assert fit.compute_ms == pytest.approx(compute, rel=1e-6, abs=1e-9)
    assert fit.overhead_ms == pytest.approx(overhead, rel=1e-6, abs=1e-7)
    assert fit.note == ""
