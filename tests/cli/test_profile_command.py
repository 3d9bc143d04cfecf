"""`pipesim profile` where PyTorch is not installed."""

from pipesim.cli import main
from pipesim.cli import profile as command


def test_without_torch_it_says_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    output = tmp_path / "layers.csv"
    assert main(["profile", "any:model", "--input", "8x128", "--output", str(output)]) == 2
    assert "profile needs PyTorch: pip install 'pipesim[torch]'" in capsys.readouterr().err
    assert not output.exists()
