"""The command line as a user types it: what it prints, writes and exits with."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from pipesim.cli import main
from pipesim.schedules.families.registry import FAMILIES

STRAGGLER = str(Path(__file__).parents[2] / "experiments" / "configs" / "straggler.toml")
FLAGS = ["--schedule", "1f1b", "--microbatches", "8"]
COSTS = ["--forward", "1,1,1,2", "--backward", "2,2,2,4"]


def test_run_prints_where_the_time_goes(capsys):
    assert main(["run", STRAGGLER, "--text"]) == 0
    out = capsys.readouterr().out
    assert "ByteDance straggler: 4 stages x 4 micro-batches, 1f1b" in out
    for number in ("1705.9", "2001.5", "+295.6 ms  <- rank 3", "2003.9", "51.35%", "42.86%"):
        assert number in out
    assert "<- bottleneck" in out
    assert "no order with a fused backward can be faster; change the split" in out
    assert "rank 0 |F0-F1--F2-F3-" in out


def test_run_from_flags_as_json(capsys):
    assert main(["run", *FLAGS, *COSTS, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["makespan_ms"] == 57
    assert summary["bubble_fraction"] == pytest.approx(27 / 57)
    assert [rank["busy_ms"] for rank in summary["per_rank"]] == [24, 24, 24, 48]


@pytest.mark.parametrize(
    ("flags", "makespan"),
    [
        (["--latency-ms", "0.5", "--forward", "1", "--backward", "2", "--ranks", "4"], 41),
        (["--forward", "1,1", "--input-grad", "1", "--weight-grad", "1e0"], 27),
        ([*COSTS, "--set", "stages.forward_ms[3]=1", "--set", "stages.backward_ms[3]=2"], 33),
        ([*COSTS, "--queue-capacity", "1", "--engine", "simpy", "--protocol", "eager"], 57),
    ],
)
def test_flags_stand_for_keys(capsys, flags, makespan):
    assert main(["run", *FLAGS, *flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["makespan_ms"] == makespan


def test_options_of_the_schedule(capsys, tmp_path):
    trace = tmp_path / "t.csv"
    arguments = ["run", "--schedule", "gpipe", "--microbatches", "2", "--forward", "1,1"]
    arguments += ["--backward", "2,2", "--option", "order=fifo", "--trace", str(trace)]
    assert main(arguments) == 0
    table = pd.read_csv(trace)
    backwards = table[(table.kind == "B") & (table["rank"] == 0)]
    assert backwards.microbatch.tolist() == [0, 1]
    assert f"wrote {trace}" in capsys.readouterr().err


def test_files_are_written_whole(capsys, tmp_path):
    for name in ("g.png", "g.svg", "g.pdf"):
        assert main(["run", STRAGGLER, "--gantt", str(tmp_path / "new" / name)]) == 0
        assert (tmp_path / "new" / name).stat().st_size > 1000
    assert main(["run", STRAGGLER, "--trace", str(tmp_path / "t.parquet")]) == 0
    assert len(pd.read_parquet(tmp_path / "t.parquet")) == 32 + 24
    leftovers = [path for path in tmp_path.rglob("*") if path.name.startswith(".")]
    assert leftovers == []


def test_the_trace_in_csv_has_full_precision(tmp_path):
    assert main(["run", STRAGGLER, "--trace", str(tmp_path / "t.csv")]) == 0
    with (tmp_path / "t.csv").open() as file:
        ends = [float(row["end"]) for row in csv.DictReader(file)]
    assert max(ends) == 2003.8940000000002


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["run"],
            "pipesim: give a CONFIG, or --schedule, --microbatches, --forward and --backward",
        ),
        (["run", *FLAGS], "give a CONFIG, or --schedule, --microbatches, --forward and"),
        (["run", *COSTS], "command line: run.schedule: missing, but required"),
        (
            ["run", *FLAGS, *COSTS, "--protocol", "pared"],
            "'pared' is unknown; did you mean paired",
        ),
        (["lower", STRAGGLER, "--protocol", "pared"], "'pared' is unknown; did you mean paired"),
        (["run", "--schedule", "1f1b", "--microbatches", "4.7", *COSTS], "4.7 is not a whole"),
        (["run", *FLAGS, "--forward", "1,x", "--backward", "1"], "stages.forward_ms[1]: 'x' is"),
        (["run", *FLAGS, "--forward", "1,-1", "--backward", "1"], "stages.forward_ms[1]: -1 is"),
        (["run", *FLAGS, "--forward", "1,nan", "--backward", "1"], "nan is not a number from 0"),
        (["run", *FLAGS, "--forward", "1,inf", "--backward", "1"], "inf is not a number from 0"),
        (["run", *FLAGS, "--forward", "1,1", "--backward", "1,1,1"], "3 values for 2 stages"),
        (["run", *FLAGS, "--forward", "1,1"], "run.schedule: 1f1b runs backwards: give backward"),
        (
            ["run", *FLAGS[2:], *COSTS, "--schedule", "1f2b"],
            "run.schedule: '1f2b' is unknown; did you mean 1f1b?",
        ),
        (["run", *FLAGS, *COSTS, "--option", "chunks"], "'run.options.chunks' is no assignment"),
        (
            ["run", *FLAGS, *COSTS, "--option", "chunks=2"],
            "options.chunks: 1f1b has no such",
        ),
        (["run", *FLAGS, *COSTS, "--set", "stages.colour=1"], "stages.colour: unknown key"),
        (["run", *FLAGS, *COSTS, "--set", "stages.forward_ms[9]=1"], "has 4 values, from 0 on"),
        (["run", *FLAGS, *COSTS, "--gantt", "g.gif"], "--gantt g.gif: the ending must be .png"),
        (["run", *FLAGS, *COSTS, "--trace", "t.txt"], "--trace t.txt: the ending must be .csv"),
        (["run", *FLAGS, *COSTS, "--text", "--json"], "give one of them"),
        (["run", "nowhere.toml"], "nowhere.toml: cannot be read: No such file or directory"),
        (["run", STRAGGLER, "--set", "run.microbatches=none"], "straggler.toml: run.microbatches"),
        (
            ["compare", STRAGGLER, "--schedules", "1f1b,x"],
            "--schedules: 'x' is unknown; known: all",
        ),
        (["compare", STRAGGLER, "--schedules", "gpip"], "'gpip' is unknown; did you mean gpipe?"),
        (["compare", STRAGGLER, "--schedules", "1F1B"], "'1F1B' is unknown; did you mean 1f1b?"),
        (["sweep", STRAGGLER], "straggler.toml: sweep: missing; write [sweep] with axes"),
        (["sweep", STRAGGLER, "--y", "beauty"], "--y: 'beauty' is unknown; known: makespan_ms"),
        (["sweep", STRAGGLER, "--y", "makespan"], "is unknown; did you mean makespan_ms?"),
    ],
)
def test_bad_input_exits_2_and_says_where(capsys, arguments, message):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert "Traceback" not in captured.err


def test_nothing_is_written_after_a_failure(tmp_path):
    target = tmp_path / "g.png"
    target.write_text("what was there before")
    assert main(["run", *FLAGS, "--forward", "1,1", "--gantt", str(target)]) == 2
    assert target.read_text() == "what was there before"
    assert main(["run", STRAGGLER, "--gantt", str(tmp_path / "g.png" / "x.png")]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["g.png"]


def test_a_run_that_cannot_finish_exits_3(capsys, monkeypatch):
    import pipesim as ps
    from pipesim.config import simulate as of_configs

    def stuck(config, progress=None):
        schedule = ps.Schedule.from_orders(["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"])
        return ps.simulate(ps.Pipeline.from_costs(1.0, 2.0, stages=2), schedule)

    # No schedule that has a name can hang with eager transfers.
    monkeypatch.setattr(of_configs, "simulate_config", stuck)
    assert main(["run", STRAGGLER]) == 3
    assert "rank 0 at 0B0, op 2 of its 4: waits for" in capsys.readouterr().err


def test_compare_puts_the_fastest_first(capsys, tmp_path):
    target = tmp_path / "c.png"
    arguments = ["compare", STRAGGLER, "--schedules", "gpipe,1f1b,gpipe_forward"]
    arguments += ["--set", "stages.forward_ms[3]=70", "--set", "stages.backward_ms[3]=140"]
    assert main([*arguments, "--gantt", str(target)]) == 0
    lines = capsys.readouterr().out.splitlines()
    # What runs forwards only is no rival of the others.
    assert [line.split()[0] for line in lines[2:5]] == ["1f1b", "gpipe", "gpipe_forward"]
    assert target.stat().st_size > 1000
    assert main([*arguments, "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert runs[2]["makespan_ms"] < runs[0]["makespan_ms"] <= runs[1]["makespan_ms"]


def test_compare_says_what_does_not_fit(capsys):
    arguments = ["compare", STRAGGLER, "--schedules", "gpipe_forward,1f1b"]
    config = ["--set", "stages.backward_ms=none"]
    assert main([*arguments, *config]) == 0
    assert "1f1b does not fit: runs backwards: give backward_ms" in capsys.readouterr().out
    assert main(["compare", STRAGGLER, "--schedules", "1f1b", *config]) == 2
    assert "straggler.toml: run.schedule: 1f1b runs backwards" in capsys.readouterr().err


def test_compare_gives_an_option_to_those_that_have_it(capsys):
    arguments = ["compare", STRAGGLER, "--schedules", "gpipe,1f1b", "--json"]
    assert main([*arguments, "--set", "run.options.order=fifo"]) == 0
    captured = json.loads(capsys.readouterr().out)
    assert [run["schedule"] for run in captured["runs"]] == ["gpipe", "1f1b"]
    assert captured["does_not_fit"] == []
    assert main([*arguments, "--set", "run.options.colour=red"]) == 2
    assert (
        "run.options.colour: none of the schedules has any such option; known: order"
        in capsys.readouterr().err
    )


def test_compare_says_when_the_ops_differ(capsys):
    assert main(["compare", STRAGGLER, "--schedules", "gpipe_forward,1f1b"]) == 0
    assert "not all of them run the same ops" in capsys.readouterr().out


def test_texts_are_taken_as_they_are_typed(capsys):
    assert main(["run", STRAGGLER, "--set", "title=hello, $world 5"]) == 0
    assert capsys.readouterr().out.startswith("hello, $world 5: 4 stages x 4 micro-batches, 1f1b")


def test_one_of_each(capsys):
    one = ["--schedule", "1f1b", "--microbatches", "1", "--forward", "1", "--backward", "2"]
    assert main(["run", *one, "--ranks", "1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("1 stage x 1 micro-batch, 1f1b")
    assert "no order with a fused backward can be faster\n" in out


def test_files_that_cannot_be_written_are_refused_before_anything_is_run(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    target = str(tmp_path / "file" / "x.png")
    assert main(["run", STRAGGLER, "--gantt", str(tmp_path / "ok.png"), "--trace", "/"]) == 2
    assert main(["run", STRAGGLER, "--gantt", target]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"--gantt {target}: nothing can be written into" in captured.err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_file_is_written_even_if_the_reader_leaves_early(tmp_path):
    target = tmp_path / "t.csv"
    flags = "--schedule 1f1b --microbatches 2 --forward 1 --backward 2 --ranks 2000"
    command = f"{sys.executable} -m pipesim run {flags} --trace {target} | head -1"
    subprocess.run(command, shell=True, capture_output=True, check=False)
    assert target.exists()


def test_a_closed_output_is_no_traceback():
    command = f"{sys.executable} -m pipesim schedules >&-"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert result.stderr == ""


def test_the_text_chart_never_cuts_a_number(capsys):
    flags = ["--schedule", "gpipe", "--microbatches", "14", "--forward", "1", "--backward", "2"]
    assert main(["run", *flags, "--ranks", "4", "--text"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("rank ")]
    drawn = re.findall(r"[FB]\d+", "".join(rows[1:]))
    assert drawn.count("F1") == 4
    assert drawn.count("B13") == 4
    many = ["--schedule", "1f1b", "--microbatches", "300", "--forward", "1", "--backward", "2"]
    assert main(["run", *many, "--ranks", "4", "--text"]) == 0
    assert "ops are shorter than a character and do not show" in capsys.readouterr().out


def test_schedules_are_listed(capsys):
    assert main(["schedules"]) == 0
    out = capsys.readouterr().out
    assert "(p-1)/(m+p-1)" in out
    assert "order=lifo" in out
    assert main(["schedules", "--json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)]
    assert names[:4] == ["gpipe_forward", "gpipe", "1f1b", "1f1b_eager"]
    assert len(names) >= 18


@pytest.fixture
def sweep_config(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(
        '[run]\nschedule = "1f1b"\nmicrobatches = 4\n'
        "[stages]\nforward_ms = [1, 1, 1, 1]\nbackward_ms = [2, 2, 2, 2]\n"
        '[sweep.axes]\n"run.schedule" = ["gpipe", "1f1b"]\n'
        '"run.microbatches" = [2, 4, 8]\n'
    )
    return path


def test_a_sweep_is_a_tidy_table(capsys, tmp_path, sweep_config):
    file, figure = tmp_path / "s.csv", tmp_path / "s.png"
    assert main(["sweep", str(sweep_config), "--csv", str(file), "--plot", str(figure)]) == 0
    table = pd.read_csv(file)
    assert len(table) == 6
    assert list(table["run.microbatches"]) == [2, 4, 8, 2, 4, 8]
    assert list(table["makespan_ms"]) == [15, 21, 33] * 2
    assert list(table["closed_form_bubble_fraction"]) == pytest.approx([3 / 5, 3 / 7, 3 / 11] * 2)
    assert figure.stat().st_size > 1000
    assert "run.schedule" in capsys.readouterr().out


def test_a_sweep_as_json(capsys, sweep_config):
    arguments = ["sweep", str(sweep_config), "--set", "stages.forward_ms[3]=2", "--json"]
    assert main(arguments) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[0]["run.schedule"] == "gpipe"
    assert rows[0]["inflation"] > 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--set", 'sweep.axes={"a.b": 3}'], 'sweep.axes."a.b": 3 is not a list'),
        (["--set", "sweep.mode=zip"], "zip needs equal lengths"),
        (["--set", "sweep.mode=spiral"], "sweep.mode: 'spiral' is unknown"),
        (
            ["--set", 'sweep.axes={"run.microbatches": [0, 2.5]}'],
            "at run.microbatches = 0: run.microbatches: 0 is not a whole number",
        ),
        (["--set", "stages.backward_ms=x"], "stages.backward_ms: 'x' is not a number"),
        (["--set", 'sweep.axes={"imbalance": {"spread": -1}}'], "is not {stage = 3, factor"),
        (
            ["--heat", "--set", 'sweep.axes={"title": ["a"]}'],
            "--heat: needs two axes that vary, not none",
        ),
        (["--resume"], "--resume: needs --csv"),
        (["--jobs", "0"], "jobs = 0 is neither a count nor -1"),
        (["--cluster", "tcp://x:1"], "a cluster needs a backend that has one: dask or ray"),
        (["--set", 'sweep.axes={"run.colour": [1]}'], "run.colour: unknown key"),
        (["--set", 'sweep.axes={"stages.forward_ms[7]": [1]}'], "has 4 values, from 0 on"),
        (
            ["--set", 'sweep.axes={"run.schedule": ["1f1b", "zb_w"]}'],
            "sweep.axes.\"run.schedule\": 'zb_w' is unknown; ",
        ),
        (
            ["--set", 'sweep.axes={"run.microbatches,run.schedule": [[2, 4], ["gpipe", "best"]]}'],
            "or the path of a .csv file",
        ),
        (["--x", "run.colour"], "--x 'run.colour' is no axis; the axes are: run.schedule"),
    ],
)
def test_bad_sweeps_exit_2(capsys, sweep_config, change, message):
    assert main(["sweep", str(sweep_config), *change]) == 2
    assert message in capsys.readouterr().err


def test_sweeps_over_texts_lists_and_titles(capsys, tmp_path, sweep_config):
    lists = {"stages.forward_ms": [[1, 1, 1, 1], [1, 1, 1, 2]], "run.schedule": ["gpipe", "1f1b"]}
    arguments = ["sweep", str(sweep_config), "--plot", str(tmp_path / "s.png")]
    assert main([*arguments, "--set", f"sweep.axes={json.dumps(lists)}"]) == 0
    assert "[1, 1, 1, 2]" in capsys.readouterr().out
    assert main([*arguments, "--set", 'sweep.axes={"title": ["a", "b"]}']) == 0
    mixed = {"run.queue_capacity": ["none", 1, 2], "links.latency_ms": [0, 0.1, [1, 2, 3]]}
    for axis in ("run.queue_capacity", "links.latency_ms"):
        axes = ["--set", f"sweep.axes={json.dumps(mixed)}"]
        assert main([*arguments, *axes, "--x", axis, "--y", "bubble_fraction"]) == 0


def test_pictures_of_unequal_stages(capsys, tmp_path, sweep_config):
    figure = tmp_path / "s.png"
    arguments = ["sweep", str(sweep_config), "--plot", str(figure), "--y", "inflation"]
    one = {"run.microbatches": [2, 4], "imbalance": {"stage": 3, "factor": [1, 2]}}
    drawn = {"run.microbatches": [2, 4], "imbalance": {"spread": [0, 0.3], "draws": 3}}
    for axes in (one, drawn):
        for flags in (
            [],
            ["--heat"],
            ["--heat", "--x", next(iter(axes))],
            ["--x", "run.microbatches"],
        ):
            figure.unlink(missing_ok=True)
            assert main([*arguments, *flags, "--set", f"sweep.axes={json.dumps(axes)}"]) == 0
            assert figure.stat().st_size > 1000
            title = plt.gcf().axes[0].get_title()
            assert title == "1f1b, p = 4" + (", mean of 3 draws" if axes is drawn else "")
            plt.close("all")
    many = {"imbalance": {"spread": 0.1, "draws": 201}}
    assert main(["sweep", str(sweep_config), "--set", f"sweep.axes={json.dumps(many)}"]) == 0
    assert "... 201 rows; --csv FILE has them all" in capsys.readouterr().out


def test_a_sweep_as_json_has_full_precision_and_no_nan(capsys, sweep_config):
    arguments = ["sweep", str(sweep_config), "--json", "--set", "stages.forward_ms[3]=1.7"]
    assert main(arguments) == 0
    rows = json.loads(capsys.readouterr().out)
    import pipesim as ps

    pipe = ps.Pipeline.from_costs([1, 1, 1, 1.7], [2, 2, 2, 2])
    run = ps.simulate(pipe, "gpipe", 2)
    assert rows[0]["makespan_ms"] == run.makespan
    # Many runs at once add up in another order.
    assert rows[0]["bubble_fraction"] == pytest.approx(run.bubble_fraction, rel=1e-12)
    zeros = ["--set", "stages.forward_ms=[0, 0]", "--set", "stages.backward_ms=0"]
    assert main([*arguments[:3], *zeros]) == 0
    assert json.loads(capsys.readouterr().out)[0]["inflation"] is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("4.5", 4.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("010", 10),
        ("1:30", "1:30"),
        ("yes", "yes"),
        ("true", True),
        ("null", None),
        ("1f1b", "1f1b"),
        ("1,2.5,x", [1, 2.5, "x"]),
        ('"a, b"', "a, b"),
        ("[1, [2]]", [1, [2]]),
        ('{"a.b": [1]}', {"a.b": [1]}),
    ],
)
def test_values_on_the_command_line(text, value):
    from pipesim.cli.assignments import parse_value

    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


def run_python(*arguments, **options):
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        **options,
    )


@pytest.mark.parametrize(
    "code",
    [
        "import pipesim",
        "import pipesim.cli; pipesim.cli.build_parser().format_help()",
        "import sys; from pipesim.cli import main\ntry: main(['run', '--help'])\n"
        "except SystemExit: pass",
    ],
)
def test_importing_and_help_load_nothing_heavy(code):
    heavy = "{'numpy', 'pandas', 'matplotlib', 'numba', 'simpy', 'yaml', 'cattrs', 'tqdm'}"
    check = f"import sys; loaded = {heavy} & set(sys.modules); assert not loaded, loaded"
    result = run_python("-c", f"{code}\n{check}")
    assert result.returncode == 0, result.stderr


def test_a_simulation_loads_neither_pandas_nor_matplotlib():
    code = (
        "import pipesim as ps, sys\n"
        "ps.simulate(ps.Pipeline.from_costs([1, 1], [2, 2]), '1f1b', 4).summary()\n"
        "assert not {'pandas', 'matplotlib', 'numba'} & set(sys.modules)"
    )
    result = run_python("-c", code)
    assert result.returncode == 0, result.stderr


def test_the_module_is_the_command():
    result = run_python("-m", "pipesim", "schedules")
    assert result.returncode == 0
    assert "1f1b_eager" in result.stdout
    result = run_python("-m", "pipesim", "run", *FLAGS, "--forward", "-1")
    assert result.returncode == 2


def test_a_reader_that_leaves_early_is_no_error():
    command = f"{sys.executable} -m pipesim schedules | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert result.stderr == ""


def test_compare_all_ranks_what_fits_and_says_why_the_rest_does_not(capsys, tmp_path):
    target = tmp_path / "all.png"
    arguments = ["compare", STRAGGLER, "--schedules", "all"]
    assert main([*arguments, "--gantt", str(target)]) == 0
    out = capsys.readouterr().out
    assert target.stat().st_size > 1000
    assert "zb_h1 does not fit: splits the backward: give input_grad_ms" in out
    assert "dualpipe does not fit: needs an even m of at least 2p; here p = 4, m = 4" in out
    assert main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    unfit = {entry["schedule"] for entry in result["does_not_fit"]}
    runs = [entry["schedule"] for entry in result["runs"]]
    assert unfit | set(runs) == set(FAMILIES)
    assert not unfit & set(runs)


def test_compare_merges_stages_where_a_schedule_takes_fewer(capsys, tmp_path):
    config = tmp_path / "chunks.toml"
    config.write_text(
        "[run]\nmicrobatches = 8\n[devices]\nranks = 4\n[stages]\n"
        "forward_ms = [1, 1, 1, 1, 1, 1, 1, 2]\ninput_grad_ms = 1\nweight_grad_ms = 1\n"
    )
    names = "1f1b,interleaved,dualpipe_v"
    assert main(["compare", str(config), "--schedules", names, "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    stages = {run["schedule"]: run["stages"] for run in runs}
    assert stages == {"1f1b": 4, "interleaved": 8, "dualpipe_v": 8}


def test_compare_tells_the_step_of_one_batch(capsys):
    arguments = ["compare", STRAGGLER, "--schedules", "1f1b,pipedream"]
    assert main([*arguments, "--json"]) == 0
    runs = {run["schedule"]: run for run in json.loads(capsys.readouterr().out)["runs"]}
    assert runs["1f1b"]["step_ms"] == runs["1f1b"]["makespan_ms"]
    assert runs["pipedream"]["step_ms"] == runs["pipedream"]["makespan_ms"] / 2
    assert main(arguments) == 0
    (row,) = [r.split() for r in capsys.readouterr().out.splitlines() if r.startswith("pipedream ")]
    assert float(row[1]) >= float(row[-2])  # not below its bound


def test_compare_says_which_op_hangs(capsys, tmp_path):
    config = tmp_path / "chunks.toml"
    config.write_text(
        "[run]\nmicrobatches = 8\nqueue_capacity = 1\n[devices]\nranks = 4\n"
        "[stages]\ncount = 8\nforward_ms = 1\nbackward_ms = 2\n"
    )
    assert main(["compare", str(config), "--schedules", "1f1b,looped_bfs"]) == 0
    assert "looped_bfs does not fit: hangs: rank 0 at" in (capsys.readouterr().out)


def test_sensitivity_is_printed_most_gain_first(capsys):
    assert main(["run", STRAGGLER, "--sensitivity"]) == 0
    lines = capsys.readouterr().out.splitlines()
    head = next(n for n, line in enumerate(lines) if "gains ms" in line)
    assert lines[head + 1].split() == ["stages.forward_ms[3]", "139.445", "ms", "4.0000", "4.0000"]
    assert lines[head + 15].split()[:4] == ["devices.speed[3]", "1", "1", "%"]
    assert main(["run", STRAGGLER, "--sensitivity", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["sensitivity"]
    assert {"parameter": "stages.backward_ms[3]", "value": 202.787, "unit": "ms"}.items() <= next(
        row for row in rows if row["gain_ms"] == 4.0 and "backward" in row["parameter"]
    ).items()
    assert main(["run", STRAGGLER, "--json"]) == 0
    assert "sensitivity" not in json.loads(capsys.readouterr().out)


def test_parameters_that_do_not_matter_are_left_out(capsys):
    arguments = ["run", "--schedule", "1f1b", "--microbatches", "4", "--backward", "2,0"]
    assert main([*arguments, "--forward", "1,0", "--sensitivity"]) == 0
    printed = capsys.readouterr().out
    assert "devices.speed[0]" in printed
    assert "devices.speed[1]" not in printed
    zero = ["--forward", "0,0", "--backward", "0,0"]
    assert main([*arguments[:-2], *zero, "--sensitivity", "--set", "devices.ranks=2"]) == 0


def test_the_critical_path_needs_a_chart(tmp_path, capsys):
    assert main(["run", STRAGGLER, "--critical-path"]) == 2
    assert "--critical-path is drawn on the Gantt chart" in capsys.readouterr().err
    target = tmp_path / "path.svg"
    assert main(["run", STRAGGLER, "--critical-path", "--gantt", str(target)]) == 0
    assert target.exists()


MEMORY = """
title = "mine"
[run]
schedule = "1f1b"
microbatches = 8
[stages]
forward_ms = 1
backward_ms = 2
count = 4
param_bytes = 35e9
stash_bytes = 6e9
[devices]
memory_bytes = 60e9
"""


@pytest.fixture
def limited(tmp_path):
    path = tmp_path / "limited.toml"
    path.write_text(MEMORY)
    return str(path)


def test_the_report_has_the_memory_of_every_rank(limited, capsys):
    assert main(["run", limited, "--set", "training.zero=1", "--set", "training.replicas=4"]) == 3
    capsys.readouterr()
    more = ["--set", "training.zero=1", "--set", "training.replicas=4", "--no-memory-limit"]
    assert main(["run", limited, *more]) == 0
    out = capsys.readouterr().out
    header = next(line for line in out.splitlines() if line.startswith("rank "))
    first = out.splitlines()[out.splitlines().index(header) + 1]
    assert header.split()[-6:] == ["state", "GB", "peak", "GB", "limit", "GB"]
    assert first.split()[-3:] == ["122.50", "146.50", "60.00"]
    assert (
        "state: parameters 140 GB, gradients 140 GB, optimizer 210 GB on all ranks together\n"
        "peak: 146.5 GB on rank 0, 24 GB of it activations\n"
    ) in out
    # Without any state or limit there is but one more column; without any bytes, none.
    assert main(["run", *FLAGS, *COSTS, "--set", "stages.stash_bytes=1000"]) == 0
    out = capsys.readouterr().out
    header = next(line for line in out.splitlines() if line.startswith("rank "))
    assert header.split()[-3:] == ["held", "peak", "kB"]
    assert "state:" not in out
    assert main(["run", *FLAGS, *COSTS]) == 0
    assert "peak" not in capsys.readouterr().out


def test_over_the_limit_exits_3_and_names_the_op(limited, capsys):
    arguments = ["run", limited, "--set", "devices.memory_bytes=50e9"]
    assert main(arguments) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "pipesim: rank 0 goes over its memory limit: 0F2 at 2 ms takes it to 53 GB, "
        "its device has 50 GB",
        "pipesim: parameters 35 GB + activations 18 GB of 3 micro-batches in flight",
        "pipesim: ways out: a schedule with fewer micro-batches in flight, another split "
        "(pipesim split), recompute, more ranks; "
        "--no-memory-limit (memory_limit=False) runs it all the same",
    ]
    assert main([*arguments, "--no-memory-limit", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["peak_memory_bytes"] == 59 * 10**9
    assert [rank["peak_memory_bytes"] // 10**9 for rank in summary["per_rank"]] == [59, 53, 47, 41]


def test_nothing_is_written_of_a_run_over_the_limit(limited, tmp_path):
    gantt = tmp_path / "g.png"
    flags = ["--set", "devices.memory_bytes=1", "--gantt", str(gantt)]
    assert main(["run", limited, *flags]) == 3
    assert not gantt.exists()


def test_compare_shows_small_sizes_in_small_units(capsys):
    sizes = ["--set", "stages.stash_bytes=250_000", "--set", "stages.param_bytes=3_000_000"]
    assert main(["compare", STRAGGLER, "--schedules", "1f1b", *sizes]) == 0
    _, header, row, *_ = capsys.readouterr().out.splitlines()
    assert header.endswith("  stash MB  memory MB")
    assert row.split()[-2:] == ["1.00", "4.00"]
    sizes = ["--set", "stages.stash_bytes=25_000", "--set", "stages.param_bytes=3_000_000"]
    assert main(["compare", STRAGGLER, "--schedules", "1f1b", *sizes]) == 0
    _, header, row, *_ = capsys.readouterr().out.splitlines()
    assert header.endswith("  stash kB  memory MB")
    assert row.split()[-2:] == ["100.00", "3.10"]


def test_compare_says_which_schedules_are_over_the_limit(limited, capsys):
    assert main(["compare", limited, "--schedules", "1f1b,gpipe"]) == 0
    out = capsys.readouterr().out
    assert "stash GB  memory GB" in out
    assert out.splitlines()[-1] == (
        "gpipe does not fit: rank 0 goes over its memory limit: 0F4 at 4 ms takes it to 65 GB, "
        "its device has 60 GB"
    )
    assert main(["compare", limited, "--schedules", "1f1b,gpipe", "--no-memory-limit"]) == 0
    assert "does not fit" not in capsys.readouterr().out
    tight = ["--set", "devices.memory_bytes=1e9"]
    assert main(["compare", limited, "--schedules", "1f1b,gpipe", *tight]) == 3


def test_a_point_over_the_limit_is_a_row_with_its_error(limited, tmp_path, capsys):
    axes = {"run.schedule": ["1f1b", "gpipe"], "stages.forward_ms": [1, 2]}
    text = "\n".join(f'"{key}" = {json.dumps(values)}' for key, values in axes.items())
    path = tmp_path / "sweep.toml"
    path.write_text(f"{MEMORY}\n[sweep.axes]\n{text}\n")
    assert main(["sweep", str(path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["makespan_ms"] for row in rows] == [33, 44, None, None]
    assert [row["peak_memory_bytes"] for row in rows] == [59e9, 59e9, None, None]
    assert rows[2]["error"] == (
        "rank 0 goes over its memory limit: 0F4 at 4 ms takes it to 65 GB, its device has 60 GB"
    )
    assert "0F4 at 8 ms" in rows[3]["error"]
    assert main(["sweep", str(path), "--json", "--no-memory-limit"]) == 0
    assert [row["error"] for row in json.loads(capsys.readouterr().out)] == [None] * 4


def test_the_batch_is_shown_beside_the_bubble(limited, capsys):
    flags = ["--set", "batch.global_size=64", "--set", "batch.microbatch_size=2"]
    flags += ["--set", "training.replicas=4", "--no-memory-limit"]
    assert main(["run", limited, *flags]) == 0
    assert "\nglobal batch 64 = 2 x 8 micro-batches x 4 replicas\n" in capsys.readouterr().out
    assert main(["run", limited, *flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["batch"] == {
        "global_batch": 64,
        "microbatch_size": 2,
        "microbatches": 8,
        "replicas": 4,
    }
    assert main(["run", limited, *flags, "--set", "batch.microbatch_size=3"]) == 2
    assert "is not equal to batch.microbatch_size x run.microbatches" in capsys.readouterr().err


def test_compare_takes_m_from_the_batch(tmp_path, capsys):
    path = tmp_path / "batch.toml"
    path.write_text(
        "[batch]\nglobal_size = 16\nmicrobatch_size = 2\n[run]\nschedule = '1f1b'\n"
        "[stages]\nforward_ms = [1, 1]\nbackward_ms = [2, 2]\n"
    )
    assert main(["compare", str(path), "--schedules", "1f1b,pipedream", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert {run["schedule"]: run["step_ms"] for run in runs}["1f1b"] == 27


def test_a_step_says_what_is_not_in_it(capsys, tmp_path):
    config = tmp_path / "two.toml"
    config.write_text(
        """[run]
schedule = "1f1b"
microbatches = 4
[stages]
forward_ms = [1, 1]
backward_ms = 2
[training]
replicas = 2
zero = 3
"""
    )
    assert main(["run", str(config)]) == 0
    assert "ZeRO-3: how long ops wait for the parameters" in capsys.readouterr().out
    assert main(["compare", str(config), "--schedules", "1f1b,pipedream"]) == 0
    assert "optimizer of [training], but for pipedream\n" in capsys.readouterr().out
    assert main(["compare", str(config), "--schedules", "1f1b,gpipe"]) == 0
    assert "optimizer of [training]\n" in capsys.readouterr().out
