"""What commands say beside the numbers: weights kept twice, nothing to interleave, failures."""

import json

import pandas as pd
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


def axes(**values):
    named = {key.replace("_", ".", 1): value for key, value in values.items()}
    return ["--set", f"sweep.axes={json.dumps(named)}"]


def test_a_sweep_tells_each_error_once(capsys, four_stages, tmp_path):
    file = tmp_path / "s.csv"
    schedules, times = ["1f1b", "zb_v", "dualpipe"], [0, 0.5, 1]
    varied = axes(run_schedule=schedules, run_microbatches=[4, 8], links_latency_ms=times)
    assert main(["sweep", four_stages, *varied, "--csv", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    marks = [line.split()[-1] for line in lines[1:19]]
    assert marks == ["-"] * 6 + ["[1]"] * 6 + ["[2]"] * 3 + ["-"] * 3
    assert max(map(len, lines[:19])) < 130
    zb_v, dualpipe = lines[19:]
    assert zb_v.startswith("[1] 6 points (run.schedule = zb_v): run.schedule: zb_v needs 2 stages")
    assert dualpipe.startswith("[2] 3 points (run.schedule = dualpipe, run.microbatches = 4): ")
    whole = pd.read_csv(file).error.dropna()
    assert len(whole) == 9
    assert f": {whole.iloc[0]}" in zb_v
    assert f": {whole.iloc[-1]}" in dualpipe


def test_a_sweep_tells_so_many_errors_at_most(capsys, four_stages):
    counts = {"linspace": [-24, 1, 26]}
    config = ["sweep", four_stages, "--set", "run.schedule=1f1b"]
    assert main([*config, *axes(run_microbatches=counts)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "... 25 different errors; --csv FILE has them all"
    assert lines[-2].startswith("[20] 1 point (run.microbatches = -5): run.microbatches: -5 is not")


def test_a_plot_of_many_curves_says_what_shows_them_better(capsys, four_stages, tmp_path):
    config = ["sweep", four_stages, "--plot", str(tmp_path / "s.png"), "--x", "run.microbatches"]
    config += ["--set", "run.schedule=1f1b"]
    counts, latencies, speeds = [4, 8], [0, 1, 2, 3, 4, 5, 6], [1, 2]
    for varied, note in (
        ({"links_latency_ms": latencies}, "note: 7 curves on one picture; --heat or --html FILE"),
        ({"links_latency_ms": latencies[:4], "devices_speed": speeds}, "note: 8 curves"),
    ):
        assert main([*config, *axes(run_microbatches=counts, **varied)]) == 0
        assert note in capsys.readouterr().err
    assert main([*config, *axes(run_microbatches=counts, links_latency_ms=latencies[:6])]) == 0
    assert "curves on" not in capsys.readouterr().err
