"""The notebooks and the README: they run, and what they name exists."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import nbformat
import pytest
from nbclient import NotebookClient

import pipesim as ps
from pipesim.cli import main
from pipesim.cli.flags import PROTOCOL_NAMES
from pipesim.cli.profile import LAYERS_CONFIG
from pipesim.plot.page.window import MOST_BARS
from pipesim.schedules.families.registry import FAMILIES
from pipesim.schedules.program.lowering import PROTOCOLS
from pipesim.studies.sweep.study import read_study

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^pipesim .+$", README, re.MULTILINE)


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
def test_notebooks_run_and_hold_no_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    if any("import torch" in cell.source for cell in notebook.cells) and find_spec("torch") is None:
        pytest.skip("needs the extra torch: `make test-torch` runs it")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_in_the_readme_runs(command, monkeypatch, tmp_path, capsys):
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    monkeypatch.chdir(tmp_path)
    ps.write_schedule(ps.build_schedule("1f1b", 4, 4), tmp_path / "out" / "order.csv")
    assert main(shlex.split(command)[1:]) == 0
    written = re.findall(r"out/\S+", command)
    assert all((tmp_path / name).stat().st_size for name in written)
    assert capsys.readouterr().out


def test_the_help_names_every_protocol():
    assert PROTOCOL_NAMES == PROTOCOLS


def test_the_readme_has_commands():
    assert len(COMMANDS) >= 6


def test_every_file_that_the_readme_names_is_there():
    named = re.findall(r"(?:experiments|docs|notebooks|benchmarks|pipesim)/[\w./]+\.\w+", README)
    assert len(named) > 15
    for name in named:
        assert (ROOT / name).exists(), name


def test_the_config_in_the_readme_is_a_config(tmp_path):
    text = README.split("```toml\n")[1].split("```")[0]
    (tmp_path / "readme.toml").write_text(text)
    run = ps.simulate_config(ps.read_config(tmp_path / "readme.toml"))
    assert run.ranks.peak_stash_bytes[0] == 4 * 2_000_000_000


def test_the_config_for_a_file_of_layers_splits_and_runs(tmp_path, capsys):
    (shown,) = [text for text in README.split("```toml\n")[2:] if "layers.csv" in text]
    text = shown.split("```")[0]
    assert text == dedent(LAYERS_CONFIG)
    (tmp_path / "layers.csv").write_text("F_ms,B_ms\n" + 8 * "1,2\n")
    config = tmp_path / "readme.toml"
    config.write_text(text)
    assert main(["split", str(config)]) == 0
    pasted = capsys.readouterr().out.splitlines()[-1]
    config.write_text(text.replace('split = "time"', pasted))
    assert main(["run", str(config)]) == 0
    assert ps.read_config(config).sections.layers.split == [2, 2, 2, 2]


def test_the_axes_in_the_readme_are_axes(tmp_path):
    axes = README.split("```\n[sweep.axes]")[1].split("```")[0]
    config = (ROOT / "experiments" / "configs" / "straggler.toml").read_text()
    (tmp_path / "readme.toml").write_text(f"{config}\n[sweep.axes]{axes}")
    study, points = read_study(tmp_path / "readme.toml")
    assert len(points) == 2 * 6 * 100 * (2 * 100)
    assert study.keys[:2] == ("run.schedule", "links.latency_ms")


def test_the_table_of_schedules_is_the_registry():
    section = README.split("## Schedules\n")[1].split("## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(FAMILIES)
    for row, family in zip(rows, FAMILIES.values(), strict=True):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells[2:6] == [family.warm_up, family.peak, family.bubble, family.source]
        for option, default in family.options.items():
            assert f"`{option}={default}`" in cells[1]


def test_the_fault_in_the_readme_is_what_check_says(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    shown = README.split("```\n$ pipesim check ")[1].split("\n```")[0]
    path, *lines = shown.splitlines()
    assert main(["check", path]) == 3
    assert capsys.readouterr().err.splitlines() == lines


def test_the_splits_in_the_readme_are_what_split_says(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    shown = README.split("<!-- split -->\n```\n")[1].split("\n```")[0]
    assert main(["split", "experiments/configs/llama3_8b.toml"]) == 0
    assert capsys.readouterr().out.rstrip() == shown


def test_the_keys_of_memory_and_replicas_in_the_readme(tmp_path):
    text = README.split("```\n[devices]\nmemory_bytes")[1].split("```")[0]
    (tmp_path / "readme.toml").write_text(
        f'[run]\nschedule = "1f1b"\n[devices]\nranks = 4\nmemory_bytes{text}'.replace(
            "[layers]", '[layers]\nfile = "layers.csv"\nsplit = "time"'
        )
    )
    costs = ROOT / "experiments" / "configs" / "llama3_8b.csv"
    (tmp_path / "layers.csv").write_text(costs.read_text())
    config = ps.read_config(tmp_path / "readme.toml")
    assert config.schedule.microbatches == 64
    assert config.training.speed == (1, 1, 0.9, 1)
    assert ps.simulate_step(config.pipeline, config.schedule, training=config.training).step_ms > 0


def test_the_numbers_on_layers_and_replicas_in_the_readme():
    text = README.split("## From layers to stages")[1].split("## Schedules")[0]
    for number in ("26.7 s", "20.3, of equal time 20.2", "within 2 %", "31 % longer", "costs 5 %"):
        assert number in text  # each is held by the test of its experiment


def test_the_costs_of_the_protocols_in_the_readme():
    rows = [line for line in README.splitlines() if re.match(r"\| `\w+` \|.*\|.*\|.*\|$", line)]
    shown = {row.split("`")[1]: [c.strip() for c in row.split("|")[3:5]] for row in rows}
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=4, latency_ms=0.5)
    for protocol in PROTOCOLS:
        costs = []
        for schedule in ("1f1b", "gpipe"):
            try:
                costs.append(f"{ps.simulate(pipe, schedule, 8, protocol=protocol).makespan:g}")
            except ps.DeadlockError:
                costs.append("hangs")
        assert shown[protocol] == costs


def test_the_errors_against_pytorch_in_the_readme():
    results = (ROOT / "benchmarks" / "against_pytorch.md").read_text()
    found = {
        (what, p): numbers
        for what, p, *numbers in re.findall(
            r"^(\w+) +p = (\d): median error (.+) %, largest (.+) %, within 1 %: (.+)$",
            results,
            re.MULTILINE,
        )
    }
    median, largest, within = found["fitted", "4"]
    assert within.endswith(" of 32")
    assert f"{median} %, {within.split()[0]} of them within 1 %" in flat(README)
    assert f"the others within {largest} %" in flat(README)
    median, _, within = found["fitted", "8"]
    assert f"of eight ranks on two cores with {median} %, {within} within 1 %" in flat(README)
    ranked = re.search(r"^fitted .* more than 1 %, (\d+) of \1$", results, re.MULTILINE)[1]
    assert f"All {ranked} pairs of runs that differ by more than 1 % are ranked" in flat(README)
    assert f"nominal costs alone the median error is {found['nominal', '4'][0]} %" in flat(README)


def flat(text):
    return " ".join(text.split())


def test_the_fixed_global_batch_of_the_course():
    table = ps.sweep_config(ROOT / "experiments" / "configs" / "microbatch_size.toml")
    assert table.makespan_ms.tolist() == [319.5, 292.5, 310.5, 382.5, 544.5]


def test_what_a_page_holds_is_what_the_readme_says():
    assert README.count(f"{MOST_BARS:,} ops") == 2
    assert "idle for 130.7 ms before it" in README  # experiments/17_a_page.py
    pages = (ROOT / "benchmarks" / "pages.md").read_text()
    assert f"shows the first {MOST_BARS:,}" in pages
    seconds = re.search(r"^ +30,720 +\S+ +\S+ +(\S+)", pages, re.MULTILINE)[1]
    assert f"30,720 of them in {seconds} s" in README
    assert float(seconds) < 3


def test_the_benchmark_runs(capsys):
    import importlib.util

    path = ROOT / "benchmarks" / "engine.py"
    specification = importlib.util.spec_from_file_location("engine_benchmark", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    module.main(quick=True)
    printed = capsys.readouterr().out
    assert printed.count("K = 1024") == 3
    assert " M/s" in printed
