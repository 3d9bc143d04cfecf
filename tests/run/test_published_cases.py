"""Published and independently reproduced answers, case by case.

The cases are copied from their sources, each of which is named in the data file.
"""

import json
from pathlib import Path

import pytest

import pipesim as ps
from tests.schedules import theory

DATA = Path(__file__).parents[1] / "data"
CASES = json.loads((DATA / "published_cases.json").read_text())
VOCABULARY = json.loads((DATA / "vocabulary_table_5.json").read_text())
CONFIGS = Path(__file__).parents[2] / "experiments" / "configs"

# Zero Bubble Pipeline Parallelism, arXiv:2401.10241, Table 5: the rate of 1F1B, by config.
ZERO_BUBBLE_1F1B = {
    "1.5B_m24": 0.2431,
    "1.5B_m32": 0.1985,
    "6.2B_m24": 0.2347,
    "6.2B_m64": 0.1091,
    "14.6B_m64": 0.2082,
    "14.6B_m128": 0.1251,
    "28.3B_m96": 0.2646,
    "28.3B_m256": 0.1352,
}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_published_case(case):
    p, m, rel = case["p"], case["m"], case["rel"]
    pipe = ps.Pipeline.from_costs(
        forward=case["F"], backward=case["B"], stages=p, latency_ms=case["latency"]
    )
    run = ps.simulate(pipe, case["schedule"], m)
    total = [stage.forward_ms + stage.backward_ms for stage in pipe.stages]
    measured = {
        "makespan": run.makespan,
        "bubble_idle_total": run.bubble_fraction,
        "bubble_idle_ideal": run.bubble_ratio,
        "busy_per_stage": run.ranks.busy.tolist(),
        "peak_inflight_per_stage": run.ranks.peak_in_flight.tolist(),
        "closed_form_equal_stage": run.closed_form,
        "alpa_upper": theory.alpa_makespan(total, m),
        "bubble_idle_total_measured": run.bubble_fraction,
        "bubble_idle_total_sim": run.bubble_fraction,
        "fb_span_measured_s": run.makespan,
        "fb_span_sim_mean_cost_s": run.makespan,
    }
    expected = dict(case["expected"])
    upper = expected.pop("peak_inflight_per_stage_upper", None)
    if upper is not None:
        assert all(a <= b for a, b in zip(run.ranks.peak_in_flight, upper, strict=True))
    lower = expected.pop("universal_lower", None)
    if lower is not None:
        assert run.lower_bound == pytest.approx(lower, rel=1e-9)
    assert expected, "a case must expect something"
    for name, value in expected.items():
        assert measured[name] == pytest.approx(value, rel=rel), name


@pytest.mark.parametrize("name", ZERO_BUBBLE_1F1B)
def test_zero_bubble_paper_table_5(name):
    run = ps.simulate_config(ps.read_config(CONFIGS / f"zero_bubble_{name}.toml"))
    assert run.span_bubble == pytest.approx(ZERO_BUBBLE_1F1B[name], abs=6e-5)


def test_the_production_job_of_the_straggler_paper():
    run = ps.simulate_config(ps.read_config(CONFIGS / "straggler.toml"))
    assert run.makespan == pytest.approx(2003.9, abs=0.05)
    assert run.makespan == pytest.approx(2002.6, rel=0.006)  # measured
    assert run.bubble_fraction == pytest.approx(0.5133, abs=0.005)  # measured
    assert run.closed_form == 3 / 7


@pytest.mark.parametrize("case", VOCABULARY, ids=[case["id"] for case in VOCABULARY])
def test_vocabulary_parallelism_table_5(case):
    """Balancing Pipeline Parallelism with Vocabulary Parallelism, arXiv:2411.05288, from FLOPs.

    The data file has what an independent simulator gave, and what was measured.
    """
    p, m, each = case["p"], case["m"], case["baseline_layers_per_stage"]

    def profile(vocabulary):
        shape = {name: case[name] for name in ("layers", "hidden", "heads", "sequence")}
        return ps.Transformer(**shape, vocabulary=vocabulary).profile(312, 0.5)

    def efficiency(pipe):
        return 1 - ps.simulate(pipe, "1f1b", m, engine="replay").bubble_fraction

    equal_layers = [each + 1, *[each] * (p - 2), each + 1]
    ours = profile(case["vocabulary"])
    baseline = efficiency(ours.split(equal_layers))
    assert baseline == pytest.approx(case["sim_baseline_efficiency"], abs=6e-5)
    relative = baseline / efficiency(profile(32768).split(equal_layers))
    assert relative == pytest.approx(case["baseline_mfu_relative_to_32k"], rel=0.025)
    # Of the splits with the least slowest stage, theirs has the slow stages late.
    late = ps.min_max_split(list(ours.total_ms())[::-1], p)[::-1]
    redistributed = efficiency(ours.split(late))
    assert redistributed == pytest.approx(case["sim_redis_efficiency"], abs=6e-5)
    assert redistributed / baseline == pytest.approx(case["redis_over_baseline"], rel=0.13)
    # Ours has them early, and is as good or better.
    early = efficiency(ps.partition(ours, p))
    assert redistributed * (1 - 1e-12) <= early <= redistributed * 1.07
