"""What commands say beside the numbers: weights kept twice, nothing to interleave, failures."""

import json

import pytest

from pipesim.cli import main

COSTS = ["--forward", "1,1,1,1", "--backward", "2,2,2,2", "--microbatches", "4"]


@pytest.fixture
def four_stages(tmp_path):
    path = tmp_path / "four.toml"
    path.write_text(
        "[run]\nmicrobatches = 8\n[stages]\ncount = 4\nforward_ms = 1\n"
        "input_grad_ms = 1\nweight_grad_ms = 1\n"
    )
    return str(path)


def test_compare_says_which_schedules_keep_the_weights_several_times(capsys, four_stages):
    names = "1f1b,chimera,dualpipe,pipedream,pipedream_2bw"
    notes = [
        "dualpipe, chimera: 2 copies of the model, so 2 times the weights on every rank",
        "pipedream: 1 to 4 versions of the weights on a stage",
        "pipedream_2bw: 2 versions of the weights on a stage",
    ]
    assert main(["compare", four_stages, "--schedules", names]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert set(notes) <= set(lines)
    assert not any(line.startswith("1f1b:") for line in lines)
    assert main(["compare", four_stages, "--schedules", names, "--json"]) == 0
    assert sorted(json.loads(capsys.readouterr().out)["notes"]) == notes


def test_compare_says_where_there_is_nothing_to_interleave(capsys, four_stages):
    arguments = ["compare", four_stages, "--schedules", "1f1b,interleaved,looped_bfs"]
    assert main(arguments) == 0
    note = ": 1 stage a rank, nothing to interleave; give 8 stages, or ranks = 2\n"
    assert note in capsys.readouterr().out
    for ways_out in (["devices.ranks=2"], ["stages.count=8", "devices.ranks=4"]):
        changes = [word for change in ways_out for word in ("--set", change)]
        assert main([*arguments, *changes]) == 0
        assert "nothing to interleave" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("schedule", "costs", "way_out"),
    [
        ("interleaved", COSTS, "give 8 stages, or ranks = 2"),
        ("looped_bfs", [*COSTS, "--forward", "1,1,1", "--backward", "2,2,2"], "give 6 stages\n"),
        ("interleaved", [*COSTS, "--forward", "1,1", "--backward", "2,2"], "give 4 stages\n"),
    ],
)
def test_run_says_where_there_is_nothing_to_interleave(capsys, schedule, costs, way_out):
    assert main(["run", "--schedule", schedule, *costs, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["schedule"] == schedule
    assert captured.err.startswith(f"note: {schedule}: 1 stage a rank, nothing to interleave; ")
    assert way_out in captured.err


@pytest.mark.parametrize("flags", [["--schedule", "1f1b"], ["--schedule", "interleaved"]])
def test_run_has_no_note_where_all_is_well(capsys, flags):
    ranks = ["--ranks", "2"] if "interleaved" in flags else []
    assert main(["run", *flags, *COSTS, *ranks]) == 0
    assert capsys.readouterr().err == ""
