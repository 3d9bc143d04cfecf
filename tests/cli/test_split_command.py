"""`pipesim split`: ways to split layers side by side, and what it says where none is possible."""

import json

import pytest

import pipesim as ps
from pipesim.cli import main

CONFIG = """
[run]
schedule = "1f1b"
microbatches = 4

[layers]
file = "layers.csv"

[devices]
ranks = 4
"""


@pytest.fixture
def config(tmp_path):
    rows = "\n".join(f"{layer},1,2,1000,100" for layer in range(16))
    (tmp_path / "layers.csv").write_text(
        f"layer,forward_ms,backward_ms,stash_bytes,param_bytes\n{rows}\n"
    )
    path = tmp_path / "model.toml"
    path.write_text(CONFIG)
    return str(path)


def as_json(capsys, *arguments):
    assert main(["split", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_ways_to_split_side_by_side(config, capsys):
    assert main(["split", config]) == 0
    out = capsys.readouterr().out
    assert "model: 16 layers, 4 stages, 4 ranks, 4 micro-batches, 1f1b; links: 0 ms" in out
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line}
    for name in ("layers", "param_bytes", "stash_bytes", "time"):
        assert lines[name][1:8] == ["4", "4", "4", "4", "12.00", "12.00", "84.00"]
    assert lines["simulated"][1:8] == ["5", "4", "4", "3", "15.00", "9.00", "82.00"]
    assert out.endswith("\nsplit = [5, 4, 4, 3]  # to paste under [layers]\n")
    assert "over its memory" not in out


def test_small_models_are_shown_in_small_units(config, capsys):
    assert main(["split", config, "--set", "devices.memory_bytes=20_000"]) == 0
    out = capsys.readouterr().out
    header, *lines = [line for line in out.splitlines() if "peak" in line or "simulated" in line]
    peaks = as_json(capsys, config, "--set", "devices.memory_bytes=20_000")["chosen"]["peak_bytes"]
    assert header.endswith("  peak kB")
    assert lines[0].endswith(f"  {max(peaks) / 1000:.2f}")
    rows = out.splitlines()[out.splitlines().index("split by simulated") + 1 :]
    assert rows[0].endswith("  peak kB of rank  of kB")
    assert [row.split()[-2:] for row in rows[1:5]] == [[f"{x / 1000:.2f}", "20.00"] for x in peaks]


def test_the_split_to_paste_can_be_pasted(config, capsys):
    found = as_json(capsys, config)
    split = found["chosen"]["split"]
    assert main(["run", config, "--set", f"layers.split={json.dumps(split)}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["makespan_ms"] == found["chosen"]["makespan_ms"]


def test_the_split_of_the_config_is_one_of_them(config, capsys):
    found = as_json(capsys, config, "--set", "layers.split=[7,3,3,3]", "--by", "time")
    rows = {row["split_by"]: row for row in found["choices"]}
    assert list(rows) == ["layers", "param_bytes", "stash_bytes", "time", "config", "simulated"]
    # Rank 0 holds 4 micro-batches of 7 layers' stash, and their parameters.
    assert rows["config"]["peak_bytes"] == [7 * (4000 + 100), 9300, 6300, 3300]
    assert rows["config"]["stage_ms"] == [21, 9, 9, 9]
    assert found["chosen"] == rows["time"]
    assert rows["simulated"]["makespan_ms"] <= rows["config"]["makespan_ms"]


def test_a_memory_limit_bites(config, capsys):
    limit = ["--set", "devices.memory_bytes=16400"]  # 4 layers on rank 0
    found = as_json(capsys, config, *limit, "--set", "layers.split=[7,3,3,3]")
    for row in found["choices"]:
        assert row["over_memory"] == (row["split_by"] == "config")
        assert row["split"][0] <= 4 or row["split_by"] == "config"
    assert main(["split", config, *limit, "--set", "layers.split=[7,3,3,3]"]) == 0
    out = capsys.readouterr().out
    assert "over its memory" in out
    assert "kept within devices.memory_bytes where nothing else is said" in out
    assert "16.40  16.40" in out  # what rank 0 holds, and of how much, in kB


def test_the_stages_of_a_split_of_ones_own(config, capsys):
    own = ["--set", "layers.split=[7,3,3,3]", "--by", "config"]
    assert as_json(capsys, config, *own)["chosen"]["split"] == [7, 3, 3, 3]
    assert main(["split", config, "--by", "config", "--set", "layers.split=time"]) == 2
    assert "--by config: it is no list of counts" in capsys.readouterr().err


def test_what_ranks_really_hold_decides_in_a_v(tmp_path, capsys):
    # The peaks of a rank's two stages do not come at once: their sum, 9.42 GB at the least, is
    # over the limit, what the ranks really hold is not.
    stash = [
        1.0,
        0.4,
        0.7,
        0.2,
        1.1,
        0.3,
        0.5,
        0.9,
        0.6,
        0.8,
        0.1,
        1.2,
        0.4,
        0.7,
        0.3,
        0.9,
        1.0,
        0.2,
    ]
    rows = [f"1,1,1,{round(1e9 * size)}" for size in stash]
    head = "forward_ms,input_grad_ms,weight_grad_ms,stash_bytes"
    (tmp_path / "v.csv").write_text("\n".join([head, *rows]))
    (tmp_path / "v.toml").write_text(
        '[run]\nschedule = "zb_v"\nmicrobatches = 8\n'
        '[layers]\nfile = "v.csv"\n[devices]\nranks = 4\n'
    )
    path = str(tmp_path / "v.toml")
    free = as_json(capsys, path)["choices"]
    least_by_time = max(next(row for row in free if row["split_by"] == "time")["peak_bytes"])
    profile, schedule = ps.read_layers(tmp_path / "v.csv"), ps.build_schedule("zb_v", 4, 8)
    summed = fair_need(profile, schedule)
    limit = round(0.99 * summed)
    assert limit < least_by_time
    found = as_json(capsys, path, "--set", f"devices.memory_bytes={limit}")["chosen"]
    assert not found["over_memory"]
    assert max(found["peak_bytes"]) <= limit


def fair_need(profile, schedule):
    """Return what the fullest rank needs at the least, if peaks of its stages came at once."""
    with pytest.raises(ValueError, match="needs") as caught:
        ps.partition(
            profile,
            8,
            ranks=4,
            placement="v_shape",
            memory_bytes=1,
            in_flight=schedule.peak_in_flight_by_stage(),
        )
    return int(str(caught.value).split("needs ")[1].split(" bytes")[0].replace(",", ""))


def test_several_stages_a_rank(config, capsys):
    found = as_json(capsys, config, "--set", "run.schedule=interleaved")
    assert [len(row["split"]) for row in found["choices"]] == [8] * 5
    assert sum(found["chosen"]["split"]) == 16
    found = as_json(
        capsys, config, "--set", "run.schedule=interleaved", "--set", "run.options.chunks=3"
    )
    assert len(found["chosen"]["split"]) == 12


def test_speeds_count_in_a_split_by_time(config, capsys):
    found = as_json(capsys, config, "--set", "devices.speed=[5,1,1,1]", "--by", "time")
    assert found["chosen"]["split"] == [10, 2, 2, 2]
    assert found["chosen"]["stage_ms"] == [6, 6, 6, 6]
    config = ps.read_config(config, {"layers.split": "time", "devices.speed": [5, 1, 1, 1]})
    assert [stage.forward_ms for stage in config.pipeline.stages] == [10, 2, 2, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["devices.memory_bytes=5000"],
            # A layer takes 4100, 3100, 2100, 1100 bytes: below 8800 there is room for 15 only.
            "the least that any split needs is 8,800 bytes on the fullest rank, 3, which has "
            "5,000, with the split [2, 2, 4, 8]",
        ),
        (["devices.ranks=17"], "16 layers cannot fill 17 stages; 16 stages are the most"),
        (["layers.split=[4,4,4,3]"], "places 15 layers, but the profile has 16: 1 would be lost"),
        (["layers.file=nowhere.csv"], "layers.file: "),
        (["run.schedule=none"], "run.schedule: 'none' is unknown"),
        (["devices.ranks=none"], "devices.ranks: missing"),
    ],
)
def test_what_cannot_be_split_says_what_would_be_possible(config, capsys, changes, message):
    flags = [part for change in changes for part in ("--set", change)]
    assert main(["split", config, *flags]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert not captured.out


def test_a_config_without_layers_and_a_profile_without_bytes(config, tmp_path, capsys):
    (tmp_path / "stages.toml").write_text("[run]\nschedule = '1f1b'\n[stages]\nforward_ms = [1]\n")
    assert main(["split", str(tmp_path / "stages.toml")]) == 2
    assert "layers: missing; what is to be split" in capsys.readouterr().err
    (tmp_path / "layers.csv").write_text("forward_ms,backward_ms\n1,2\n1,2\n1,2\n1,2\n")
    found = as_json(capsys, config)
    assert [row["split_by"] for row in found["choices"]] == ["layers", "time", "simulated"]
    assert main(["split", config]) == 0
    assert "GB" not in capsys.readouterr().out.replace("GB/s", "")
    assert main(["split", config, "--by", "param_bytes"]) == 2
    assert "the profile gives no param_bytes" in capsys.readouterr().err


def test_a_split_of_replicas_says_that_its_step_is_one_without_them(config, capsys):
    assert main(["split", config, "--set", "training.replicas=2"]) == 0
    assert "\nstep: without replicas, reductions" in capsys.readouterr().out
    assert main(["split", config]) == 0
    assert "without replicas" not in capsys.readouterr().out


def test_a_table_is_typed_as_in_a_file(config, capsys):
    recompute = 'layers.recompute={"0..3" = "none"}'
    assert main(["split", config, "--set", recompute]) == 0
    assert main(["split", config, "--set", recompute.replace(" = ", ": ")]) == 0
