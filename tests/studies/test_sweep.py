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


def test_a_point_that_fails_is_a_row_with_its_error(config):
    axes = {"run.microbatches": [4, 2.5, 8]}
    table = ps.sweep_config(config, {"sweep.axes": axes})
    assert table.makespan_ms.tolist() == pytest.approx([21, float("nan"), 33], nan_ok=True)
    assert table.error.tolist() == [
        None,
        "run.microbatches: 2.5 is not a whole number from 1 to 10^6",
        None,
    ]
    assert table.ranks.tolist()[::2] == [4, 4]
    deadlock = {
        "run.protocol": ["eager", "rendezvous"],
        "run.schedule": ["1f1b", "gpipe"],
        "links.latency_ms": [0.5],
    }
    table = ps.sweep_config(config, {"sweep.axes": deadlock, "sweep.mode": "product"})
    assert [error is None for error in table.error] == [True, True, False, True]
    assert table.error[2].startswith("1f1b under rendezvous cannot go on: ranks 2, 3 wait")


def test_faults_of_all_points_are_told_at_once(config):
    for overrides, message in (
        ({"sweep.axes": {"run.microbatches": [0, 2.5]}}, r"at run\.microbatches = 0: run\.micro"),
        ({"stages.backward_ms": "x"}, r"s\.toml: stages\.backward_ms"),
        ({"sweep.axes": {"run.schedule": ["1f1b", "gpip"]}}, r"'gpip' is unknown; "),
        ({"sweep.axes": {"run.colour": [1, 2]}}, r"run\.colour: unknown key"),
        ({"sweep.axes": {"stages.forward_ms[7]": [1]}}, "has 4 values, from 0 on"),
    ):
        with pytest.raises(ps.ConfigError, match=message):
            ps.sweep_config(config, overrides)


def test_a_key_that_the_config_leaves_out_can_be_an_axis(config):
    table = ps.sweep_config(config, {"sweep.axes": {"links.latency_ms": [0.0, 0.5]}})
    assert table.makespan_ms.tolist() == [33, 41]
