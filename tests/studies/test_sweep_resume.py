"""What stops a sweep loses nothing that was done."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pipesim as ps
from pipesim.cli import main
from pipesim.studies.sweep import rows
from pipesim.studies.sweep.journal import add_rows, journal_path, open_journal
from pipesim.studies.sweep.study import read_study

ROOT = Path(__file__).parents[2]


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "s.toml"
    path.write_text(
        '[run]\nschedule = "1f1b"\nmicrobatches = 4\n'
        "[stages]\nforward_ms = [1, 1, 1, 1]\nbackward_ms = [2, 2, 2, 2]\n"
        '[sweep.axes]\n"run.microbatches" = [4, 0, 8]\n'
        '"stages.forward_ms[1]" = {lognormal = [1, 0.3], draws = 20}\n'
    )
    return path


@pytest.fixture
def whole(study, tmp_path):
    """The file of a sweep that nothing interrupts."""
    file = tmp_path / "whole.csv"
    ps.sweep_config(study, file=file)
    assert not journal_path(file).exists()
    return file.read_bytes()


def interrupted_after(count):
    def progress(done, total):
        assert total == 60
        if done == count:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize("count", [1, 17, 59])
def test_an_interrupted_sweep_goes_on(study, whole, tmp_path, count):
    file = tmp_path / "t.csv"
    with pytest.raises(KeyboardInterrupt):
        ps.sweep_config(study, progress=interrupted_after(count), file=file)
    assert not file.exists()
    kept = journal_path(file).read_text().splitlines()
    assert len(kept) > count
    seen = []
    ps.sweep_config(study, progress=lambda *c: seen.append(c), file=file, resume=True)
    assert len(seen) == 60 - (len(kept) - 1)
    assert file.read_bytes() == whole
    assert not journal_path(file).exists()


def test_a_line_that_was_cut_off_is_not_done(study, whole, tmp_path):
    file = tmp_path / "t.csv"
    with pytest.raises(KeyboardInterrupt):
        ps.sweep_config(study, progress=interrupted_after(30), file=file)
    journal = journal_path(file)
    for cut, count in ((5, 45), (1, 60)):  # in the middle of a line, and just its end
        journal.write_bytes(journal.read_bytes()[:-cut])
        with pytest.raises(KeyboardInterrupt):
            ps.sweep_config(study, progress=interrupted_after(count), file=file, resume=True)
    ps.sweep_config(study, file=file, resume=True)
    assert file.read_bytes() == whole


def test_a_journal_is_neither_lost_nor_mixed_up(study, tmp_path):
    file = tmp_path / "t.csv"
    with pytest.raises(KeyboardInterrupt):
        ps.sweep_config(study, progress=interrupted_after(30), file=file)
    with pytest.raises(ps.ConfigError, match=r"t\.csv\.partial: an interrupted .*--resume.*delete"):
        ps.sweep_config(study, file=file)
    with pytest.raises(ps.ConfigError, match="are of another study"):
        ps.sweep_config(study, {"stages.backward_ms[0]": 3}, file=file, resume=True)
    journal_path(file).write_text("[]\n")
    with pytest.raises(ps.ConfigError, match="are of another study"):
        ps.sweep_config(study, file=file, resume=True)
    journal_path(file).unlink()
    ps.sweep_config(study, file=file, resume=True)  # nothing to go on with: from the start
    assert file.exists()


def test_another_layer_file_is_another_study(tmp_path):
    layers = tmp_path / "l.csv"
    layers.write_text("layer,forward_ms,backward_ms\na,1,2\nb,1,2\n")
    study = tmp_path / "s.toml"
    study.write_text(
        '[run]\nschedule = "1f1b"\nmicrobatches = 4\n'
        '[layers]\nfile = "l.csv"\nsplit = [1, 1]\n'
        '[sweep.axes]\n"run.schedule" = ["1f1b", "gpipe"]\n'
    )
    file = tmp_path / "t.csv"

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ps.sweep_config(study, progress=stop, file=file)
    layers.write_text("layer,forward_ms,backward_ms\na,1,2\nb,1,3\n")
    with pytest.raises(ps.ConfigError, match="are of another study"):
        ps.sweep_config(study, file=file, resume=True)


def test_nothing_stays_of_a_sweep_whose_points_all_fail(study, tmp_path):
    file = tmp_path / "t.csv"
    with pytest.raises(ps.ConfigError, match=r"run\.microbatches: 0 is not"):
        ps.sweep_config(study, {"sweep.axes": {"run.microbatches": [0]}}, file=file)
    assert [path.name for path in tmp_path.iterdir()] == ["s.toml"]


def test_ctrl_c_says_how_to_go_on(study, tmp_path, capsys, monkeypatch):
    file = str(tmp_path / "t.csv")
    work = rows.simulate_many

    def second(*args, calls=[], **kwargs):  # noqa: B006
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return work(*args, **kwargs)

    monkeypatch.setattr(rows, "simulate_many", second)
    assert main(["sweep", str(study), "--csv", file]) == 130
    err = capsys.readouterr().err
    assert f"what is done is in {file}.partial; go on with --resume" in err
    assert main(["sweep", str(study), "--csv", file]) == 2
    assert main(["sweep", str(study), "--csv", file, "--resume"]) == 0
    assert "20 of 60 points failed; see the column error" in capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_a_killed_sweep_goes_on(study, tmp_path):
    file, journal = tmp_path / "t.csv", tmp_path / "t.csv.partial"
    axes = {"stages.forward_ms[1]": {"uniform": [1, 2], "draws": 3000}}
    change = ["--set", f"sweep.axes={json.dumps(axes)}", "--set", "run.microbatches=65536"]
    command = [sys.executable, "-m", "pipesim", "sweep", str(study), "--csv", str(file), *change]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            if journal.exists() and len(journal.read_bytes().splitlines()) > 300:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert not file.exists()
    kept = len(journal.read_bytes().splitlines())
    assert 300 < kept <= 3000
    subprocess.run([*command, "--resume"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    resumed = file.read_bytes()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    assert file.read_bytes() == resumed


def test_parquet_has_the_same_rows(study, tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    table = ps.sweep_config(study, file=tmp_path / "t.parquet")
    read = pandas.read_parquet(tmp_path / "t.parquet")
    numbers = table.select_dtypes("float").columns
    pandas.testing.assert_frame_equal(read[numbers], table[numbers], check_exact=True)
    assert read.error.dropna().tolist() == table.error.dropna().tolist()


def test_axes_in_another_order_are_another_study(tmp_path):
    def study(name, *keys):
        path = tmp_path / name
        axes = "\n".join(f'"stages.forward_ms[{key}]" = [1, {2 + key}]' for key in keys)
        path.write_text(
            '[run]\nschedule = "1f1b"\nmicrobatches = 8\n'
            "[stages]\nforward_ms = [1, 1, 1, 1]\nbackward_ms = [2, 2, 2, 2]\n"
            f"[sweep.axes]\n{axes}\n"
        )
        return path

    one, other = study("one.toml", 0, 3), study("other.toml", 3, 0)
    columns = ["stages.forward_ms[0]", "stages.forward_ms[3]"]
    first, second = ps.sweep_config(one), ps.sweep_config(other)
    assert first.set_index(columns).makespan_ms.to_dict() == (
        second.set_index(columns).makespan_ms.to_dict()
    )
    file = tmp_path / "t.csv"
    journal = journal_path(file)
    handle, _ = open_journal(journal, read_study(one)[0].digest, 4, resume=False)
    handle.close()
    with pytest.raises(ps.ConfigError, match="are of another study"):
        ps.sweep_config(other, file=file, resume=True)


def test_a_journal_is_gone_on_with_and_never_written_anew(tmp_path):
    path = tmp_path / "j.partial"
    row = [None] * len(rows.RESULTS)
    handle, done = open_journal(path, "d", 9, resume=False)
    add_rows(handle, [0, 1], [row, row])
    handle.close()
    before = path.read_bytes()
    path.write_bytes(before + b'{"point": 2, "row"')
    handle, done = open_journal(path, "d", 9, resume=True)
    assert sorted(done) == [0, 1]
    assert path.read_bytes() == before
    add_rows(handle, [2], [row])
    handle.close()
    assert path.read_bytes().startswith(before)


@pytest.mark.parametrize("line", ["[1]", "3", '{"point": 0}', '{"point": "0", "row": []}', "{}"])
def test_a_damaged_journal_is_told(tmp_path, line):
    path = tmp_path / "j.partial"
    open_journal(path, "d", 9, resume=False)[0].close()
    with path.open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(ps.ConfigError, match="is no journal of a sweep: delete it"):
        open_journal(path, "d", 9, resume=True)


def test_a_folder_in_the_place_of_the_journal_is_told(tmp_path):
    (tmp_path / "j.partial").mkdir()
    with pytest.raises(ps.ConfigError, match="is no file"):
        open_journal(tmp_path / "j.partial", "d", 9, resume=True)
