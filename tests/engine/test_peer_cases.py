"""Orders that other simulators ran, and when each op started there."""

import json
from pathlib import Path

import pytest

import pipesim as ps

CASES = json.loads((Path(__file__).parents[1] / "data" / "peer_cases.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_order_runs_as_it_did_there(case):
    costs = case["costs"]
    schedule = ps.Schedule.from_orders(case["order"])
    pipe = ps.Pipeline.from_costs(
        costs["F"],
        costs.get("B"),
        input_grad=costs.get("I"),
        weight_grad=costs.get("W"),
        placement=schedule.placement,
        latency_ms=case["latency"],
        overlap_ms=costs.get("overlap"),
    )
    run = ps.simulate(pipe, schedule)
    assert run.makespan == pytest.approx(case["makespan"], rel=1e-9)
    if case["span"] is not None:
        assert run.rank_times.span.max() == pytest.approx(case["span"], rel=1e-9)
    if case["starts"] is not None:
        compute = run.trace[run.trace.kind.isin(list("FBIW"))]
        alone = compute[(compute.group < 0) | ~compute.duplicated("group")]  # a pair starts once
        for rank, rows in alone.sort_values("start", kind="stable").groupby("rank"):
            assert rows.start.tolist() == pytest.approx(case["starts"][rank], rel=1e-9)


def test_large_runs_that_five_simulators_agree_on():
    assert ps.simulate(ps.Pipeline.from_costs(1.0, 2.0, stages=16), "1f1b", 256).makespan == 813
    forward = [1 + 0.1 * stage for stage in range(32)]
    pipe = ps.Pipeline.from_costs(forward, [2 * f for f in forward])
    assert ps.simulate(pipe, "1f1b", 512).makespan == pytest.approx(6530.1, rel=1e-9)
