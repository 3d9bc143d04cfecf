"""Every experiment runs, answers its question with the known numbers, and writes its figure."""

import importlib.util
import re
import runpy
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

EXPERIMENTS = Path(__file__).parent.parent / "experiments"


def load(stem):
    specification = importlib.util.spec_from_file_location(stem, EXPERIMENTS / f"{stem}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def experiment(request, monkeypatch, tmp_path):
    module = load(request.param)
    monkeypatch.setattr(module, "OUT", tmp_path)
    return module


def of(stem):
    return pytest.mark.parametrize("experiment", [stem], indirect=True, ids=[stem])


@pytest.mark.parametrize("path", sorted(EXPERIMENTS.glob("[0-9]*.py")), ids=lambda path: path.stem)
def test_every_experiment_runs_quickly(path, monkeypatch, tmp_path, capsys):
    module = load(path.stem)
    monkeypatch.setattr(module, "OUT", tmp_path)
    module.main(quick=True)
    assert capsys.readouterr().out
    assert module.__doc__.splitlines()[0].endswith("?")


@of("01_unequal_stages")
def test_the_screen_of_the_demo_is_the_one_in_the_readme(experiment, capsys, tmp_path):
    experiment.main()
    screen = capsys.readouterr().out.rstrip("\n")
    readme = (EXPERIMENTS.parent / "README.md").read_text()
    shown = readme.split("<!-- demo -->\n```\n")[1].split("\n```")[0]
    assert screen == shown
    assert {path.name for path in tmp_path.iterdir()} == {
        "01_unequal_stages.png",
        "01_unequal_stages.csv",
    }
    for number in ("1705.9", "2001.5", "2003.9", "1793.0", "1722.8", "1652.5", "-14.0%", "-17.5%"):
        assert number in screen


@of("01_unequal_stages")
def test_the_numbers_around_it_in_the_readme(experiment):
    import pipesim as ps

    run = ps.simulate_config(ps.read_config(experiment.CONFIG))
    busy = run.ranks.busy
    assert busy[3] / busy[:3].mean() == pytest.approx(1.62, abs=0.005)  # 62 % more work
    assert run.lower_bound == pytest.approx(run.makespan, rel=1e-12)  # no order can do better
    profile = experiment.layer_profile(run)
    best = experiment.best_of_all(profile, run, {"latency_ms": 0.4})
    assert best.splits == 7140
    assert best.counts == (13, 10, 9, 5)
    assert 1 - best.run.makespan / run.makespan == pytest.approx(0.175, abs=5e-4)


@of("02_bubble_vs_microbatches")
def test_the_bubble_levels_off(experiment):
    table = experiment.main()
    equal = table[table.stages == "equal stages"]
    assert equal.bubble_fraction.tolist() == pytest.approx(
        equal.closed_form_bubble_fraction.tolist(), rel=1e-12
    )
    slow = table[table.stages != "equal stages"]
    assert slow.bubble_fraction.iloc[-1] == pytest.approx(0.3822, abs=5e-5)
    assert (slow.bubble_fraction > 0.375).all()  # 1 - mean/max


@of("03_where_the_slow_stage_sits")
def test_the_later_the_worse(experiment):
    assert [run.makespan for run in experiment.main()] == [51, 53, 55, 57]
    assert experiment.main(quick=True)[0].equal_stages.makespan == pytest.approx(33 * 1.25)


@of("04_two_to_one")
def test_everyone_waits_for_the_slow_one(experiment):
    runs = experiment.main()
    unequal, equal = runs["50 / 100"], runs["75 / 75"]
    periods = [
        (b.makespan - a.makespan) / (b.schedule.microbatches - a.schedule.microbatches)
        for a, b in pairwise(unequal)
    ]
    assert periods == pytest.approx([100.0] * 3)
    assert all(run.rank_times.bubble_fraction[0] >= 0.5 for run in unequal)
    assert equal[-1].makespan == pytest.approx(65 * 75)


@of("05_price_of_imbalance")
def test_no_point_lies_below_the_floor(experiment, tmp_path):
    table = experiment.main(quick=True)
    m = table.microbatches
    floor = m * table.slowest_over_mean / (m + experiment.RANKS - 1)
    assert (table.inflation >= floor * (1 - 1e-9)).all()
    assert (table.makespan_ms >= table.lower_bound_ms * (1 - 1e-12)).all()
    x, y = experiment.production_job(4)
    assert (x, y) == (pytest.approx(1.404, abs=5e-4), pytest.approx(1.175, abs=5e-4))
    assert (tmp_path / "05_price_of_imbalance.png").exists()


@of("06_schedule_zoo")
def test_the_zoo(experiment):
    table = experiment.main()
    step = table.set_index(["stages", "schedule"]).step_ms
    equal, heavy = step["equal stages"], step["last stage x 1.8"]
    assert equal.idxmin() in ("zb_v", "v_schedule")
    assert heavy.idxmin() == "dualpipe"  # both ends on every rank: the heavy stage is shared
    assert heavy["v_schedule"] < heavy["zb_v"]  # made for these costs
    assert (table.above_bound >= 0).all()
    assert len(equal) == len(heavy) == len(set(table.schedule))


@of("07_zero_bubble_table")
def test_the_zero_bubble_table(experiment, capsys):
    table = experiment.main()
    screen = capsys.readouterr().out
    assert len(table) == 8 * 6
    excess = (table.ours - table.published).groupby(table.schedule).max()
    for name in ("1f1b", "zb_h1", "zb_h2"):
        assert abs(excess[name]) < 6e-5
    assert max(excess["zb_1p"], excess["zb_2p"]) < 0.003
    assert excess["interleaved"] < 0.004
    assert "24.31 24.31" in screen


@of("08_deadlock")
def test_the_naive_order_hangs_and_the_others_have_their_price(experiment, tmp_path):
    costs, hanging = experiment.main()
    assert costs["1f1b"].tolist() == ["41", "hangs", "50", "42.5", "41.5", "57.5"]
    assert costs.gpipe[["eager", "rendezvous", "paired"]].tolist() == ["36", "50", "43"]
    assert hanging.loc["1f1b"].tolist() == [".", "hangs", ".", ".", ".", "."]
    assert (tmp_path / "08_deadlock.png").exists()


@of("09_imbalance_sweep")
def test_what_unequal_stages_add_to_the_idle_time(experiment, tmp_path):
    table = experiment.main(quick=True)
    assert (tmp_path / "09_imbalance_sweep.csv").exists()
    assert (table.floor <= table.bubble + 1e-12).all()
    equal = table[table.spread == 0]
    assert equal.longer.abs().max() < 1e-12
    assert equal.bubble.to_numpy() == pytest.approx(equal.closed_form.to_numpy(), rel=1e-12)
    assert (table.groupby(["schedule", "ranks", "microbatches"]).longer.diff().dropna() > 0).all()
    # The same work: what a rank idles longer is what the step gets longer.
    longer = (1 - table.closed_form) / (1 - table.bubble) - 1
    assert table.longer.to_numpy() == pytest.approx(longer.to_numpy(), rel=0.01, abs=1e-3)


@of("09_imbalance_sweep")
def test_the_numbers_of_the_imbalance_sweep(experiment):
    told = {}
    for line in experiment.__doc__.splitlines():
        if "% longer" in line:
            told[line.split(",")[0]] = [float(word) for word in re.findall(r"(\d+\.\d) %", line)]
    assert len(told) == 3
    for name, numbers in zip(("1f1b", "interleaved", "zb_h1"), told.values(), strict=True):
        equal = experiment.one_spread(name, 8, 32, 0.0, 1)["bubble"]
        row = experiment.one_spread(name, 8, 32, 0.2, experiment.SETS)
        found = [100 * x for x in (row["longer"], row["bubble"], equal, row["floor"])]
        assert numbers == pytest.approx(found, abs=0.0501)
        if name == "1f1b":
            assert row["above_bound"] == pytest.approx(0.035, abs=5e-4)
    few = experiment.one_spread("1f1b", 4, 4, 0.2, experiment.SETS)
    assert few["shorter"] == pytest.approx(0.19, abs=5e-3)
    alike = np.tile(experiment.stage_factors(experiment.SETS, 8, 0.2), (1, 2))
    inflation = experiment.simulate("interleaved", 32, alike, 8)["inflation"]
    assert np.median(inflation) == pytest.approx(1.218, abs=5e-4)


@of("10_slow_link")
def test_a_slow_link_hurts_most_at_the_end(experiment, tmp_path):
    points, links = experiment.main()
    assert (tmp_path / "10_slow_link.png").exists()
    p, m = experiment.RANKS, experiment.MICROBATCHES
    by = links.set_index(["schedule", "link"])
    for part in ("first", "last"):
        measured, derived = by[f"{part}_slope"], by[f"{part}_sensitivity"]
        assert derived.to_numpy() == pytest.approx(measured.to_numpy(), rel=1e-9)
    before = np.arange(p - 1)
    assert by.last_slope["gpipe"].tolist() == pytest.approx([2] * (p - 1))
    warm_up = p - 1 - before
    slope = 2 * (1 + (m - warm_up) // 2)
    assert (slope[0], slope[-1]) == (26, 32)
    assert by.first_slope["1f1b"].tolist() == pytest.approx(slope.tolist())
    assert (by.until_ms["1f1b"] == experiment.MOST_MS).all()
    slope = 2 * (1 + (m - 2 * warm_up + 1) // 3)
    assert (slope[0], slope[-1]) == (14, 22)
    assert by.last_slope["1f1b_eager"].tolist() == pytest.approx(slope.tolist())
    assert by.until_ms["1f1b_eager"][[0, p - 2]].tolist() == [2.5, 1.5]
    interleaved = by.loc["interleaved"]
    assert interleaved.first_slope.tolist() == pytest.approx([4] * (p - 1) + [2])
    assert interleaved.last_slope[[0, p - 2, p - 1]].tolist() == pytest.approx([32, 40, 20])
    assert interleaved.until_ms[[0, p - 2]].tolist() == pytest.approx([0.79, 0.75], abs=5e-3)
    # The later the link, the more it costs.
    for name in ("1f1b", "1f1b_eager", "interleaved"):
        here = points[(points.schedule == name) & (points.latency_ms == experiment.COMPARED_MS)]
        assert here.added_ms[here.link < p - 1].is_monotonic_increasing


@of("10_slow_link")
def test_all_links_slow_cost_little_more_than_twice_one(experiment):
    from tests.schedules.theory import one_f_one_b_makespan

    p, m = experiment.RANKS, experiment.MICROBATCHES
    costs = [experiment.FORWARD_MS] * p, [experiment.BACKWARD_MS] * p
    none, all_slow = (one_f_one_b_makespan(*costs, m, c) for c in (0.0, 1.0))
    assert all_slow - none == 68


@of("11_equal_what")
def test_equal_time_beats_equal_parameters_beats_equal_layers(experiment, capsys, tmp_path):
    runs, table = experiment.main()
    assert (tmp_path / "11_equal_what.png").exists()
    layers, parameters, time = runs.values()
    assert time.makespan < parameters.makespan < layers.makespan
    # In units of a layer the head is 6V / (72h + 12s) = 2.2857, on top of three with equal layers.
    layer_ms = runs["equal layers"].ranks.busy[1] / experiment.MICROBATCHES / 3
    slowest = [run.ranks.busy.max() / experiment.MICROBATCHES / layer_ms for run in runs.values()]
    assert slowest == pytest.approx([3 + 2.2857, 4, 4], rel=1e-4)
    assert "195.6" in capsys.readouterr().out
    # Measured and simulated.
    assert len(table) == 15
    assert (table.ours / table.over_32k - 1).abs().max() < 0.02
    for ours, worst, others in ((table.ours_late, 0.12, 0.036), (table.ours_early, 0.145, 0.1)):
        wrong = (ours / table.over_layers - 1).abs()
        assert wrong.max() < worst
        assert (wrong.idxmax(), wrong.nlargest(2).iloc[1] < others) == (5, True)
    assert (1 - table.ours_late / table.ours_early).max() == pytest.approx(0.065, abs=5e-4)
    assert (table.ours_late <= table.ours_early * (1 + 1e-12)).all()


@of("13_pipeline_x_data_parallel")
def test_how_many_ranks_and_how_many_replicas(experiment, tmp_path):
    table = experiment.main()
    assert {path.name for path in tmp_path.iterdir()} == {
        "13_pipeline_x_data_parallel.png",
        "13_replicas.png",
    }
    plain, sharded = (table[table.zero == zero].set_index("grid") for zero in (0, 1))
    assert plain.work_ms.tolist() == pytest.approx([64 * (32 * 15 + 9) / 16] * 5)
    parts = ["work_ms", "idle_ms", "reduction_ms", "update_ms"]
    assert table[parts].sum(axis=1).tolist() == pytest.approx(table.step_ms.tolist())
    assert plain.bubble.is_monotonic_decreasing
    assert plain.reduction_ms.is_monotonic_increasing
    # The whole model, 2 x 15/16 of its bytes over the network.
    size = 2 * (32 * 12 * 4096**2 + 2 * 32_000 * 4096)
    reduction = 2 * 15 / 16 * size / 25e6 + 0.02
    assert plain.reduction_ms["1 x 16"] == pytest.approx(reduction)
    assert sharded.reduction_ms["1 x 16"] == pytest.approx(reduction / 2, abs=0.02)
    # What the docstring says.
    assert plain.step_ms.idxmin() == sharded.step_ms.idxmin() == "4 x 4"
    assert plain.step_ms["4 x 4"] == pytest.approx(2660, abs=5)
    assert plain.bubble["16 x 1"] == pytest.approx(0.34, abs=5e-3)
    held = [plain.most_gb["4 x 4"], sharded.most_gb["4 x 4"]]
    held += [plain.most_gb["1 x 16"], sharded.most_gb["1 x 16"]]
    assert held == pytest.approx([37, 21, 116, 41], abs=0.5)
    assert sharded.step_ms["1 x 16"] / plain.step_ms["1 x 16"] == pytest.approx(0.97, abs=5e-3)


@of("13_pipeline_x_data_parallel")
def test_all_replicas_wait_for_the_slow_one(experiment):
    step = experiment.slow_replica()
    assert step.slowest_replica == 1
    waits = step.ranks.groupby("replica").wait_reduction.mean()
    assert waits[1] == 0
    assert waits[0] > 100


def test_the_price_of_one_slow_link_for_other_sizes():
    import pipesim as ps

    for p, m in ((2, 2), (3, 7), (4, 16), (6, 24), (9, 28)):
        for r in range(p - 1):

            def step(schedule, c, p=p, m=m, r=r):
                pipe = ps.Pipeline.from_costs(
                    1.0, 2.0, stages=p, latency_ms={(r, r + 1): c, (r + 1, r): c}
                )
                return ps.simulate(pipe, schedule, m, engine="replay").makespan

            w = p - 1 - r
            for c in (0.5, 6.0):
                assert step("1f1b", c) == 3 * (m + p - 1) + 2 * c * (1 + (m - w) // 2)
            if m >= 2 * w:
                slope = step("1f1b_eager", 21.0) - step("1f1b_eager", 20.0)
                assert slope == 2 * (1 + (m - 2 * w + 1) // 3)


@of("12_recompute_trade")
def test_what_recompute_saves_and_takes(experiment, tmp_path):
    table = experiment.main().set_index(["schedule", "mode", "stages"]).sort_index()
    added, saved = table.added_percent, table.saved_percent
    # One slow stage slows all; on later ones recompute saves memory for little more time.
    assert added["1F1B", "full", 1] == pytest.approx(25.2, abs=0.05)
    assert added["1F1B", "full", 4] == pytest.approx(31.2, abs=0.05)
    assert added["1F1B", "full", 8] == pytest.approx(100 * 7.7 / 19.6)  # (m + p - 1)(F + R + B)
    assert saved["1F1B", "full", 4] == pytest.approx(50, abs=0.01)  # stage 4 holds half
    assert saved["1F1B", "full", 8] == pytest.approx(90.5, abs=0.05)
    assert added["1F1B", "selective", 4] == pytest.approx(5.3, abs=0.05)
    assert saved["1F1B", "selective", 4] == pytest.approx(saved["1F1B", "selective", 8])
    assert added["1F1B, layers moved", "full", 4] == pytest.approx(16.6, abs=0.05)
    assert saved["1F1B, layers moved", "full", 4] == pytest.approx(41.7, abs=0.05)
    assert added["1F1B, layers moved", "full"].le(added["1F1B", "full"] + 1e-9).all()
    assert (saved["GPipe", "full"].iloc[:-1] == 0).all()
    # Early: (p - 1) R less, and one input for a stage of six layers.
    steps = table.step_ms
    early = steps["GPipe", "full", 8] - steps["GPipe, early", "full", 8]
    assert early == pytest.approx(7 * 6 * 7.7)
    assert added["GPipe, early", "full", 8] == pytest.approx(32.2, abs=0.05)
    assert saved["GPipe, early", "full", 8] > saved["GPipe", "full", 8]
    # Korthikanti et al. 2022: sbh (10 + 24/t + 5 as/ht) a layer, 8 micro-batches of 6 layers.
    sbh = 2048 * 4 * 6144
    assert table.peak_gb["1F1B", "none", 0] == pytest.approx(48 * sbh * (13 + 40 / 3) / 1e9)
    assert {path.suffix for path in tmp_path.iterdir()} == {".png", ".csv"}


@of("14_mixed_devices")
def test_one_fast_device_among_slow_ones(experiment, tmp_path, capsys):
    places, rooms = experiment.main()
    assert (tmp_path / "14_mixed_devices.png").exists()
    screen = capsys.readouterr().out
    for line in (
        "proposed  [9, 7, 7, 5, 4]      0.0452",
        "min-max   [20, 3, 3, 3, 3]     0.0202",
        "ideal                          0.0199",
        "slow last  6 layers each 60, by speed 44",
        "slow first 6 layers each 56, by speed 44",
    ):
        assert line in screen
    few, many = (rows.set_index("place") for _, rows in places.groupby("m"))
    for rows in (few, many):
        assert rows.min_max.max() / rows.min_max.min() < 1.015
        assert (rows.equal > 1.8 * rows.min_max).all()
    assert many.refined.tolist() == many.min_max.tolist()
    assert few.refined_split[0] == "23/1/3/3/2"
    assert few.refined[0] / few.min_max[0] == pytest.approx(0.904, abs=5e-4)
    assert few.refined[4] == few.min_max[4]
    step = rooms.set_index(["fast device", "room"]).step_ms
    for place, whole in (("first", 100), ("last", 20), ("anywhere", 20)):
        assert step[place, whole] < step[place, whole - 1]
        assert step[place, whole] <= step[place].min() * 1.005
    both = step.unstack("fast device").dropna()
    assert (both.anywhere <= both[["first", "last"]].min(axis=1) * 1.005).all()


@pytest.mark.parametrize("name", ["15_profile_and_rebalance", "16_against_pytorch"])
def test_without_pytorch_it_says_what_to_install(name, monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else found(name)
    )
    monkeypatch.setattr(sys, "argv", [name, "--quick"])
    with pytest.raises(SystemExit) as info:
        runpy.run_path(str(EXPERIMENTS / f"{name}.py"), run_name="__main__")
    assert info.value.code == 2
    captured = capsys.readouterr()
    assert "pip install 'pipesim[torch]'" in captured.err
    assert captured.out == "nothing was run\n"


def test_a_page_and_what_the_mouse_is_held_over(monkeypatch, tmp_path, capsys):
    experiment = load("17_a_page")
    monkeypatch.setattr(experiment, "OUT", tmp_path)
    experiment.main(quick=True)
    assert (tmp_path / "17_page.html").exists()
    assert "rank 2 was idle for 130.7 ms before 2B3" in capsys.readouterr().out
    assert "130.7 ms before it" in experiment.__doc__.replace("\n", " ")
