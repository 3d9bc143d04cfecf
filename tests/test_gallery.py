"""The gallery: its figures are there, small, and made by `make gallery`; its numbers are true."""

import re
from pathlib import Path

import pytest

import pipesim as ps
from pipesim.plot.gantt.titles import saved_text
from tests.test_experiments import load

ROOT = Path(__file__).parent.parent
GALLERY = (ROOT / "docs" / "gallery.md").read_text()
SECTIONS = {section.splitlines()[0]: section for section in GALLERY.split("\n## ")[1:]}
RULE = (ROOT / "Makefile").read_text().split("\ngallery:")[1].split("\n\n")[0]
MOST_BYTES = 200_000


def numbers(section):
    """Return the numbers of a caption that have a unit or a decimal point."""
    caption = re.search(r"^\*(.+?)\*$", SECTIONS[section], re.MULTILINE | re.DOTALL)[1]
    return [float(n) for n in re.findall(r"\d+\.\d+|\d+(?= %)", caption.replace("\n", " "))]


def test_six_figures():
    assert len(SECTIONS) == 6


@pytest.mark.parametrize("section", SECTIONS)
def test_every_figure_is_made_by_the_rule_from_the_experiment_that_is_named(section):
    (name,) = re.findall(r"!\[.+\]\((.+)\)", SECTIONS[section])
    (script,) = re.findall(r"^`python experiments/(.+)`$", SECTIONS[section], re.MULTILINE)
    (drawn,) = re.findall(rf"cp out/(.+) docs/{name}", RULE)
    assert f"experiments/{script}\n" in RULE
    assert drawn.split("_")[0] == script.split("_")[0]
    assert (ROOT / "experiments" / script).exists()


def test_all_figures_are_small_and_made_by_the_rule():
    figures = sorted((ROOT / "docs").glob("*.png"))
    assert len(figures) == RULE.count("docs/")
    for figure in figures:
        assert f" docs/{figure.name}" in RULE
        assert figure.stat().st_size < MOST_BYTES, figure.name


def test_the_numbers_of_the_straggler():
    experiment = load("01_unequal_stages")
    run = ps.simulate_config(ps.read_config(experiment.CONFIG))
    more = run.ranks.busy[3] / run.ranks.busy[:3].mean() - 1
    shares = [more, run.closed_form, experiment.MEASURED_BUBBLE, run.bubble_fraction]
    assert numbers("A straggler") == pytest.approx([100 * x for x in shares], abs=0.5)
    assert numbers("A straggler")[1:] == [round(100 * share, 1) for share in shares[1:]]
    assert run.lower_bound == pytest.approx(run.makespan, rel=1e-12)


def test_the_numbers_of_the_five_schedules():
    experiment = load("06_schedule_zoo")
    runs = experiment.compared()
    assert [run.schedule.name for run in runs] == list(experiment.COMPARED)
    saved = [float(saved_text(run, runs).split("(")[1].rstrip("%)")) for run in runs[1:]]
    told = [experiment.HEAVY, round(runs[0].makespan, 1), *saved]
    assert numbers("Five schedules, one slow stage") == told
    for number in told[1:]:
        assert f"{number}" in experiment.__doc__


def test_the_numbers_of_the_price_of_imbalance():
    experiment = load("05_price_of_imbalance")
    table = experiment.simulate_all(experiment.DRAWS)
    few = table[(table.schedule == "1f1b") & (table.microbatches == 4)]
    assert len(few) == 300
    (x, short), (_, long) = map(experiment.production_job, experiment.MICROBATCHES)
    shares = [round(100 * (few.inflation < 1).mean()), *(round(n, 2) for n in (x, short, long))]
    assert numbers("The price of imbalance") == shares


def test_the_numbers_of_the_spread():
    told = numbers("How much imbalance adds to the bubble")
    documented = load("09_imbalance_sweep").__doc__  # which the test of the experiment holds
    assert told[0] == 20
    assert told[1:] == [float(n) for n in re.findall(r"([\d.]+) % (?:longer)", documented)]


def test_the_numbers_of_recompute(monkeypatch, tmp_path):
    told = numbers("Memory against time")
    experiment = load("12_recompute_trade")
    monkeypatch.setattr(experiment, "OUT", tmp_path)
    table = experiment.main(quick=True)
    table = table.set_index(["schedule", "mode", "stages"]).sort_index()
    cases = [("1F1B", "full", 4), ("1F1B, layers moved", "full", 4), ("1F1B", "selective", 4)]
    assert told == [round(table.added_percent[case]) for case in cases]
    assert table.saved_percent["1F1B", "full", 4] == pytest.approx(50, abs=0.01)
    assert (table.saved_percent["GPipe", "full"].iloc[:-1] == 0).all()


def test_the_numbers_of_the_replicas():
    step = load("13_pipeline_x_data_parallel").slow_replica()
    first, second = (run.makespan for run in step.runs)
    caption = SECTIONS["Replicas"]
    assert f"after {first:.0f} ms, the second after {second:.0f}" in caption
    assert f"at {step.step_ms:.0f} ms" in caption
