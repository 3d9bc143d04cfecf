"""Comparisons from Python: regrouping, shares of a batch, what does not fit, order, progress."""

import json

import pytest

import pipesim as ps
from pipesim.cli import main


def test_schedules_are_ranked_by_the_step_of_one_batch(tmp_path):
    pipe = ps.Pipeline.from_costs([1, 1, 1, 2], [2, 2, 2, 4])
    file = tmp_path / "mine.csv"
    ps.write_schedule(ps.build_schedule("gpipe", 4, 8), file)
    seen = []
    table = ps.compare(
        pipe,
        ["pipedream", "1f1b", "gpipe_forward", "zb_h1", file],
        microbatches=8,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert table.schedule.tolist() == ["pipedream", "1f1b", "mine", "gpipe_forward", "zb_h1"]
    # Two batches in one go: half of (16 + 1) x 6 + 9, and more than 1F1B's steady 8 x 6.
    assert table.step_ms[:4].tolist() == [52.5, 57.0, 57.0, 19.0]
    assert table.held[:3].tolist() == [4.0, 4.0, 8.0]
    assert table.error[:4].isna().all()
    assert "splits the backward" in table.error[4]
    assert seen[-1][0] == seen[-1][1] > 0


def test_neighbouring_stages_are_merged_for_a_schedule_that_takes_fewer():
    pipe = ps.Pipeline.from_costs([1] * 8, [2] * 8, ranks=4)
    table = ps.compare(pipe, ["1f1b", "interleaved"], 8).set_index("schedule")
    assert table.stages.to_dict() == {"interleaved": 8, "1f1b": 4}
    assert table.step_ms.to_dict() == {"interleaved": 57.0, "1f1b": 66.0}


def test_an_unknown_name_and_no_name_are_refused():
    pipe = ps.Pipeline.from_costs([1, 1], [2, 2])
    with pytest.raises(ps.ScheduleError, match="did you mean 1f1b"):
        ps.compare(pipe, ["1f1bb"], 4)
    with pytest.raises(ValueError, match="give at least one"):
        ps.compare(pipe, [], 4)


def test_splits_from_python_are_those_of_the_command(tmp_path, capsys):
    profile = ps.LayerProfile([1.0, 2, 3, 4, 5, 6, 7], [2.0, 4, 6, 8, 10, 12, 14])
    ps.write_layers(profile, tmp_path / "layers.csv")
    config = tmp_path / "c.toml"
    config.write_text(
        '[run]\nschedule = "1f1b"\nmicrobatches = 4\n[layers]\nfile = "layers.csv"\n'
        "split = [3, 2, 2]\n[devices]\nranks = 3\n"
    )
    table = ps.compare_splits(profile, 3, "1f1b", 4, counts=[3, 2, 2])
    assert table.split_by.tolist() == ["layers", "time", "config", "simulated"]
    assert main(["split", str(config), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)["choices"]
    assert table.to_dict("records") == printed
