"""Sweeps from Python."""

import pytest

import pipesim as ps


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(
        '[run]\nschedule = "1f1b"\nmicrobatches = 8\n'
        "[stages]\nforward_ms = [1, 1, 1, 1]\nbackward_ms = [2, 2, 2, 2]\n"
        '[sweep]\nmode = "zip"\n'
        "[sweep.axes]\n"
        '"stages.forward_ms[3]" = {linspace = [1, 2, 3]}\n'
        '"stages.backward_ms[3]" = {geomspace = [2, 8, 3]}\n'
    )
    return path


def test_axes_go_together_or_in_every_combination(config):
    done = []
    table = ps.sweep_config(config, progress=lambda *counts: done.append(counts))
    assert table["stages.forward_ms[3]"].tolist() == [1, 1.5, 2]
    assert table["stages.backward_ms[3]"].tolist() == [2, 4, 8]
    assert done == [(1, 3), (2, 3), (3, 3)]
    assert table.makespan_ms[0] == 33
    product = ps.sweep_config(config, {"sweep.mode": "product"})
    assert len(product) == 9
    assert product["stages.backward_ms[3]"].tolist() == [2, 4, 8] * 3
    assert table.makespan_ms[2] == product.makespan_ms[8]


def test_a_spaced_axis_serves_as_a_count(config):
    axes = {"run.microbatches": {"linspace": [4, 16, 4]}}
    table = ps.sweep_config(config, {"sweep.axes": axes})
    assert table.microbatches.tolist() == [4, 8, 12, 16]
    axes = {"run.microbatches": {"geomspace": [1, 64, 4]}}
    table = ps.sweep_config(config, {"sweep.axes": axes})
    assert table.microbatches.tolist() == [1, 4, 16, 64]


def test_every_point_is_checked_before_the_first_is_run(config):
    axes = {"run.microbatches": [4, 2.5]}
    with pytest.raises(ps.ConfigError, match=r"at run\.microbatches = 2\.5: run\.microbatches: 2"):
        ps.sweep_config(config, {"sweep.axes": axes}, progress=pytest.fail)


def test_a_key_that_the_config_leaves_out_can_be_an_axis(config):
    table = ps.sweep_config(config, {"sweep.axes": {"links.latency_ms": [0.0, 0.5]}})
    assert table.makespan_ms.tolist() == [33, 41]
