"""A production trace replayed step by step, where it lies beside the project."""

from pathlib import Path

import pandas as pd
import pytest

import pipesim as ps

TRACE = Path(__file__).parents[3] / "shared" / "data" / "straggler" / "ST.parquet"


@pytest.mark.skipif(not TRACE.exists(), reason="the trace is not part of the project")
def test_every_step_lands_within_a_third_of_a_percent():
    table = pd.read_parquet(TRACE)
    compute = table[table.optype.isin(["forward-compute", "backward-compute"])]
    steps = 0
    for _, step in compute.groupby(["dp_rank", "step"]):
        forward, backward = (
            1e3 * step[step.optype == name].pivot(index="stage", columns="mb_id", values="duration")
            for name in ("forward-compute", "backward-compute")
        )
        pipe = ps.Pipeline.from_costs(forward.to_numpy(), backward.to_numpy(), latency_ms=0.4)
        run = ps.simulate(pipe, "1f1b")
        end = (step.start_ts.astype(float) + step.duration).max()
        measured = 1e3 * (end - step.start_ts.astype(float).min())
        assert run.makespan == pytest.approx(measured, rel=0.003)
        steps += 1
    assert steps == 64
