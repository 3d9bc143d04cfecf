"""Schedule files where users meet them: `check`, `run`, `compare`, configs and `simulate`."""

import json
from pathlib import Path

import pytest

import pipesim as ps
from pipesim.cli import main

SAMPLES = Path(__file__).parents[1] / "data" / "torch_schedule"
COSTS = ["--forward", "1,1,1,2", "--backward", "2,2,2,4"]
CONFIG = """
[run]
schedule = "mine.csv"
{more}
[stages]
forward_ms = [1, 1, 1, 2]
backward_ms = [2, 2, 2, 4]
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Return the path of a 1F1B file of 4 ranks and 8 micro-batches, in the current folder."""
    monkeypatch.chdir(tmp_path)
    ps.write_schedule(ps.build_schedule("1f1b", 4, 8), "mine.csv")
    return "mine.csv"


@pytest.fixture
def pipe():
    return ps.Pipeline.from_costs(forward=[1, 1, 1, 2], backward=[2, 2, 2, 4])


def test_simulate_takes_a_path(mine, pipe):
    for path in (mine, Path(mine)):
        run = ps.simulate(pipe, path)
        assert run.makespan == ps.simulate(pipe, "1f1b", 8).makespan == 57
        assert run.schedule.name == "mine"
        assert run.closed_form is None
    assert ps.simulate(pipe, mine, 8).makespan == 57
    with pytest.raises(ps.ScheduleError, match="mine has 8 micro-batches, not 4"):
        ps.simulate(pipe, mine, 4)
    with pytest.raises(ps.ScheduleError, match=r"mine.csv is a schedule file and takes no options"):
        ps.simulate(pipe, mine, options={"chunks": 2})


def test_simulate_names_the_file_that_cannot_be_read(mine, pipe, tmp_path):
    with pytest.raises(ps.ConfigError, match=r"none\.csv: cannot be read: No such file"):
        ps.simulate(pipe, "none.csv")
    with pytest.raises(ps.ConfigError, match="cannot be read: Is a directory"):
        ps.simulate(pipe, tmp_path)
    with pytest.raises(ps.ConfigError, match="cannot be read: embedded null byte"):
        ps.simulate(pipe, "a\0.csv")


def test_an_ending_in_capitals_is_a_file_too(mine, pipe):
    Path(mine).rename("MINE.CSV")
    assert ps.simulate(pipe, "MINE.CSV").makespan == 57


def test_run_a_file(mine, capsys):
    assert main(["run", "--schedule", mine, *COSTS, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["schedule"], summary["microbatches"], summary["makespan_ms"]) == ("mine", 8, 57)
    assert main(["run", "--schedule", mine, "--microbatches", "4", *COSTS]) == 2
    assert "run.schedule: mine has 8 micro-batches, not 4" in capsys.readouterr().err
    assert main(["run", "--schedule", mine, "--option", "chunks=2", *COSTS]) == 2
    assert "mine.csv is a schedule file and takes no options" in capsys.readouterr().err


def test_in_a_config_a_file_is_relative_to_the_config(mine, capsys, monkeypatch, tmp_path):
    folder = tmp_path / "configs"
    folder.mkdir()
    config = folder / "c.toml"
    config.write_text(CONFIG.format(more=""))
    Path(mine).rename(folder / mine)
    assert main(["run", "configs/c.toml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["makespan_ms"] == 57
    assert ps.simulate_config(ps.read_config(config)).makespan == 57

    config.write_text(CONFIG.format(more="microbatches = 4"))
    with pytest.raises(ps.ConfigError, match=r"c\.toml: run\.schedule: mine has 8 micro-batches"):
        ps.read_config(config)
    config.write_text(CONFIG.format(more="options = {chunks = 2}"))
    with pytest.raises(ps.ConfigError, match=r"run\.options: mine\.csv is a schedule file and ta"):
        ps.read_config(config)


def test_typed_it_is_relative_to_where_it_is_typed(mine, capsys, tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "c.toml").write_text(CONFIG.format(more=""))
    assert main(["run", "configs/c.toml"]) == 2
    err = capsys.readouterr().err
    assert "configs/c.toml: run.schedule: configs/mine.csv: cannot be read: No such file" in err
    assert main(["run", "configs/c.toml", "--schedule", mine]) == 0


def test_a_config_tells_each_fault_of_its_schedule_file(mine, tmp_path):
    config = tmp_path / "c.toml"
    config.write_text(CONFIG.format(more=""))
    text = Path(mine).read_text().replace("0F1", "0X1").replace("2B3,", "")
    Path(mine).write_text(text)
    with pytest.raises(ps.ConfigError) as raised:
        ps.read_config(config)
    assert len(raised.value.faults) == 3
    for fault, place in zip(raised.value.faults, ("row 1", "row 1", "row 3"), strict=True):
        assert fault.startswith(f"run.schedule: {tmp_path}/mine.csv: {place} ")
    Path(mine).unlink()
    Path(mine).mkdir()
    with pytest.raises(ps.ConfigError, match=r"run\.schedule: .*mine\.csv: cannot be read: Is a d"):
        ps.read_config(config)


def test_microbatches_are_required_without_a_file(capsys):
    assert main(["run", "--schedule", "1f1b", *COSTS]) == 2
    assert "run.microbatches: missing, but required" in capsys.readouterr().err


def test_sweep_over_files(mine, tmp_path):
    axes = '[sweep.axes]\n"run.schedule" = ["gpipe", "mine.csv"]\n'
    (tmp_path / "c.toml").write_text(CONFIG.format(more="microbatches = 8") + axes)
    table = ps.sweep_config(tmp_path / "c.toml")
    assert table.schedule.tolist() == ["gpipe", "mine"]


def test_compare_takes_files(mine, capsys, tmp_path):
    (tmp_path / "c.toml").write_text(CONFIG.format(more="microbatches = 8"))
    assert main(["compare", "c.toml", "--schedules", "gpipe,mine.csv,1f1b", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    steps = {run["schedule"]: run["step_ms"] for run in runs}
    assert steps["mine"] == steps["1f1b"] == 57
    (tmp_path / "c.toml").write_text(CONFIG.format(more=""))
    assert main(["compare", "c.toml", "--schedules", "1f1b,mine.csv"]) == 0
    assert main(["compare", "c.toml", "--schedules", "1f1b,none.csv"]) == 2
    assert "none.csv: cannot be read" in capsys.readouterr().err


def test_check_a_valid_file(capsys):
    path = str(SAMPLES / "interleaved_p2_v2_m4_compute_comms.csv")
    assert main(["check", path]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    assert lines[:4] == [
        f"{path}: valid",
        "2 ranks, 4 stages, 4 micro-batches; ops F, B",
        "48 sends and receives, each where it belongs",
        "12 cells of UNSHARD, RESHARD and REDUCE_GRAD: they take no time here",
    ]
    assert "looped placement, 4 stages on 2 ranks" in lines
    assert "   0   16        5       6          5               5" in lines
    assert any(line.startswith("rank 1 | .   1F0 1F1 3F0 3B0") for line in lines)


def test_check_as_json(capsys):
    assert main(["check", str(SAMPLES / "legacy_2.5_zb_h1_p4_m8_B_W_BW.csv"), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["valid"] is True
    assert values["dialect"] == "legacy"
    assert values["kinds"] == ["F", "I", "W"]
    assert (values["ranks"], values["microbatches"], values["slices"]) == (4, 8, 1)
    assert values["placement"] == "linear"
    assert values["rank_of_stage"] == [[0, 1, 2, 3]]
    assert values["per_rank"][3] == {
        "rank": 3,
        "ops": 24,
        "warm_up": 1,
        "steady": 18,
        "cool_down": 5,
        "peak_in_flight": 4,
    }


def test_check_tells_faults_with_the_rows(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bad.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1X0,1F1,1B1,1B1\n")
    assert main(["check", "bad.csv"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "pipesim: bad.csv: 2 faults",
        "pipesim: bad.csv: row 2 (rank 1), cell 3: '1X0' is no action; "
        "write stage, kind, micro-batch: 1F0",
        "pipesim: bad.csv: row 2 (rank 1), cell 6: '1B1' is there twice, "
        "first in row 2 (rank 1), cell 5",
        "pipesim: ",
        "pipesim: cell     1     2     3     4     5     6",
        "pipesim: row 2   1F0   1B0  >1X0<  1F1   1B1  >1B1<",
    ]


def test_check_tells_so_many_faults_but_json_has_them_all(capsys, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("0F0,0B0," + ",".join(f"x{n}" for n in range(120)))
    assert main(["check", str(path), "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.err.splitlines()[51] == f"pipesim: {path}: and 70 more"
    values = json.loads(captured.out)
    assert (values["valid"], len(values["faults"]), values["unlisted_faults"]) == (False, 120, 0)
    assert values["faults"][0]["row"] == 1
    assert values["faults"][0]["cell"] == 3


def test_a_deadlock_has_its_own_exit_status(capsys):
    path = str(SAMPLES / "BAD_deadlock_order.csv")
    assert main(["check", path]) == 3
    err = capsys.readouterr().err
    assert err.splitlines() == [
        f"pipesim: {path}: every op is there, but BAD_deadlock_order cannot go on: "
        "ranks 0, 1 wait for each other",
        "pipesim:   row 1 (rank 0), cell 2: rank 0 at 0B0, op 2 of its 4: "
        "waits for the gradient from 1B0, op 3 of rank 1",
        "pipesim:   row 2 (rank 1), cell 1: rank 1 at 1F1, op 1 of its 4: "
        "waits for the activation from 0F1, op 3 of rank 0",
        "pipesim:   rank 0 |     0F0  >0B0<  0F1  0B1",
        "pipesim:   rank 1 |          >1F1<  1F0  1B0  1B1",
        "pipesim:   it would go on with 0B0 and 0F1 swapped (ops 2 and 3 of rank 0)",
    ]
    flags = ["--forward", "1,1", "--backward", "2,2"]
    assert main(["run", "--schedule", path, *flags]) == 3
    assert "ranks 0, 1 wait for each other" in capsys.readouterr().err
    assert main(["check", path, "--json"]) == 3
    values = json.loads(capsys.readouterr().out)
    assert not values["valid"]
    assert values["deadlock"][1] == {
        "row": 2,
        "rank": 1,
        "cell": 1,
        "instruction": "1F1",
        "awaited": "0F1",
    }


def test_a_file_may_hang_under_one_protocol_and_not_under_another(capsys):
    path = str(SAMPLES / "interleaved_p2_v2_m4_compute_comms.csv")
    assert main(["check", path]) == 0
    out = capsys.readouterr().out
    assert "  posted: goes on to its end" in out
    assert "  rendezvous: hangs, ranks 0, 1 wait for each other, at 0SEND_F1 / 1SEND_F0" in out
    assert main(["check", path, "--protocol", "rendezvous"]) == 3
    err = capsys.readouterr().err
    assert "row 1 (rank 0), cell 6: rank 0 at 0SEND_F1, instruction 4 of its 40" in err
    assert "row 2 (rank 1), cell 5: rank 1 at 1SEND_F0, instruction 3 of its 40" in err
    costs = ["--forward", "1", "--backward", "2", "--set", "stages.count=4", "--ranks", "2"]
    run = ["run", "--schedule", path, *costs, "--protocol"]
    assert main([*run, "rendezvous"]) == 3
    assert "waits for 1RECV_F1, instruction 4 of rank 1" in capsys.readouterr().err
    assert main([*run, "posted"]) == 0


def test_check_takes_bounded_queues(capsys, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("0F0,0F1,0B0,0B1\n1F1,1F0,1B0,1B1\n")
    assert main(["check", str(path)]) == 0
    assert main(["check", str(path), "--queue-capacity", "1"]) == 3
    assert "room in the queue from stage 0 to stage 1, until 1F1" in capsys.readouterr().err
    assert main(["check", str(path), "--queue-capacity", "0"]) == 2
    assert "--queue-capacity = 0 is not a whole number" in capsys.readouterr().err


def test_check_names_a_file_that_cannot_be_read(capsys, tmp_path):
    assert main(["check", str(tmp_path / "none.csv")]) == 2
    assert f"{tmp_path}/none.csv: cannot be read: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "what", "config"),
    [("a.toml", "a config", "a.toml"), ("a.YAML", "a config", "a.YAML"), ("a.txt", "no", "CONFIG")],
)
def test_check_tells_what_is_no_schedule_file_in_one_line(
    name, what, config, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text('[run]\nschedule = "1f1b"\n')
    assert main(["check", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"pipesim: {name}: is {what}")
    assert line.endswith(f"such as `pipesim run {config} --export-schedule order.csv` writes")


def test_check_takes_a_file_without_an_ending(capsys, tmp_path):
    path = tmp_path / "pipe"
    path.write_text("0F0,0B0\n")
    assert main(["check", str(path)]) == 0
    assert f"{path}: valid" in capsys.readouterr().out
    assert main(["check", str(path), "--protocol", "pared"]) == 2
    assert "protocol 'pared' is unknown; did you mean paired?" in capsys.readouterr().err


def test_export(capsys, tmp_path):
    path = tmp_path / "new" / "order.csv"
    flags = ["run", "--schedule", "zb_h1", "--microbatches", "8", "--forward", "1,1,1,1"]
    flags += ["--input-grad", "1", "--weight-grad", "1"]
    assert main([*flags, "--export-schedule", str(path)]) == 0
    assert f"wrote {path}" in capsys.readouterr().err
    assert ps.read_schedule(path) == ps.build_schedule("zb_h1", 4, 8)
    assert path.read_bytes().startswith(b"0F0,0F1,")
    assert main(["check", str(path)]) == 0


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        (["gpipe_forward", "--export-schedule", "o.csv"], 0, "note: PyTorch does not load it: th"),
        (["seq1f1b", "--option", "slices=2", "--export-schedule", "o.csv"], 0, "knows no slices"),
        (
            ["seq1f1b", "--option", "slices=[0.4,0.6]", "--export-schedule", "o.csv"],
            2,
            "seq1f1b: a schedule file holds slices of equal fractions only, not [0.4, 0.6]",
        ),
        (["1f1b", "--export-schedule", "o.txt"], 2, "--export-schedule o.txt: the ending must be"),
    ],
)
def test_export_says_what_does_not_fit(capsys, tmp_path, monkeypatch, flags, status, message):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--schedule", *flags, "--microbatches", "4", *COSTS]) == status
    assert message in capsys.readouterr().err
    assert Path("o.csv").exists() == (status == 0)


def test_compare_tells_files_apart_and_when_all_hang(capsys, tmp_path):
    config = tmp_path / "two.toml"
    config.write_text(
        '[run]\nmicrobatches = 2\nprotocol = "rendezvous"\n'
        "[stages]\nforward_ms = [1, 1]\nbackward_ms = [2, 2]\n"
    )
    assert main(["compare", str(config), "--schedules", "1f1b"]) == 3
    assert "ranks 0, 1 wait for each other" in capsys.readouterr().err
    ours = tmp_path / "1f1b.csv"
    ours.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    names = f"1f1b,{ours}"
    assert main(["compare", str(config), "--schedules", names, "--set", "run.protocol=eager"]) == 0
    out = capsys.readouterr().out
    assert f"\n{ours} " in out
    assert "\n1f1b " in out
