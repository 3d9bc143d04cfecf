"""`[training]` and `[batch]` on the command line and in sweeps, by hand.

Two stages of F = 1 and B = 2, two micro-batches: stage 1 is through at 7, stage 0 at 9. Over two
replicas and 1 GB/s, all gradients of stage 0 take 1 ms, those of stage 1 take 3.
"""

import json

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import pipesim as ps
from pipesim.cli import main
from pipesim.config.simulate import simulate_step_config
from pipesim.studies.sweep.points import Bundle, Reader
from pipesim.studies.sweep.study import read_study

CONFIG = """
[run]
schedule = "1f1b"
microbatches = 2

[stages]
forward_ms = [1, 1]
backward_ms = [2, 2]
param_bytes = [1_000_000, 3_000_000]

[training]
replicas = 2
bandwidth_gb_s = 1.0
"""
SLOW = ["--set", "training.speed=[1,0.5]", "--set", "training.optimizer_ms=0.5"]
WITHOUT_END = {"gpipe_forward": (3, "has no backward"), "pipedream": (15, "keeps 2 versions")}


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "two.toml"
    path.write_text(CONFIG)
    return str(path)


def as_json(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_step_comes_after_the_report(config, capsys):
    assert main(["run", config, *SLOW]) == 0
    report = capsys.readouterr().out
    assert report.startswith("two: 2 stages x 2 micro-batches, 1f1b\n")
    assert report.splitlines()[-7:] == [
        "step 20.00 ms = makespan 18.00 + reductions 1.00 + optimizer and gathers 1.00",
        "2 replicas: gradients reduced beside the compute; "
        "every optimizer waits for all gradients;",
        "the next step can follow after 20.00 ms",
        "replica  makespan  bubble  waits for others  for the barrier",
        "      0      9.00   33.3%              8.00             1.00",
        "      1     18.00   33.3%              0.00             1.00  <- slowest",
        "waits: mean over ranks after their last op; a slow replica waits least",
    ]
    assert main(["run", config]) == 0
    assert capsys.readouterr().out.endswith("\nall replicas take the same time\n")


def test_the_step_as_json(config, capsys):
    summary = as_json(capsys, "run", config, *SLOW)
    bare = as_json(capsys, "run", "--schedule", "1f1b", "--microbatches", "2", "--forward", "2,2",
                   "--backward", "4,4")  # fmt: skip
    assert list(summary)[: len(bare)] == list(bare)
    of_bytes = [key for key in bare if key.endswith("_bytes")]
    same = set(bare) - {"per_rank", *of_bytes}
    assert {key: summary[key] for key in same} == {key: bare[key] for key in same}
    assert [list(rank) for rank in summary["per_rank"]] == [list(rank) for rank in bare["per_rank"]]
    assert {key: summary[key] for key in of_bytes} == {
        "peak_memory_bytes": 8 * 3_000_000,  # 2 + 2 + 12 bytes a parameter of two bytes
        "total_param_bytes": 4_000_000,
        "total_grad_bytes": 4_000_000,
        "total_optimizer_bytes": 24_000_000,
    }
    assert {key: summary[key] for key in list(summary)[len(bare) :]} == {
        "replicas": 2,
        "zero": 0,
        "barrier": True,
        "overlap": True,
        "step_ms": 20,
        "period_ms": 20,
        "exposed_reduction_ms": 1,
        "update_ms": 1,
        "slowest_replica": 1,
        "per_replica": [
            {"replica": 0, "makespan_ms": 9, "bubble_fraction": 1 / 3, "mean_wait_ms": 9},
            {"replica": 1, "makespan_ms": 18, "bubble_fraction": 1 / 3, "mean_wait_ms": 1},
        ],
    }


def test_the_chart_is_that_of_the_step(config, tmp_path, monkeypatch):
    charts = []
    monkeypatch.setattr("pipesim.plot.save", lambda axes, path: charts.append(axes))
    gantt = ["--gantt", str(tmp_path / "g.png")]
    assert main(["run", config, *SLOW, *gantt]) == 0
    assert main(["run", config, "--set", "run.schedule=pipedream", *gantt]) == 0
    texts = [{text.get_text() for text in axes.figure.findobj(plt.Text)} for axes in charts]
    plt.close("all")
    title = "two: 1f1b, p = 2, m = 2, 2 replicas, step 20 ms"
    assert any(text.startswith(title) for text in texts[0])
    assert {"gradients reduced", "optimizer"} < texts[0]
    assert not {"gradients reduced", "optimizer"} & texts[1]


def test_the_trace_has_all_replicas_and_the_end_of_the_step(config, tmp_path):
    path = tmp_path / "t.csv"
    assert main(["run", config, *SLOW, "--trace", str(path)]) == 0
    trace = pd.read_csv(path)
    step = simulate_step_config(ps.read_config(config, {
        "training.speed": [1, 0.5], "training.optimizer_ms": 0.5}))  # fmt: skip
    assert list(trace.columns) == list(step.trace.columns)
    assert trace.groupby("replica").kind.count().tolist() == [16, 16]
    end = trace[trace.kind.isin(["REDUCE", "OPTIMIZER"])]
    columns = ["kind", "replica", "rank", "microbatch", "ready", "start", "end"]
    assert [tuple(row) for row in end[columns].sort_values(columns[:3]).to_numpy()] == [
        ("OPTIMIZER", 0, 0, -1, 19, 19, 19.5),
        ("OPTIMIZER", 0, 1, -1, 17, 19, 19.5),
        ("OPTIMIZER", 1, 0, -1, 19, 19, 20),
        ("OPTIMIZER", 1, 1, -1, 17, 19, 20),
        ("REDUCE", 0, 0, -1, 9, 18, 19),
        ("REDUCE", 0, 1, -1, 7, 14, 17),
        ("REDUCE", 1, 0, -1, 18, 18, 19),
        ("REDUCE", 1, 1, -1, 14, 14, 17),
    ]
    assert main(["run", config, "--set", "run.schedule=pipedream", "--trace", str(path)]) == 0
    trace = pd.read_csv(path)
    assert set(trace.replica) == {0}
    assert not set(trace.kind) & {"REDUCE", "OPTIMIZER"}


@pytest.mark.parametrize(("schedule", "makespan", "reason"), [
    (name, *wanted) for name, wanted in WITHOUT_END.items()])  # fmt: skip
def test_a_schedule_without_an_end_is_run_and_said_so(config, capsys, schedule, makespan, reason):
    arguments = ["run", config, "--set", f"run.schedule={schedule}"]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith(f"note: {schedule} {reason}")
    assert captured.err.count("\n") == 1
    assert "optimizer and gathers" not in captured.out
    summary = as_json(capsys, *arguments)
    assert summary["makespan_ms"] == makespan
    assert "step_ms" not in summary
    # As everywhere else, of several replicas it is the slowest one's run.
    assert as_json(capsys, *arguments, *SLOW)["makespan_ms"] == 2 * makespan


def test_gradients_and_optimizer_count_against_the_limit(config, capsys):
    # Rank 1 holds 3 + 3 + 18 MB, with ZeRO-1 half of the 18.
    limit = ["--set", "devices.memory_bytes=15e6"]
    assert main(["run", config, *limit, *SLOW]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[:2] == [
        "pipesim: rank 1 goes over its memory limit: before its first op it holds 24 MB, "
        "its device has 15 MB",
        "pipesim: parameters 3 MB + gradients 3 MB + optimizer 18 MB",
    ]
    assert as_json(capsys, "run", config, *limit, *SLOW, "--no-memory-limit")["step_ms"] == 20
    assert as_json(capsys, "run", config, *limit, "--set", "training.zero=1")["step_ms"] == 11


def test_a_batch_gives_the_micro_batches_of_every_replica(tmp_path, capsys):
    path = tmp_path / "batch.toml"
    path.write_text(CONFIG.replace("microbatches = 2", "") + "[batch]\nglobal_size = 8\n"
                    "microbatch_size = 2\n")  # fmt: skip
    summary = as_json(capsys, "run", str(path))
    assert (summary["microbatches"], summary["step_ms"]) == (2, 10)
    assert summary["batch"] == {
        "global_batch": 8, "microbatch_size": 2, "microbatches": 2, "replicas": 2}  # fmt: skip
    assert main(["run", str(path)]) == 0
    assert "\nglobal batch 8 = 2 x 2 micro-batches x 2 replicas\n" in capsys.readouterr().out
    # One replica has all four: (4 + 1) x 3, and nothing to reduce.
    assert as_json(capsys, "run", str(path), "--set", "training.replicas=1")["step_ms"] == 15
    assert main(["run", str(path), "--set", "batch.global_size=9"]) == 2
    message = capsys.readouterr().err
    assert "batch.global_size = 9" in message
    assert "training.replicas" in message


def test_compare_adds_the_end_of_the_step(config, capsys):
    def steps(*more):
        names = ["--schedules", "1f1b,gpipe,gpipe_forward,pipedream"]
        runs = as_json(capsys, "compare", config, *names, *more)["runs"]
        return {run["schedule"]: (run["makespan_ms"], run["step_ms"]) for run in runs}

    endless = {"gpipe_forward": (3, 3), "pipedream": (15, 7.5)}  # two batches in one go
    assert steps() == {"1f1b": (9, 10), "gpipe": (9, 10)} | endless
    assert steps("--set", "training.optimizer_ms=0.5")["1f1b"] == (9, 10.5)
    assert steps("--set", "stages.param_bytes=[3e6,1e6]")["gpipe"] == (9, 12)
    slow = steps(*SLOW)
    assert slow == {"1f1b": (18, 20), "gpipe": (18, 20)} | {
        "gpipe_forward": (6, 6), "pipedream": (30, 15)}  # fmt: skip
    assert main(["compare", config, "--schedules", "1f1b,pipedream"]) == 0
    assert capsys.readouterr().out.endswith(
        "\nstep: with the reductions and the optimizer of [training], but for pipedream\n"
    )
    assert main(["compare", config, "--schedules", "1f1b,gpipe"]) == 0
    assert capsys.readouterr().out.endswith("optimizer of [training]\n")


def swept(config, axes, mode="product", **overrides):
    return ps.sweep_config(config, {"sweep.axes": axes, "sweep.mode": mode, **overrides})


@pytest.mark.parametrize(
    ("key", "values", "steps"),
    [
        # 2(d-1)/d x 3 MB at 1 GB/s after 7, and of 1 MB after 9: the later of the two.
        ("training.replicas", [1, 2, 4], [9, 10, 11.5]),
        # Scattering takes half of a full reduction; up to ZeRO-2 parameters are gathered: 1.5.
        ("training.zero", [0, 1, 2, 3], [10, 11, 11, 9.5]),
        ("training.bandwidth_gb_s", [0.5, 1, 2, "none"], [13, 10, 9.5, 9]),
        ("training.latency_ms", [0, 1, 2.5], [10, 11, 12.5]),
        ("training.optimizer_ms", [0, 2, [1, 4]], [10, 12, 14]),
        ("training.speed", [1, 0.5, [1, 0.25]], [10, 19, 37]),
    ],
)
def test_steps_of_a_sweep(config, key, values, steps):
    table = swept(config, {key: values})
    assert table.step_ms.tolist() == steps
    for value, step in zip(values, steps, strict=True):
        made = simulate_step_config(ps.read_config(config, {key: value}))
        assert made.step_ms == step
    # With costs that vary in the same batch; 1 ms more in stage 1 is 1 ms more on either rank.
    table = swept(config, {key: values, "stages.backward_ms[1]": [2, 3]})
    again = [
        simulate_step_config(
            ps.read_config(config, {key: value, "stages.backward_ms[1]": backward})
        )
        for value in values
        for backward in (2, 3)
    ]
    assert table.step_ms.tolist() == [made.step_ms for made in again]
    assert table.makespan_ms.tolist() == [made.makespan for made in again]


def test_points_of_different_trainings_are_not_mixed(config):
    # Two links and two networks between replicas: as costs of stages they would share a batch.
    axes = {"links.latency_ms": [0, 1], "training.latency_ms": [0, 1]}
    study, points = read_study(config, {"sweep.axes": axes})
    batches = list(Reader(study).bundles(points))
    assert all(isinstance(batch, Bundle) for batch in batches)
    assert sorted(sorted(batch.numbers) for batch in batches) == [[0, 2], [1, 3]]
    assert swept(config, axes).step_ms.tolist() == [10, 11, 12, 13]  # stage 0 is through at 11


def test_the_numbers_of_a_point_are_those_of_its_slowest_replica(config, capsys):
    slow = {"training.speed": [[1, 1], [1, 0.5]], "training.optimizer_ms": 0.5}
    row = swept(config, {"stages.forward_ms[0]": [1, 2]}, **slow).to_dict("records")[0]
    flags = [f"{key}={json.dumps(value)}" for key, value in slow.items()]
    flags = [part for flag in flags for part in ("--set", flag)]
    summary = as_json(capsys, "run", config, *flags)
    for name in ("makespan_ms", "bubble_fraction", "balance", "lower_bound_ms", "step_ms"):
        assert row[name] == pytest.approx(summary[name], rel=1e-12)
    # Rank 1 takes 6 a micro-batch: 1 + 12 + 2 of compute.
    assert row["makespan_ms"] == 15


def test_without_training_the_step_is_the_makespan(tmp_path):
    path = tmp_path / "bare.toml"
    path.write_text(CONFIG.split("[training]")[0])
    table = swept(path, {"stages.forward_ms[1]": [1, 3], "run.schedule": ["1f1b", "gpipe_forward"]})
    assert table.step_ms.equals(table.makespan_ms)


def test_a_schedule_without_an_end_has_no_step(config, capsys):
    table = swept(config, {"run.schedule": ["1f1b", *WITHOUT_END]})
    assert table.makespan_ms.tolist() == [9, 3, 15]
    assert table.step_ms[0] == 10
    assert np.isnan(table.step_ms[1:]).all()
    assert table.error.isna().all()
    flags = ["--set", f"sweep.axes={json.dumps({'run.schedule': ['1f1b', *WITHOUT_END]})}"]
    rows = as_json(capsys, "sweep", config, *flags)
    assert [row["step_ms"] for row in rows] == [10, None, None]


ROWS = ["layer,kind,F_ms,B_input_ms,W_ms,act_bytes,out_bytes,param_bytes"]
ROWS += ["0,embedding,0.2,0.0,0.4,0,16777216,262144000"]
ROWS += [f"{layer},decoder,3.0,3.1,2.8,268435456,16777216,404750336" for layer in range(1, 5)]
ROWS += ["5,head,2.6,2.7,2.5,1048576000,0,262144000"]

SPLIT = """
[run]
schedule = "1f1b"
microbatches = 2

[layers]
file = "layer_costs.csv"
split = [3, 3]
"""


@pytest.fixture
def layered(tmp_path):
    (tmp_path / "layer_costs.csv").write_text("\n".join(ROWS) + "\n")
    path = tmp_path / "lay.toml"
    path.write_text(SPLIT + "[devices]\nranks = 2\n")
    return str(path)


def test_measured_layers_from_the_file_to_the_memory_of_a_run(layered):
    profile = ps.read_layers(layered.replace("lay.toml", "layer_costs.csv"))
    assert profile.forward_ms == (0.2, 3, 3, 3, 3, 2.6)
    decoders = profile.recompute("full", range(1, 5))
    pipe = decoders.split([3, 3])
    run = ps.simulate(pipe, "1f1b", 2)
    # Stage 0: 6.2 forward, 0.4 + 2 x 5.9 + 2 x 3 rebuilt; stage 1: 8.6, 2 x 5.9 + 5.2 + 6.
    first, last = 6.2 + 0.4 + 2 * 5.9 + 6, 8.6 + 2 * 5.9 + 5.2 + 6
    assert run.rank_times.busy.tolist() == pytest.approx([2 * first, 2 * last])
    assert run.makespan == pytest.approx(6.2 + 2 * last + (first - 6.2))
    # A decoder keeps its input, 16 MiB, and rebuilds the other 240 of its 256 one by one.
    mib = 2**20
    assert decoders.stash_bytes[1:5] == (16 * mib,) * 4
    assert decoders.rebuilt_bytes == (0, *[240 * mib] * 4, 0)
    params = [262144000 + 2 * 404750336, 2 * 404750336 + 262144000]
    held = [2 * 2 * 16 * mib + 240 * mib, 2 * 16 * mib + 1048576000 + 240 * mib]
    assert list(run.peak_memory) == [a + b for a, b in zip(params, held, strict=True)]
    whole = ps.simulate(profile.split([3, 3]), "1f1b", 2)
    assert list(whole.ranks.peak_stash_bytes) == [2 * 2 * 256 * mib, 2 * 256 * mib + 1048576000]
    # From a config the same.
    modes = {"layers.recompute": {"1..4": "full"}}
    assert ps.simulate_config(ps.read_config(layered, modes)).peak_memory == run.peak_memory


def test_split_counts_gradients_and_optimizer_as_memory(layered, capsys):
    plain = as_json(capsys, "split", layered)["chosen"]
    trained = as_json(capsys, "split", layered, "--set", "training.replicas=1")["choices"]
    whole = {row["split_by"]: row for row in trained}["config"]
    # Eight times the parameters, which are the same on both ranks; and the activations.
    params, mib = 262144000 + 2 * 404750336, 2**20
    held = [8 * params + 4 * 256 * mib, 8 * params + 2 * 256 * mib + 1048576000]
    assert whole["peak_bytes"] == held
    limit = ["--set", f"devices.memory_bytes={held[1]}"]  # rank 1 has room for [3, 3] just so
    assert as_json(capsys, "split", layered, *limit)["chosen"] == plain
    tight = as_json(capsys, "split", layered, *limit, "--set", "training.replicas=1")
    assert tight["chosen"]["split"] == [3, 3]
    assert main(["split", layered, "--set", "training.replicas=1"]) == 0
    assert (
        "\nstep: without replicas, reductions and the optimizer of [training]\n"
        in capsys.readouterr().out
    )
    # Nothing fits, until replicas share it.
    none = ["--set", "devices.memory_bytes=5e9", "--set", "training.replicas=8"]
    assert main(["split", layered, *none]) == 2
    assert "no split keeps every rank within its memory" in capsys.readouterr().err
    shared = as_json(capsys, "split", layered, *none, "--set", "training.zero=1")
    assert not shared["chosen"]["over_memory"]


@pytest.mark.parametrize("modes", ["full", {"0..5": "full"}])
def test_split_counts_what_is_rebuilt(layered, capsys, modes):
    profile = ps.read_layers(layered.replace("lay.toml", "layer_costs.csv")).recompute("full")
    flags = ["--set", f"layers.recompute={json.dumps(modes)}"]
    rows = as_json(capsys, "split", layered, *flags)["choices"]
    for row in rows:
        run = ps.simulate(profile.split(row["split"]), "1f1b", 2)
        assert row["makespan_ms"] == run.makespan
        assert row["peak_bytes"] == list(run.peak_memory)
    plain = as_json(capsys, "split", layered)["choices"]
    assert rows[-1]["makespan_ms"] > plain[-1]["makespan_ms"]


def test_split_says_what_to_do_with_modes_by_stage(layered, capsys):
    assert main(["split", layered, "--set", 'layers.recompute=["full", "none"]']) == 2
    message = capsys.readouterr().err
    assert 'give one mode for all, or {"0..15" = "full"} by layers' in message
    # What it says can be typed.
    assert main(["split", layered, "--set", 'layers.recompute={"0..5" = "full"}']) == 0
