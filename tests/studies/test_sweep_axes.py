"""Axes of a sweep: what they spell out, and that points of costs alone are read as configs are."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipesim as ps
from pipesim.config.axes import LAWS, Imbalance, read_axis
from pipesim.config.simulate import simulate_step_config
from pipesim.run.many import METRICS
from pipesim.studies.sweep.imbalance import DRAW, SPREAD, stage_factors
from pipesim.studies.sweep.points import Bundle, Reader
from pipesim.studies.sweep.study import read_study

BASE = {
    "run": {"schedule": "1f1b", "microbatches": 4},
    "stages": {"forward_ms": [1, 1, 1, 1], "backward_ms": [2, 2, 2, 2]},
}


def swept(tmp_path, axes, mode="product", **changes):
    path = tmp_path / "s.json"
    path.write_text(json.dumps({**BASE, **changes, "sweep": {"axes": axes, "mode": mode}}))
    return path


def good_axis(key, written):
    faults = []
    axis = read_axis(key, written, faults)
    assert faults == []
    return axis


def test_draws_go_by_seed_key_and_number_alone():
    drawn = {"lognormal": [2.0, 0.5], "draws": 5, "seed": 3, "size": 4}
    rows = good_axis("a.b", drawn).rows
    assert good_axis("a.b", {**drawn, "draws": 3}).rows == rows[:3]
    assert good_axis("a.c", drawn).rows != rows
    assert good_axis("a.b", {**drawn, "seed": 4}).rows != rows
    assert [len(values) for (values,) in rows] == [4] * 5
    assert isinstance(good_axis("a.b", {"uniform": [1, 2], "draws": 1}).rows[0][0], float)


@pytest.mark.parametrize(("law", "mean"), [("uniform", 1.5), ("normal", 1), ("lognormal", 1)])
def test_draws_have_the_mean_that_is_asked_for(law, mean):
    values = LAWS[law](np.random.default_rng(1), 1.0, 2.0, 200_000)
    deviation = math.sqrt(1 / 12) if law == "uniform" else 2.0
    assert values.mean() == pytest.approx(mean, rel=0.02)
    assert values.std() == pytest.approx(deviation, rel=0.05)


@pytest.mark.parametrize(
    "written",
    [
        3,
        [],
        {"linspace": [1, 2]},
        {"linspace": [1, 2, 3], "draws": 3},
        {"uniform": [1, 2]},
        {"uniform": [2, 1], "draws": 3},
        {"normal": [1, -1], "draws": 3},
        {"lognormal": [0, 1], "draws": 3},
        {"normal": [1, 1], "draws": 0},
        {"normal": [1, 1], "draws": 3, "seed": -1},
        {"normal": [1, 1], "draws": 3, "size": 2.5},
        {"normal": [1, 1], "draws": 3, "colour": 1},
        {"poisson": [1, 1], "draws": 3},
    ],
)
def test_what_is_no_axis(written):
    faults = []
    read_axis("a.b", written, faults)
    assert len(faults) == 1
    assert "is not a list of values, {linspace" in faults[0][1]


@pytest.mark.parametrize(
    "written",
    [
        {"stage": 3},
        {"stage": 1.5, "factor": 2},
        {"stage": 1, "factor": -2},
        {"stage": 1, "factor": "x"},
        {"spread": 0.1, "draws": 0},
        {"spread": [], "draws": 1},
        {"spread": 0.1, "law": "normal"},
        {"spread": 0.6, "law": "uniform"},
        {"spread": 0.1, "stage": 1},
        [1, 2],
    ],
)
def test_what_is_no_imbalance(written):
    faults = []
    read_axis("imbalance", written, faults)
    assert len(faults) == 1


def test_several_keys_as_one_axis(tmp_path):
    axes = {
        "run.microbatches": [2, 4],
        "stages.forward_ms[3], stages.backward_ms[3]": [[1, 2], [2, 4]],
    }
    table = ps.sweep_config(swept(tmp_path, axes))
    assert table["stages.forward_ms[3]"].tolist() == [1, 2, 1, 2]
    assert table["stages.backward_ms[3]"].tolist() == [2, 4, 2, 4]
    assert table.makespan_ms.tolist() == [15, 21, 21, 33]
    for bad in ([[1, 2], [2]], [[1, 2]], [1, 2]):
        axes = {"stages.forward_ms[3],stages.backward_ms[3]": bad}
        with pytest.raises(ps.ConfigError, match="2 lists of the same length"):
            ps.sweep_config(swept(tmp_path, axes))
    with pytest.raises(ps.ConfigError, match="is an axis twice"):
        ps.sweep_config(swept(tmp_path, {"title": ["a"], "title,source": [["a"], ["b"]]}))


def test_one_stage_costs_more(tmp_path):
    axes = {"imbalance": {"stage": [0, 3], "factor": {"linspace": [1, 2, 2]}}}
    run = {"run": {"schedule": "1f1b", "microbatches": 8}}
    table = ps.sweep_config(swept(tmp_path, axes, **run))
    assert table["imbalance.stage"].tolist() == [0, 0, 3, 3]
    assert table["imbalance.factor"].tolist() == [1, 2, 1, 2]
    assert table.makespan_ms.tolist() == [33, 51, 33, 57]
    table = ps.sweep_config(swept(tmp_path, {"imbalance": {"stage": [3, 4], "factor": 1}}, **run))
    assert table.makespan_ms[0] == 33
    assert table.error[1] == "imbalance.stage = 4: stages go from 0 to 3"


@pytest.mark.parametrize("law", ["lognormal", "uniform"])
def test_factors_have_the_spread_and_keep_the_work(law):
    axis = Imbalance(spreads=(0.3,), draws=1, seed=5, law=law)
    factors = stage_factors(axis, {SPREAD: 0.3, DRAW: 7}, np.ones(100_000))
    assert factors.mean() == pytest.approx(1, rel=1e-12)
    assert factors.std() == pytest.approx(0.3, rel=0.02)
    work = np.array([1.0, 2.0, 3.0, 10.0])
    factors = stage_factors(axis, {SPREAD: 0.3, DRAW: 7}, work)
    assert (factors * work).sum() == pytest.approx(work.sum(), rel=1e-12)
    assert (stage_factors(axis, {SPREAD: 0.0, DRAW: 7}, work) == 1).all()
    assert (stage_factors(axis, {SPREAD: 0.3, DRAW: 7}, np.zeros(4)) > 0).all()


def test_unequal_stages_of_the_same_total_work(tmp_path):
    axes = {
        "imbalance": {"spread": [0.0, 0.3], "draws": 3, "seed": 1},
        "run.schedule": ["gpipe", "1f1b"],
    }
    table = ps.sweep_config(swept(tmp_path, axes))
    assert len(table) == 12
    even = table[table["imbalance.spread"] == 0]
    assert even.makespan_ms.tolist() == pytest.approx([21] * 6)
    uneven = table[table["imbalance.spread"] > 0]
    assert (uneven.balance < 0.99).all()
    # The total work stays, so that balance x filling x makespan does.
    work = table.balance * table.filling * table.makespan_ms
    assert work.tolist() == pytest.approx([12] * 12)
    again = ps.sweep_config(swept(tmp_path, {**axes, "run.schedule": ["1f1b"]}))
    together = table[table["run.schedule"] == "1f1b"].reset_index(drop=True)
    pd.testing.assert_frame_equal(
        again.drop(columns="run.schedule"), together.drop(columns="run.schedule")
    )


def test_imbalance_scales_layers_rows_and_overlapped_pairs(tmp_path):
    (tmp_path / "l.csv").write_text("layer,forward_ms,backward_ms\n" + "a,1,2\n" * 4)
    axes = {"imbalance": {"stage": 3, "factor": [1, 2]}}
    layers = {"layers": {"file": "l.csv", "split": [1, 1, 1, 1]}}
    path = swept(tmp_path, axes, **layers)
    document = json.loads(path.read_text())
    del document["stages"]
    path.write_text(json.dumps(document))
    assert ps.sweep_config(path).makespan_ms.tolist() == [21, 33]
    rows = {"stages": {"forward_ms": [[1] * 4] * 4, "backward_ms": [[2] * 4] * 4}}
    assert ps.sweep_config(swept(tmp_path, axes, **rows)).makespan_ms.tolist() == [21, 33]
    pairs = {"stages": {**BASE["stages"], "overlap_ms": 3}}
    study, points = read_study(swept(tmp_path, axes, **pairs))
    assert Reader(study).read(points[1]).pipeline.stages[3].overlap_ms == 6


amounts = st.one_of(st.integers(0, 9), st.floats(0, 1e3), st.sampled_from(["x", -1, True, 1e16]))
cells = st.one_of(amounts, st.lists(amounts, min_size=3, max_size=4))


@given(
    whole=st.lists(cells, min_size=1, max_size=6),
    one=st.lists(amounts, min_size=1, max_size=3),
    factors=st.lists(st.floats(0, 3), min_size=1, max_size=2),
    latency=st.sampled_from([[0.0], [0.0, 1.5]]),
)
def test_points_read_together_are_those_read_one_by_one(
    tmp_path_factory, whole, one, factors, latency
):
    axes = {
        "stages.forward_ms": whole,
        "stages.backward_ms[2]": one,
        "imbalance": {"stage": 1, "factor": factors},
        "links.latency_ms": latency,
    }
    study, points = read_study(swept(tmp_path_factory.mktemp("s"), axes))
    reader, seen = Reader(study), {}
    for batch in reader.bundles(points):
        if isinstance(batch, Bundle):
            seen |= dict(zip(batch.numbers, batch.pipelines, strict=True))
        else:
            seen[batch[0]] = str(batch[1])
    assert sorted(seen) == list(range(len(points)))
    for number, point in enumerate(points):
        try:
            alone = reader.read(point).pipeline
        except ps.ConfigError as error:
            alone = str(error)
        assert seen[number] == alone


def test_an_element_of_what_is_given_once_for_all(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text(
        '[run]\nschedule = "1f1b"\nmicrobatches = 8\n'
        "[stages]\ncount = 4\nforward_ms = 1\nbackward_ms = 2\n"
        '[sweep.axes]\n"devices.speed[3]" = [1.0, 0.5]\n"links.latency_ms[2]" = [0.0, 0.5]\n'
        '"stages.forward_ms[0]" = [1, 2]\n'
    )
    table = ps.sweep_config(config)
    speed, latency, forward = (
        table["devices.speed[3]"],
        table["links.latency_ms[2]"],
        table.iloc[:, 5],
    )
    assert table.makespan_ms[(speed == 1) & (latency == 0) & (forward == 1)].tolist() == [33]
    assert table.makespan_ms[(speed == 0.5) & (latency == 0) & (forward == 1)].tolist() == [57]


def test_the_engine_is_no_axis_and_bad_files_are_told_before_the_first_run(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text(
        '[run]\nschedule = "1f1b"\nmicrobatches = 8\n'
        "[stages]\ncount = 4\nforward_ms = 1\nbackward_ms = 2\n"
        '[sweep.axes]\n"run.engine" = ["simpy", "replay"]\n'
    )
    with pytest.raises(ps.ConfigError, match="a sweep runs on the replay engine"):
        ps.sweep_config(config)
    axes = {"sweep.axes": {"run.microbatches": [4, 8]}}
    with pytest.raises(ValueError, match=r"o\.txt: a table is written as \.csv or \.parquet"):
        ps.sweep_config(config, axes, progress=pytest.fail, file=tmp_path / "o.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["c.toml"]


def test_what_a_step_is_trained_with_is_swept_point_by_point(tmp_path):
    # 1000 bytes of parameters, as many of gradients, 6000 of optimizer: by ZeRO level 8000,
    # 2000 + 1500, 1000 + 250 + 1500, 2000 over 4 replicas; and 2 x 100 of activations.
    path = tmp_path / "zero.toml"
    path.write_text(
        "[run]\nschedule = '1f1b'\n[batch]\nglobal_size = 64\nmicrobatch_size = 2\n"
        "[training]\nreplicas = 4\n[stages]\nforward_ms = [1, 1]\nbackward_ms = [2, 2]\n"
        "param_bytes = 1000\nstash_bytes = 100\n[devices]\nmemory_bytes = 4000\n"
        "[sweep.axes]\n'training.zero' = [0, 1, 2, 3]\n'stages.forward_ms[1]' = [1, 2]\n"
    )
    table = ps.sweep_config(path)
    assert table.microbatches.dropna().tolist() == [8] * 6
    assert table.error.notna().tolist() == [True, True] + [False] * 6
    assert table.error[0].startswith("rank 0 goes over its memory limit: before its first op")
    peaks = [3700, 3700, 2950, 2950, 2200, 2200]
    assert table.peak_memory_bytes.dropna().tolist() == peaks
    assert table.makespan_ms.dropna().tolist() == [27, 35] * 3
    # Replicas change how many micro-batches each of them runs.
    axes = '[sweep.axes]\n"training.replicas" = [1, 2, 4]\n'
    path.write_text(path.read_text().split("[sweep.axes]")[0] + axes)
    table = ps.sweep_config(path, {"run.memory_limit": False})
    assert table.microbatches.tolist() == [32, 16, 8]
    assert table.makespan_ms.tolist() == [99, 51, 27]


def test_limits_differ_point_by_point_in_one_batch(tmp_path):
    path = tmp_path / "limits.toml"
    path.write_text(
        "[run]\nschedule = '1f1b'\nmicrobatches = 4\n[stages]\nforward_ms = [1, 1]\n"
        "backward_ms = [2, 2]\nstash_bytes = 100\n"
        "[sweep.axes]\n'devices.memory_bytes' = [99, 199, 200, 'none']\n"
        "'run.memory_limit' = [true, false]\n"
    )
    table = ps.sweep_config(path)
    assert table.makespan_ms.tolist()[4:] == [15] * 4
    assert table.error.notna().tolist() == [True, False, True, False] + [False] * 4
    assert "0F0 at 0 ms" in table.error[0]
    assert "0F1 at 1 ms" in table.error[2]


def test_of_several_replicas_a_sweep_tells_the_slowest(tmp_path):
    path = swept(
        tmp_path,
        {"training.speed": [1.0, [1.0, 0.5]]},
        run={"schedule": "1f1b", "microbatches": 4, "engine": "replay"},
        training={"replicas": 2},
    )
    table = ps.sweep_config(path)
    assert table.makespan_ms.tolist() == [21, 42] == table.step_ms.tolist()
    speeds = {"training.speed": [1.0, 0.5]}
    summary = simulate_step_config(ps.read_config(path, speeds)).summary()
    for name in METRICS:
        assert table[name][1] == pytest.approx(summary[name]), name
