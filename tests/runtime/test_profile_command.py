"""`pipesim profile`: from a function in a file to a table and a CSV file, and its errors."""

import json
import sys

import pytest

torch = pytest.importorskip("torch", reason="pip install 'pipesim[torch]'")

import pipesim as ps  # noqa: E402
from pipesim.cli import main  # noqa: E402
from pipesim.cli.outputs import ProgressBar  # noqa: E402

MODEL = """
import argparse
import collections
import sys
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))

def build_with_sample():
    return [nn.Linear(8, 16), nn.ReLU()], torch.zeros(3, 8)

ready = nn.Sequential(nn.Linear(8, 2))
number = 3

def broken():
    raise KeyError("layers")

def nothing():
    return None

def empty():
    return nn.Sequential()

def lazy():
    return nn.Sequential(nn.LazyLinear(4))

def single():
    return nn.Linear(8, 8)

def one():
    return (nn.Linear(8, 8),)

def two():
    return nn.Linear(8, 8), nn.ReLU()

def three():
    return nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)

def queue():
    return collections.deque(three())

def two_with_sample():
    return two(), torch.zeros(3, 8)

def three_things():
    return nn.Linear(8, 8), torch.zeros(3, 8), torch.zeros(3, 8)

def with_loss():
    labels = torch.tensor([1, 0, 1])
    return nn.Sequential(nn.Linear(8, 2)), torch.zeros(3, 8), nn.functional.cross_entropy, labels

def with_loss_alone():
    return nn.Sequential(nn.Linear(8, 2)), torch.zeros(3, 8), torch.sum

def with_loss_of_any_batch():
    return three(), None, nn.L1Loss(), torch.zeros(5, 2)

def with_wrong_loss():
    return nn.Sequential(nn.Linear(8, 2)), torch.zeros(3, 8), torch.abs

def with_targets_alone():
    return nn.Sequential(nn.Linear(8, 2)), torch.zeros(3, 8), None, torch.zeros(3, 2)

def five_things():
    return (*with_loss(), None)

def demanding(width):
    return nn.Linear(width, width)

def parsing():
    return argparse.ArgumentParser().parse_args(["--unknown"])  # parsed here

def stopping():
    sys.exit("no weights")

def interrupted():
    raise KeyboardInterrupt
"""
QUICK = ["--repeats", "2"]
TOKENS = ["--input", "4x5", "--dtype", "int64"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Make a folder with a module in it the current one, and forget the module afterwards."""
    (tmp_path / "some_model.py").write_text(MODEL)
    (tmp_path / "incomplete.py").write_text("import no_such_library\n")
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("some_model", "incomplete", "leaving"):
        sys.modules.pop(name, None)


def test_the_table_and_the_file(folder, capsys):
    threads = torch.get_num_threads()
    flags = [*TOKENS, *QUICK, "--threads", "1", "--output", "layers.csv"]
    assert main(["profile", "some_model:build", *flags]) == 0
    assert torch.get_num_threads() == threads
    captured = capsys.readouterr()
    assert "on 1 CPU threads, micro-batch 4x5 int64, medians of 2" in captured.out
    lines = {line.split()[0]: line for line in captured.out.splitlines() if line[:1].isdigit()}
    assert lines["0"].split()[1] == "Embedding"
    assert "160 B" in lines["0"]  # 20 tokens
    assert lines["1"].split()[1] == "Linear"
    assert "4,048 bytes of parameters" in captured.out
    assert "wrote layers.csv" in captured.err
    profile = ps.read_layers(folder / "layers.csv")
    assert profile.labels["kind"] == ("Embedding", "Linear", "GELU", "Linear")
    assert profile.names == ("0", "1", "2", "3")
    assert sum(profile.param_bytes) == 4048
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_json_in_full_precision_is_what_the_file_says(folder, capsys):
    flags = [*TOKENS, *QUICK, "--names", "0,1", "--output", "out/layers.csv", "--json"]
    assert main(["profile", "some_model:build", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["source"].startswith(f"measured with torch {torch.__version__}")
    columns = ps.read_layers(folder / "out" / "layers.csv").columns()
    assert {key: tuple(row[key] for row in found["layers"]) for key in columns} == columns


def test_a_function_may_give_the_micro_batch_and_a_name_may_be_a_model(capsys):
    assert main(["profile", "some_model:build_with_sample", *QUICK]) == 0
    assert "micro-batch 3x8 float32" in capsys.readouterr().out
    flags = ["--input", "7x8", "--dtype", "float64", *QUICK]
    assert main(["profile", "some_model:build_with_sample", "--input", "7x8", *QUICK]) == 0
    assert "micro-batch 7x8 float32" in capsys.readouterr().out
    assert main(["profile", "some_model:ready", *flags]) == 2  # weights of another type
    assert "fails on 7x8 float64, in its forward" in capsys.readouterr().err
    assert main(["profile", "some_model:ready", "--input", "7x8", *QUICK]) == 0


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("one", ["Linear"]),
        ("two", ["Linear", "ReLU"]),
        ("three", ["Linear", "ReLU", "Linear"]),
        ("queue", ["Linear", "ReLU", "Linear"]),
    ],
)
def test_modules_in_a_row_are_layers_however_many(name, kinds, capsys):
    assert main(["profile", f"some_model:{name}", "--input", "3x8", *QUICK, "--json"]) == 0
    assert [row["kind"] for row in json.loads(capsys.readouterr().out)["layers"]] == kinds
    assert main(["profile", f"some_model:{name}", *QUICK]) == 2
    assert "gives no micro-batch with the model" in capsys.readouterr().err


def test_modules_in_a_row_may_come_with_a_micro_batch(capsys):
    assert main(["profile", "some_model:two_with_sample", *QUICK, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["kind"] for row in found["layers"]] == ["Linear", "ReLU"]
    assert "micro-batch 3x8 float32" in found["source"]


@pytest.mark.parametrize(
    ("name", "flags", "kinds"),
    [
        ("with_loss", [], ["Linear", "cross_entropy"]),
        ("with_loss", ["--input", "3x8"], ["Linear", "cross_entropy"]),
        ("with_loss_alone", [], ["Linear", "sum"]),
        ("with_loss_of_any_batch", ["--input", "5x8"], ["Linear", "ReLU", "Linear", "L1Loss"]),
    ],
)
def test_the_loss_is_measured_where_there_is_one(name, flags, kinds, capsys):
    assert main(["profile", f"some_model:{name}", *flags, *QUICK, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["layers"]
    assert [row["kind"] for row in rows] == kinds
    assert rows[-1]["layer"] == "loss"
    assert rows[-1]["output_bytes"] == 4


def test_as_many_passes_as_asked_for(monkeypatch, capsys):
    totals = set()
    monkeypatch.setattr(ProgressBar, "__call__", lambda bar, done, total: totals.add(total))
    flags = ["--input", "7x8", "--repeats", "3", "--warmup"]
    for warmup in ("0", "2"):
        assert main(["profile", "some_model:ready", *flags, warmup]) == 0
    assert totals == {2 * 3, 2 * (3 + 2)}
    assert main(["profile", "some_model:ready", *flags, "-1"]) == 2
    assert "--warmup = -1 is not a whole number from 0" in capsys.readouterr().err


def test_no_line_is_blamed_where_none_is_the_module_s(capsys):
    assert main(["profile", "some_model:demanding", "--input", "4x8"]) == 2
    assert capsys.readouterr().err == (
        "pipesim: some_model:demanding: TypeError: demanding() missing 1 required positional "
        "argument: 'width'\n"
    )


def test_a_line_of_the_module_is_named_even_where_a_library_leaves(folder, capsys):
    line = MODEL[: MODEL.index("# parsed here")].count("\n") + 1
    assert main(["profile", "some_model:parsing"]) == 2
    assert f"SystemExit: 2 ({folder / 'some_model.py'}, line {line})" in capsys.readouterr().err


def test_ctrl_c_in_the_module_is_an_interruption(capsys):
    assert main(["profile", "some_model:interrupted"]) == 130
    assert capsys.readouterr().err == "pipesim: interrupted\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["some_model:build"], "gives no micro-batch with the model: give a shape such as --input"),
        (
            ["some_model:build", "--input", "4x5"],
            "layer 0 (0, Embedding) fails on 4x5 float32, in its forward",
        ),
        (
            ["some_model:build", *TOKENS, "--vocabulary", "100000"],
            "layer 0 (0, Embedding) fails on 4x5 int64, in its forward: index out of range",
        ),
        (
            ["some_model:ready", "--input", "4x5"],
            "layer 0 (0, Linear) fails on 4x5 float32, in its forward: ",
        ),
        (["some_model:build", "--input", "4x"], "--input 4x: is no shape"),
        (["some_model:build", "--input", "0x4"], "--input 0x4: is no shape"),
        (["some_model:build", "--input", "4", "--dtype", "int6"], "--dtype int6: cannot be made: "),
        (["some_model:build", "--input", "4", "--dtype", "nn"], "--dtype nn: unknown"),
        (["some_model:ready", "--input", "99999999x99999999"], "--dtype float32: cannot be made: "),
        (["some_model:empty", "--input", "4"], "the model has no layers"),
        (["some_model:lazy", "--input", "4"], "layer 0 (0, LazyLinear) has parameters without a"),
        (["some_model:single", "--input", "4x8"], "in forward order, --names embedding,blocks.0"),
        (["some_model:build", *TOKENS, "--names", "0,x"], "Sequential has no submodule 'x'"),
        (["some_model:build", *TOKENS, "--repeats", "0"], "--repeats = 0 is not a whole number"),
        (["some_model:build", *TOKENS, "--threads", "0"], "--threads = 0 is not a whole number"),
        (["some_model:build", *TOKENS, "--output", "a.txt"], "the ending must be .csv"),
        (["some_model"], "'some_model' names no model: write MODULE:NAME"),
        (["nowhere.model:build"], "there is no module 'nowhere'"),
        (["some_model.part:build"], "there is no module 'some_model.part'"),
        (["incomplete:build"], "ModuleNotFoundError: No module named 'no_such_library'"),
        (["some_model:buidl"], "has no function 'buidl'; it has build, build_with_sample, ready"),
        (["some_model:number"], "has no function 'number'"),
        (["some_model:broken"], "KeyError: 'layers'"),
        (["some_model:stopping"], "SystemExit: no weights"),
        (["leaving:build"], "SystemExit: 0"),
        (["some_model:nothing"], "gives a NoneType, not a module or a list of them"),
        (["some_model:three_things"], "gives a Tensor as the loss, not a function"),
        (["some_model:five_things"], "gives a tuple, not a module or a list of them, alone or as"),
        (["some_model:with_wrong_loss"], "with_wrong_loss: loss_fn gives a tensor (3, 2): give a"),
        (["some_model:with_targets_alone"], "targets without a loss: give"),
        (["some_model:with_loss_of_any_batch"], "gives no micro-batch with the model"),
        (["some_model:with_loss", "--input", "4x8"], "layer 1 (loss, cross_entropy) fails on 4x2"),
        (["some_model:build", *TOKENS, "--names", ","], "'' is the whole model; name its layers"),
    ],
)
def test_what_is_wrong_is_named_with_the_way_out(folder, arguments, message, capsys):
    assert main(["profile", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert not captured.out
    assert not (folder / "layers.csv").exists()
