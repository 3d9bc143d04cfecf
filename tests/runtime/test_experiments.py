"""The experiments that run PyTorch itself, where it is installed."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="pip install 'pipesim[torch]'")

from tests.test_experiments import load  # noqa: E402


def test_a_profile_predicts_the_split(monkeypatch, tmp_path, capsys):
    experiment = load("15_profile_and_rebalance")
    monkeypatch.setattr(experiment, "OUT", tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of times that are unsteady, on a machine that is busy
        table = experiment.main(quick=True).set_index("split by")
    assert (tmp_path / "15_profile_and_rebalance.png").exists()
    layers = [sum(map(int, text.split("/"))) for text in table.layers]
    assert layers == [19] * 4  # none is lost
    assert np.isfinite(table.measured_ms).all()
    # Equal layers leave the wide blocks and the head to the last stages: far from the best.
    assert table.predicted_ms["layers"] > table.predicted_ms["simulation"]
    assert table.predicted_ms["simulation"] <= table.predicted_ms["time"]
    assert "source: measured" in capsys.readouterr().out
