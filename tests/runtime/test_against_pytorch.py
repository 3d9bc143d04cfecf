"""The experiment that sets PyTorch's own runtime beside the simulation, on two ranks."""

import pytest

from tests.test_experiments import load

torch = pytest.importorskip("torch", reason="pip install 'pipesim[torch]'")


def test_what_is_measured_is_above_what_is_slept_and_near_the_fit(monkeypatch, tmp_path):
    module = load("16_against_pytorch")
    monkeypatch.setattr(module, "OUT", tmp_path)
    table = module.main(quick=True)
    assert table.schedule.tolist() == ["Schedule1F1B", "ScheduleGPipe", "zb_h1.csv"]
    assert (table.nominal <= table.per_op * (1 + 1e-9)).all()
    assert (table.per_op <= table.measured * 1.05).all()  # medians of different things
    assert (table.fitted >= table.nominal * (1 - 1e-9)).all()
    assert (tmp_path / "16_against_pytorch.png").exists()
