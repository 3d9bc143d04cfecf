"""Keeping less and rebuilding it: layers, stages, R ahead of the backward, memory, configs."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipesim as ps
from pipesim.base.ops import Kind
from pipesim.config.read import parse_config
from pipesim.pipeline.variants import CostVariants
from pipesim.run.many import simulate_many
from pipesim.schedules.order.dataflow import consumers, local_inputs, producers
from tests.strategies import WITH_BACKWARD, cases, positive_costs

EARLY, EXCEPT_LAST = {"recompute": "early"}, {"recompute": "except_last"}


def equal_stages(p, **sizes):
    return ps.Pipeline.from_costs(1.0, 2.0, recompute_ms=1.0, stages=p, **sizes)


def layers(**more):
    columns = {
        "forward_ms": [1.0, 2.0, 3.0],
        "backward_ms": [2.0, 4.0, 6.0],
        "stash_bytes": [40, 50, 60],
        "output_bytes": [8, 70, 1],
    }
    return ps.LayerProfile(**columns | more)


# By hand, F = R = 1 and B = 2. The last stage goes F (R B) (R B) .. from p - 1 on and ends at
# p - 1 + m + 3m; while its gradient travels up, each stage before has rebuilt already and adds
# its B alone: (p - 1) more times 2. Rebuilt by the backward, each adds 3.
@pytest.mark.parametrize(
    ("p", "m", "with_backward", "early", "except_last"),
    [
        (1, 1, 4, 4, 3),
        (1, 3, 12, 12, 11),
        (2, 1, 8, 7, 6),
        (2, 2, 12, 11, 10),
        (3, 2, 16, 14, 13),
        (4, 3, 24, 21, 20),
        (4, 8, 44, 41, 40),  # published: GPipe with and without early recompute
        (8, 16, 92, 85, 84),
    ],
)
@pytest.mark.parametrize("order", ["lifo", "fifo"])
def test_gpipe_rebuilds_while_it_waits(p, m, with_backward, early, except_last, order):
    steps = {"with_backward": with_backward, "early": early, "except_last": except_last}
    for how, step in steps.items():
        options = {"recompute": how, "order": order}
        run = ps.simulate(equal_stages(p), "gpipe", m, options=options)
        assert run.makespan == step
        assert run.lower_bound <= run.makespan
        replayed = ps.simulate(equal_stages(p), "gpipe", m, options=options, engine="replay")
        assert np.array_equal(replayed.spans.end, run.spans.end)


@given(st.integers(1, 6), st.integers(1, 8), *[positive_costs] * 3)
def test_early_recompute_of_equal_stages_has_a_closed_form(p, m, f, r, b):
    pipe = ps.Pipeline.from_costs(f, b, recompute_ms=r, stages=p)
    for options, rebuilt in ((EARLY, m), (EXCEPT_LAST, m - 1)):
        run = ps.simulate(pipe, "gpipe", m, options=options)
        assert run.makespan == pytest.approx((m + p - 1) * (f + b) + rebuilt * r, rel=1e-12)
        assert run.closed_form is None
        assert run.inflation == pytest.approx(1.0, rel=1e-12)


def test_early_recompute_as_a_picture():
    assert str(ps.build_schedule("gpipe", 3, 2, recompute="early")).splitlines()[1:] == [
        "rank 0 | F0 F1 R1 .  .  .  .  B1 R0 B0",
        "rank 1 | .  F0 F1 R1 .  .  B1 R0 B0 .",
        "rank 2 | .  .  F0 F1 R1 B1 R0 B0 .  .",
    ]
    with pytest.raises(ValueError, match="'late' of gpipe is none of 'with_backward', 'early'"):
        ps.build_schedule("gpipe", 3, 2, recompute="late")


def test_r_is_an_op_like_others():
    assert str(ps.parse_op("2R0.1")) == "2R0.1"
    schedule = ps.Schedule.from_orders(["0F0 0R0 0I0 0W0", "1F0 1I0 1W0"])
    assert schedule.separate_recompute
    pipe = ps.Pipeline.from_costs(
        1.0, input_grad=2.0, weight_grad=4.0, recompute_ms=[0.5, 8.0], stages=2
    )
    run = ps.simulate(pipe, schedule)
    # F0 1 | F1 2 | I1 4, without recompute, for R is for the whole schedule | I0 6 W0 10.
    assert run.makespan == 10
    assert run.trace.query("kind == 'R'")[["start", "end"]].to_numpy().tolist() == [[1.0, 1.5]]
    with pytest.raises(ps.ScheduleError, match=r"no action that recomputes \(R\); build"):
        ps.write_schedule(schedule, "never.csv")


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("0R0 0F0 0B0", "0R0 comes before its own stage's input"),
        ("0F0 0B0 0R0", "0B0 comes before its own stage's input"),
        ("0F0 0R0 0R0 0B0", "0R0 is there twice"),
        ("0F0 0R0", "has R but no backward"),
        ("0F0 0F1 0B0 0F2&0R1 0B1 0B2", "a pair is one forward and one backward"),
    ],
)
def test_where_r_cannot_be(monkeypatch, large, order, message):
    if large:
        monkeypatch.setattr("pipesim.schedules.order.op_columns.LARGE", 0)
    with pytest.raises(ps.ScheduleError, match=message.replace("a pair", "an overlapped pair")):
        ps.Schedule.from_orders([order])


@pytest.mark.parametrize("recompute", ["early", "except_last"])
def test_compiled_and_plain_look_at_an_order_agree(monkeypatch, recompute):
    columns = ("stage", "kind", "microbatch", "offsets", "placement", "microbatches")
    plain = ps.build_schedule("gpipe", 3, 4, recompute=recompute)
    monkeypatch.setattr("pipesim.schedules.order.op_columns.LARGE", 0)
    compiled = ps.Schedule(name="x", **{name: getattr(plain, name) for name in columns})
    assert compiled.checked_flows is not None
    for flow in (consumers, producers, local_inputs):
        assert np.array_equal(flow(compiled), flow(plain))


def test_a_batch_with_early_recompute_has_the_numbers_of_every_run():
    schedule = ps.build_schedule("gpipe", 3, 4, recompute="early")
    base = ps.Pipeline.from_costs([1, 2, 1], [2, 3, 2], recompute_ms=[1, 0, 2], overhead_ms=0.25)
    rows = np.random.default_rng(1).uniform(0, 3, (5, 3))
    for name in ("forward_ms", "backward_ms", "recompute_ms"):
        variants = CostVariants(base, {name: rows})
        for pipelines in (variants, list(variants)):
            many = simulate_many(schedule, pipelines)
            runs = [ps.simulate(pipe, schedule) for pipe in variants]
            assert many["makespan_ms"].tolist() == [run.makespan for run in runs]
            for key in ("inflation", "lower_bound_ms"):
                assert many[key] == pytest.approx([run.summary()[key] for run in runs], rel=1e-12)


def peaks_by_walking(schedule, pipe):
    """Return the peak of each rank by going through its order op by op: slow and obvious."""
    rebuilt_by_r = {op for op in map(schedule.op, range(len(schedule))) if op.kind == Kind.R}
    peaks = []
    for rank in range(schedule.ranks):
        held, most = {}, 0
        for op in schedule.order(rank):
            stage, unit = pipe.stages[op.stage], (op.stage, op.microbatch)
            whole = stage.stash_bytes + stage.rebuilt_bytes
            rest = stage.stash_bytes - stage.input_grad_frees_bytes
            keeps_all = schedule.separate_recompute and op._replace(kind=Kind.R) not in rebuilt_by_r
            during, after = {
                Kind.F: (whole if keeps_all else stage.stash_bytes,) * 2,
                Kind.R: (whole, whole),
                Kind.B: (whole, 0),
                Kind.I: (max(whole, rest), rest),
                Kind.W: (rest, 0),
            }[op.kind]
            held[unit] = during
            most = max(most, sum(held.values()))
            held[unit] = after
        assert not any(held.values())
        peaks.append(most)
    return peaks


one_by_one = [name for name in WITH_BACKWARD if name not in ("dualpipe", "dualpipe_v", "seq1f1b")]


@given(cases(value=positive_costs, of=one_by_one), st.data())
def test_peaks_of_memory_with_what_is_rebuilt(case, data):
    pipe, schedule = case
    stages = []
    for stage in pipe.stages:
        stash, rebuilt = data.draw(st.integers(0, 50)), data.draw(st.integers(0, 50))
        frees = data.draw(st.integers(-80, stash))
        sizes = {"stash_bytes": stash, "rebuilt_bytes": rebuilt, "input_grad_frees_bytes": frees}
        stages.append(replace(stage, **sizes))
    pipe = replace(pipe, stages=tuple(stages))
    run = ps.simulate(pipe, schedule)
    assert run.ranks.peak_stash_bytes.tolist() == peaks_by_walking(schedule, pipe)


def test_memory_by_hand():
    sizes = {"stash_bytes": 2, "rebuilt_bytes": 6}
    # Two micro-batches are held, 2 each, and one of them is rebuilt: 10.
    for options in ({}, EARLY, EXCEPT_LAST):
        run = ps.simulate(equal_stages(2, **sizes), "gpipe", 2, options=options)
        assert run.ranks.peak_stash_bytes.tolist() == [10, 10]
    one_by_one = ps.simulate(equal_stages(2, **sizes), "1f1b", 3)
    assert one_by_one.ranks.peak_stash_bytes.tolist() == [10, 8]
    # F keeps 2 of 10; I rebuilds 8 and leaves 4 to W.
    split = ps.Pipeline.from_costs(
        1.0, input_grad=1.0, weight_grad=1.0, stages=1, input_grad_frees_bytes=-2,
        stash_bytes=2, rebuilt_bytes=8,
    )  # fmt: skip
    run = ps.simulate(split, ps.Schedule.from_orders(["0F0 0I0 0W0"]))
    assert run.in_flight.stash_bytes.tolist() == [2, 10, 4, 0]


def test_layers_keep_their_input_in_full():
    full = layers().recompute("full")
    assert full.recompute_ms == (1.0, 2.0, 3.0)
    assert full.stash_bytes == (8, 8, 60)  # the third would keep 70, but has no more than 60
    assert full.rebuilt_bytes == (32, 42, 0)
    assert full.wgrad_stash_bytes is None  # the backward is whole
    some = layers().recompute("full", range(1, 2))
    assert (some.recompute_ms, some.stash_bytes) == ((0, 2.0, 0), (40, 8, 60))
    pipe = full.split([2, 1])
    assert [s.recompute_ms for s in pipe.stages] == [3.0, 3.0]
    assert [(s.stash_bytes, s.rebuilt_bytes) for s in pipe.stages] == [(16, 42), (60, 0)]
    assert [float(s.cost(Kind.B)) for s in pipe.stages] == [9.0, 9.0]


def test_a_stage_whose_first_layer_keeps_its_input_to_rebuild_does_not_keep_it_twice():
    profile = ps.LayerProfile(
        [1.0, 1.0], stash_bytes=[50, 0], output_bytes=[5, 5], first_stash_bytes=[5, 5]
    )
    stages = profile.recompute("full").split([1, 1]).stages
    assert [stage.stash_bytes for stage in stages] == [5, 5]  # the second has nothing to drop
    assert [stage.rebuilt_bytes for stage in stages] == [45, 0]


def test_layers_rebuild_a_part():
    columns = {"selective_ms": [0.1, 0.2, 0.3], "selective_stash_bytes": [20, 30, 99]}
    part = layers(**columns).recompute("selective")
    assert part.recompute_ms == (0.1, 0.2, 0.3)
    assert (part.stash_bytes, part.rebuilt_bytes) == ((20, 30, 60), (20, 20, 0))
    shares = layers().recompute("selective", 2, time_share=0.5, kept_share=0.25)
    assert (shares.recompute_ms, shares.stash_bytes) == ((0, 0, 1.5), (40, 50, 15))
    assert layers().recompute("full", 2, kept_share=0.5).stash_bytes == (40, 50, 30)


def test_what_weight_gradients_need_is_there_after_the_rebuilding():
    split = {"backward_ms": None, "input_grad_ms": [1.0] * 3, "weight_grad_ms": [1.0] * 3}
    for later, expected in ((None, (40, 50, 60)), ([4, 5, 6], (4, 5, 6))):
        profile = layers(**split, wgrad_stash_bytes=later).recompute("full")
        assert profile.wgrad_stash_bytes == expected
        schedule = ps.Schedule.from_orders(["0F0 0I0 0W0"])
        held = ps.simulate(profile.split([3]), schedule).in_flight.stash_bytes.tolist()
        assert held[0] == 76
        assert held[-2:] == [sum(expected), 0]


@given(st.lists(st.sampled_from(["none", "full", "selective"]), min_size=1, max_size=4))
def test_a_mode_takes_the_place_of_one_before(modes):
    columns = {"selective_ms": [0.1, 0.2, 0.3], "selective_stash_bytes": [20, 30, 40]}
    once = layers(**columns).recompute(modes[-1])
    pipe = layers(**columns).split([1, 2])
    shares = {"selective": {"time_share": 0.1, "kept_share": 0.5}}
    pipe_once = pipe.recompute(modes[-1], **shares.get(modes[-1], {}))
    several = layers(**columns)
    for mode in modes:
        several = several.recompute(mode)
        pipe = pipe.recompute(mode, **shares.get(mode, {}))
    assert several.split([1, 2]) == once.split([1, 2])
    assert pipe == pipe_once
    if set(modes) == {"none"}:
        assert several == layers(**columns)


def test_stages_rebuild_as_a_whole():
    pipe = ps.Pipeline.from_costs(
        [[1, 1], [2, 4], [3, 3]], [2, 2, 2],
        stash_bytes=100, output_bytes=[7, 9, 0],
    )  # fmt: skip
    full = pipe.recompute("full", [1, 2])
    assert [s.recompute_ms for s in full.stages] == [0.0, (2.0, 4.0), (3.0, 3.0)]
    assert [(s.stash_bytes, s.rebuilt_bytes) for s in full.stages] == [(100, 0), (7, 93), (9, 91)]
    assert pipe.recompute("full").stages[0].stash_bytes == 7  # as large as its own output
    part = pipe.recompute("selective", 0, time_share=0.5, kept_share=0.3).stages[0]
    assert (part.recompute_ms, part.stash_bytes, part.rebuilt_bytes) == ((0.5, 0.5), 30, 70)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: layers().recompute("some"), "mode 'some' is unknown; known: none, selective, fu"),
        (lambda: layers().recompute("full", [3]), "there is no layer 3: they go from 0 to 2"),
        (lambda: layers().recompute("full", -1), "there is no layer -1"),
        (lambda: layers().recompute("selective"), "gives no selective_ms; give that column, or ti"),
        (lambda: layers().recompute("selective", time_share=0.1), "no selective_stash_bytes; give"),
        (lambda: layers(output_bytes=None).recompute("full"), "no output_bytes; give that column"),
        (lambda: layers().recompute("full", time_share=1.5), "time_share = 1.5 is not a number fr"),
        (lambda: layers().recompute("none", kept_share=1), "where nothing is rebuilt there are no"),
        (
            lambda: layers(stash_bytes=None).recompute("full", kept_share=0.5),
            "kept_share = 0.5: the profile gives no stash_bytes",
        ),
        (lambda: equal_stages(2).recompute("full", 2), "there is no stage 2: they go from 0 to 1"),
        (lambda: equal_stages(2).recompute("selective"), "say how much, by time_share, kept_share"),
    ],
)
def test_what_cannot_be_rebuilt_says_what_is_missing(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def document(**sections):
    run = {"schedule": "1f1b", "microbatches": 4}
    return {"run": run, **sections}


STAGES = {"forward_ms": [1, 2], "backward_ms": [2, 4], "stash_bytes": [50, 60], "output_bytes": 9}


def test_stages_recompute_in_a_config():
    for modes, times, kept in (
        ("full", [1, 2], [9, 9]),
        ("none", [0, 0], [50, 60]),
        (["none", "full"], [0, 2], [50, 9]),
    ):
        pipe = parse_config(document(stages=STAGES | {"recompute": modes}), "x").pipeline
        assert [s.recompute_ms for s in pipe.stages] == times
        assert [s.stash_bytes for s in pipe.stages] == kept


@pytest.fixture
def layer_file(tmp_path):
    path = tmp_path / "layers.csv"
    path.write_text(
        "layer,F_ms,B_ms,act_bytes,out_bytes,selective_ms,selective_stash_bytes\n"
        + "".join(f"{name},1,2,100,10,0.25,60\n" for name in "abcd")
    )
    return path


@pytest.mark.parametrize(
    ("modes", "split", "layers_of", "times"),
    [
        ("none", [3, 1], [3, 1], [0, 0]),
        ("full", [3, 1], [3, 1], [3, 1]),
        ("selective", "time", [2, 2], [0.5, 0.5]),
        (["full", "none"], [3, 1], [3, 1], [3, 0]),
        (["full", "selective"], "time", [2, 2], [2, 0.5]),  # split as if nothing were rebuilt
        ({"0..1": "full", " 3 ": "selective"}, [2, 2], [2, 2], [2, 0.25]),
        ({"0": "full"}, "time", [2, 2], [1, 0]),
        ({"2..3": "full"}, "time", [2, 2], [0, 2]),
        ({"0..2": "full"}, "time", [2, 2], [2, 1]),
    ],
)
def test_layers_recompute_in_a_config(layer_file, modes, split, layers_of, times):
    section = {"file": layer_file.name, "split": split, "recompute": modes}
    config = parse_config(
        document(layers=section, devices={"ranks": 2}), "x.toml", layer_file.parent
    )
    assert [s.forward_ms for s in config.pipeline.stages] == layers_of
    assert [s.recompute_ms for s in config.pipeline.stages] == times


def test_a_split_by_time_counts_the_recompute_of_layers(layer_file):
    layer_file.write_text(layer_file.read_text().replace("b,1,2", "b,2,1"))
    splits = {}
    for modes in ("none", {"0": "full", "1": "full"}):
        section = {"file": layer_file.name, "split": "time", "recompute": modes}
        config = parse_config(
            document(layers=section, devices={"ranks": 3}), "x.toml", layer_file.parent
        )
        splits[str(modes)] = [s.name for s in config.pipeline.stages]
    assert splits["none"] == ["a..b", "c", "d"]
    assert splits[str(modes)] == ["a", "b", "c..d"]


@pytest.mark.parametrize(
    ("sections", "fault"),
    [
        (
            {"stages": STAGES | {"recompute": "selective"}},
            "stages.recompute: 'selective' is not \"none\" or \"full\"; for a part give "
            "recompute_ms, stash_bytes and rebuilt_bytes",
        ),
        ({"stages": STAGES | {"recompute": ["full"] * 3}}, "stages.recompute: 3 values for 2 stag"),
        ({"stages": STAGES | {"recompute": ["full", 1]}}, "stages.recompute[1]: 1 is not \"none\""),
        (
            {"stages": STAGES | {"recompute": "full", "recompute_ms": 1}},
            "stages.recompute: it says what is rebuilt, and so does stages.recompute_ms; give one",
        ),
        ({"layers": {"recompute": "all"}}, "layers.recompute: 'all' is not \"none\", \"selec"),
        ({"layers": {"recompute": ["full"] * 3}}, "layers.recompute: 3 values for 2 stages"),
        ({"layers": {"recompute": {"3..1": "full"}}}, 'layers.recompute."3..1": is no range of'),
        ({"layers": {"recompute": {"a": "full"}}}, 'layers.recompute."a": is no range of layers; '),
        (
            {"layers": {"recompute": {"0..2": "full", "2": "none"}}},
            'layers.recompute."2": has layers that another range has, too',
        ),
        (
            {"layers": {"recompute": {"0..4": "full"}}},
            'layers.recompute."0..4": there is no layer 4: they go from 0 to 3',
        ),
        ({"layers": {"recompute": "full", "split": [2, 1]}}, "layers.split: split [2, 1] places"),
        ({"layers": {"recompute": ["full"] * 2, "split": [2, 1]}}, "layers.split: split [2, 1] pl"),
    ],
)  # fmt: skip
def test_faults_of_recompute_in_a_config(layer_file, sections, fault):
    if "layers" in sections:
        sections = {"layers": {"file": layer_file.name, "split": [2, 2]} | sections["layers"]}
    with pytest.raises(ps.ConfigError) as caught:
        parse_config(document(**sections), "x.toml", layer_file.parent)
    assert [f for f in caught.value.faults if f.startswith(fault)], caught.value.faults
    assert len(caught.value.faults) == 1


def test_a_missing_column_is_told_by_its_place(layer_file):
    text = layer_file.read_text().replace("selective_ms,selective_stash_bytes", "x,y")
    rows = [line.rsplit(",", 2)[0] for line in text.splitlines()]
    layer_file.write_text("\n".join(rows) + "\n")
    section = {"file": layer_file.name, "split": [2, 2], "recompute": ["none", "selective"]}
    with pytest.raises(ps.ConfigError, match=r"layers\.recompute\[1\]: selective recompute rebuil"):
        parse_config(document(layers=section), "x.toml", layer_file.parent)


def swept(path, document, axes):
    path.write_text(json.dumps(document | {"sweep": {"axes": axes}}))
    return ps.sweep_config(path).makespan_ms.tolist()


def test_recompute_as_an_axis(layer_file, tmp_path):
    section = {"file": layer_file.name, "split": [2, 2]}
    path = tmp_path / "s.json"
    modes = ["none", "selective", "full", ["full", "none"]]
    # Equal stages: (m + p - 1)(F + R + B) = 5 (2 + R + 4).
    steps = swept(path, document(layers=section), {"layers.recompute": modes})
    assert steps[:3] == [30, 32.5, 40]
    assert 30 < steps[3] < 40


@pytest.mark.parametrize(
    "axes",
    [
        {"stages.forward_ms[1]": [1.0, 2.0, 3.0]},
        {"stages.forward_ms": [[1.0, 1.0], [3.0, 1.0]]},
        {"stages.recompute": ["none", "full"], "stages.forward_ms[0]": [1.0, 5.0]},
        {"stages.recompute[1]": ["none", "full"]},
        {"imbalance": {"stage": 1, "factor": [1.0, 2.0]}},
    ],
)
def test_many_points_recompute_as_one_by_one(tmp_path, axes):
    stages = STAGES | {"recompute": "full"}
    steps = swept(tmp_path / "s.json", document(stages=stages), axes)
    one_by_one = []
    keys = list(axes)
    rows = [[]]
    for key in keys:
        values = axes[key] if key != "imbalance" else axes[key]["factor"]
        rows = [[*row, value] for row in rows for value in values]
    for row in rows:
        changes = dict(zip(keys, row, strict=True))
        forward, modes = [1, 2], ["full", "full"]
        factor = changes.pop("imbalance", 1.0)
        for key, value in changes.items():
            name, _, place = key.removeprefix("stages.").partition("[")
            given = forward if name == "forward_ms" else modes
            if place:
                given[int(place[:-1])] = value
            else:
                given[:] = value if isinstance(value, list) else [value] * 2
        pipe = ps.Pipeline.from_costs([forward[0], forward[1] * factor], [2, 4 * factor])
        for stage, mode in enumerate(modes):
            pipe = pipe.recompute(mode, stage)
        one_by_one.append(ps.simulate(pipe, "1f1b", 4).makespan)
    assert steps == one_by_one
    assert len(set(steps)) > 1


def test_varied_recompute_times_run_together(tmp_path):
    axes = {"stages.recompute_ms[1]": [0.0, 1.0, 2.5]}
    stages = STAGES | {"recompute_ms": [0.5, 0.5]}
    steps = swept(tmp_path / "s.json", document(stages=stages), axes)
    expected = [
        ps.simulate(ps.Pipeline.from_costs([1, 2], [2, 4], recompute_ms=[0.5, r]), "1f1b", 4)
        for r in (0.0, 1.0, 2.5)
    ]
    assert steps == [run.makespan for run in expected]


@pytest.mark.parametrize(
    ("stages", "m", "closed", "published"),
    [
        (2, 1, 1.0, None), (2, 4, 1.6, None), (2, 32, 64 / 33, 1.8),
        (4, 1, 1.0, None), (4, 4, 16 / 7, None), (4, 32, 128 / 35, 3.4),
        (8, 1, 1.0, None), (8, 4, 32 / 11, None), (8, 32, 256 / 39, 6.3),
    ],
)  # fmt: skip
def test_throughput_of_gpipe_table_2(stages, m, closed, published):
    # Huang et al. 2019, Table 2, Transformer: against two stages and one micro-batch. With few
    # micro-batches the paper changed the batch, so that only M = 32 compares.
    def step(p, m):
        each = 1 / (p * m)
        pipe = ps.Pipeline.from_costs(each, 2 * each, stages=p).recompute("full")
        return ps.simulate(pipe, "gpipe", m).makespan

    speedup = step(2, 1) / step(stages, m)
    assert speedup == pytest.approx(closed, rel=1e-9)
    if published is not None:
        assert speedup == pytest.approx(published, rel=0.08)


@pytest.mark.parametrize("engine", ["simpy", "replay"])
def test_where_nothing_is_rebuilt_r_takes_no_time(engine):
    # F and B of two micro-batches on each of two stages, 0.5 more for every op that runs.
    pipe = ps.Pipeline.from_costs([1.0, 1.0], [2.0, 2.0], overhead_ms=0.5)
    early = ps.simulate(pipe, "gpipe", 2, engine=engine, options={"recompute": "early"})
    assert early.makespan == ps.simulate(pipe, "gpipe", 2, engine=engine).makespan == 12
    many = ps.simulate_many(early.schedule, [pipe])
    assert many["makespan_ms"].tolist() == [12]
    assert (early.sensitivity.gain_ms >= 0).all()
