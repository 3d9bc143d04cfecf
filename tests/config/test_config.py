"""Config files: the same in three formats, and every fault with its path."""

import json
from pathlib import Path

import pytest
import yaml

import pipesim as ps
from pipesim.config.read import parse_config
from pipesim.files.config_file import read_document, set_key

GOOD = {
    "title": "mine",
    "run": {"schedule": "1f1b", "microbatches": 8},
    "stages": {"forward_ms": [1, 1, 1, 2], "backward_ms": [2, 2, 2, 4]},
}
CONFIGS = Path(__file__).parents[2] / "experiments" / "configs"


def changed(**sections):
    return GOOD | sections


def faults(document):
    with pytest.raises(ps.ConfigError) as caught:
        parse_config(document, "x.toml")
    return list(caught.value.faults)


@pytest.mark.parametrize("ending", ["toml", "yaml", "yml", "json"])
def test_three_formats_say_the_same(tmp_path, ending):
    path = tmp_path / f"config.{ending}"
    if ending == "toml":
        path.write_text(
            'title = "mine"\n[run]\nschedule = "1f1b"\nmicrobatches = 8\n'
            "[stages]\nforward_ms = [1, 1, 1, 2]\nbackward_ms = [2, 2, 2, 4]\n"
        )
    else:
        path.write_text(json.dumps(GOOD) if ending == "json" else yaml.safe_dump(GOOD))
    config = ps.read_config(path)
    assert config.pipeline.title == "mine"
    assert ps.simulate_config(config).makespan == 57


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_config_that_is_shipped_runs(path):
    config = ps.read_config(path)
    run = ps.simulate_config(config)
    assert run.makespan >= run.lower_bound * (1 - 1e-12)
    assert config.sections.source


def test_all_keys_have_their_effect():
    config = parse_config(
        {
            "title": "t",
            "source": "s",
            "run": {
                "schedule": "gpipe",
                "microbatches": 2,
                "options": {"order": "fifo"},
                "engine": "simpy",
                "protocol": "eager",
                "queue_capacity": 3,
            },
            "stages": {
                "forward_ms": 1.5,
                "input_grad_ms": [1, 2],
                "weight_grad_ms": [[0.5, 0.25], [0.5, 0.5]],
                "count": 2,
                "stash_bytes": [1, 2],
                "param_bytes": 3,
                "output_bytes": 4,
            },
            "devices": {"ranks": 2, "placement": "linear", "speed": [1, 2], "overhead_ms": 0.1},
            "links": {"latency_ms": {"0->1": 0.5}, "bandwidth_gb_s": "none"},
        },
        "x.toml",
    )
    pipe = config.pipeline
    assert pipe.stages[0] == ps.Stage(
        forward_ms=1.5,
        input_grad_ms=1,
        weight_grad_ms=(0.5, 0.25),
        stash_bytes=1,
        param_bytes=3,
        output_bytes=4,
    )
    assert pipe.devices == (ps.Device(1, 0.1), ps.Device(2, 0.1))
    assert dict(pipe.links) == {(0, 1): ps.Link(0.5)}
    assert [str(op) for op in config.schedule.order(0)] == ["0F0", "0F1", "0B0", "0B1"]
    assert ps.simulate_config(config).queue_capacity == 3


@pytest.fixture
def layered(tmp_path):
    (tmp_path / "layers.csv").write_text("F_ms,B_ms\n1,2\n1,2\n1,2\n2,4\n")

    def config(split, **sections):
        document = {"run": GOOD["run"], "layers": {"file": "layers.csv", "split": split}}
        return parse_config(document | sections, "x.toml", tmp_path)

    return config


def test_layers_are_split_by_counts_or_by_a_method(layered):
    def forward(config):
        return [stage.forward_ms for stage in config.pipeline.stages]

    assert forward(layered([2, 2])) == [2, 3]
    assert forward(layered("time", devices={"ranks": 3})) == [2, 1, 2]
    assert forward(layered("layers", devices={"ranks": 2})) == [2, 3]
    assert forward(layered(4)) == [5]


@pytest.mark.parametrize(
    ("split", "sections", "fault"),
    [
        ([2, 1], {}, "layers.split: split [2, 1] places 3 layers, but the profile has 4: 1 would"),
        ("colour", {}, "layers.split: 'colour' is unknown; known: time, layers"),
        ("time", {}, "devices.ranks: missing"),
        ("time", {"devices": {"ranks": 9}}, "layers.split: 4 layers cannot fill 9 stages"),
        ([2, 2], {"stages": GOOD["stages"]}, "stages: give the section [stages], or [layers]"),
        ([2, 2], {"devices": {"speed": [1, 1, 1]}}, "devices.speed: 3 values for 2 ranks"),
        ("param_bytes", {"devices": {"ranks": 2}}, "layers.split: the profile gives no param_b"),
    ],
)
def test_bad_layers(layered, split, sections, fault):
    with pytest.raises(ps.ConfigError) as caught:
        layered(split, **sections)
    assert any(fault in text for text in caught.value.faults), caught.value.faults


def test_a_missing_split_says_what_to_write(tmp_path):
    document = {"run": GOOD["run"], "layers": {"file": "layers.csv"}}
    with pytest.raises(ps.ConfigError) as caught:
        parse_config(document, "x.toml", tmp_path)
    assert caught.value.faults == (
        'layers.split: missing; write split = "time", or what `pipesim split` finds',
    )


def test_a_missing_layer_file_is_named(tmp_path):
    document = {"run": GOOD["run"], "layers": {"file": "nowhere.csv", "split": [1]}}
    with pytest.raises(ps.ConfigError, match=r"nowhere\.csv: no layer costs: No such file"):
        parse_config(document, "x.toml", tmp_path)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            {},
            [
                "run.schedule: missing, but required",
                "run.microbatches: missing, but required",
                "stages: give the section [stages], or [layers] instead of it",
            ],
        ),
        (changed(run={"schedule": "1f1b"}), ["run.microbatches: missing, but required"]),
        (
            changed(run={"schedule": "1f1b", "microbatches": 4.7}),
            ["run.microbatches: 4.7 is not a whole number from 1"],
        ),
        (
            changed(run={"schedule": "1f1b", "microbatches": "4"}),
            ["run.microbatches: '4' is not a whole number from 1"],
        ),
        (
            changed(run={"schedule": "1f1b", "microbatches": True}),
            ["run.microbatches: True is not a whole number from 1"],
        ),
        (
            changed(run={"schedule": 3, "microbatches": 0}),
            [
                "run.schedule: 3 is not a text in quotes",
                "run.microbatches: 0 is not a whole number from 1",
            ],
        ),
        (
            changed(run={"schedule": "1f2b", "microbatches": 4}),
            ["run.schedule: '1f2b' is unknown; did you mean 1f1b?"],
        ),
        (
            changed(run={"schedule": "best", "microbatches": 4}),
            ["run.schedule: 'best' is unknown; known: gpipe_forward, gpipe, 1f1b, 1f1b_eager"],
        ),
        (
            changed(run={"schedule": "1f1b", "microbatches": 4, "options": {"chunks": 2}}),
            ["run.options.chunks: 1f1b has no such option; known: none"],
        ),
        (
            changed(run={"schedule": "1f1b", "microbatches": 4, "options": 2}),
            ["run.options: 2 is not a table"],
        ),
        (
            changed(run=GOOD["run"] | {"engine": "warp", "protocol": "polite"}),
            [
                "run.engine: 'warp' is unknown; known: simpy",
                "run.protocol: 'polite' is unknown; did you mean posted?",
            ],
        ),
        (
            changed(run=GOOD["run"] | {"queue_capacity": -1}),
            ["run.queue_capacity: -1 is not a whole number from 1"],
        ),
        (changed(run=3), ["run: 3 is not a table with keys"]),
        (changed(extra=1), ["extra: unknown key; known: run, stages, layers, devices, links,"]),
        (
            changed(stages={"forward_msec": [1], "forward_ms": [1], "backward_ms": [1]}),
            ["stages.forward_msec: unknown key; did you mean forward_ms?"],
        ),
        (
            changed(stages={"forward_ms": [1, -2, float("nan")], "backward_ms": float("inf")}),
            [
                "stages.forward_ms[1]: -2 is not a number from 0 to",
                "stages.forward_ms[2]: nan is not a number from 0 to",
                "stages.backward_ms: inf is not a number from 0 to",
            ],
        ),
        (
            changed(stages={"forward_ms": [1, 2], "backward_ms": [1, 2, 3], "stash_bytes": [1]}),
            [
                "stages.backward_ms: 3 values for 2 stages",
                "stages.stash_bytes: 1 values for 2 stages",
            ],
        ),
        (
            # A bad value, an unknown key and a wrong length: all at once.
            changed(stages={"forward_ms": [1, -2], "backward_ms": [1, 2, 3], "colour": 1}),
            [
                "stages.colour: unknown key; known: forward_ms",
                "stages.forward_ms[1]: -2 is not a number from 0 to",
                "stages.backward_ms: 3 values for 2 stages",
            ],
        ),
        (
            changed(stages={"forward_ms": [1, [2]], "backward_ms": []}),
            [
                "stages.forward_ms: mixes numbers and lists",
                "stages.backward_ms: is an empty list",
            ],
        ),
        (
            changed(stages={"forward_ms": [[1, 2], [3]], "backward_ms": 1}),
            ["stages.forward_ms: has rows of different lengths: [1, 2]"],
        ),
        (
            changed(stages={"forward_ms": [[1, 2], [3, 4]], "backward_ms": 1}),
            ["stages.forward_ms: rows of 2 values for 8 micro-batches"],
        ),
        (
            changed(stages={"forward_ms": 1, "backward_ms": 2}),
            ["stages.count: missing; every cost is a single number"],
        ),
        (
            changed(stages={"forward_ms": [1, 1], "weight_grad_ms": 2}),
            ["stages.input_grad_ms: missing; input_grad_ms and weight_grad_ms go together"],
        ),
        (
            changed(
                stages={
                    "forward_ms": [1],
                    "backward_ms": 1,
                    "weight_grad_ms": 2,
                    "input_grad_ms": 1,
                }
            ),
            ["stages.backward_ms: give this, or input_grad_ms and weight_grad_ms, not all three"],
        ),
        (
            changed(devices={"ranks": 3, "speed": [1, 0], "placement": "spiral"}),
            [
                "devices.speed[1]: 0 is not a number from 10^-9",
                "devices.placement: 'spiral' is unknown; known: linear, looped",
                "devices.ranks: 4 stages on 3 ranks: the looped placement needs a multiple",
                "devices.speed: 2 values for 4 ranks",
            ],
        ),
        (
            changed(devices={"ranks": 3, "speed": [1, 2], "placement": "spiral"}),
            [
                "devices.placement: 'spiral' is unknown; known: linear, looped",
                "devices.ranks: 4 stages on 3 ranks: the looped placement needs a multiple",
                "devices.speed: 2 values for 4 ranks",
            ],
        ),
        (
            changed(links={"latency_ms": {"0->9": 1, "x": 2, "1->0": -1}, "bandwidth_gb_s": 0}),
            [
                'links.latency_ms."x": is no pair of ranks; write "0->1"',
                'links.latency_ms."1->0": -1 is not a number from 0 to',
                "links.bandwidth_gb_s: 0 is not a number of at least 10^-9, or none",
            ],
        ),
        (
            changed(links={"latency_ms": {"0->9": 1}, "bandwidth_gb_s": [1, 2]}),
            [
                "links.bandwidth_gb_s: 2 values for 3 stage boundaries",
                'links.latency_ms."0->9": ranks go from 0 to 3',
            ],
        ),
        (changed(title=3), ["title: 3 is not a text in quotes"]),
        (changed(sweep={"axes": []}), ["sweep.axes: is no table of axes"]),
        (
            changed(sweep={"axes": {"a.b": 3, "c.d": {"linspace": [1, 2]}}, "mode": "spiral"}),
            [
                'sweep.axes."a.b": 3 is not a list',
                "sweep.axes.\"c.d\": {'linspace': [1, 2]} is not",
                "sweep.mode: 'spiral' is unknown",
            ],
        ),
        (
            changed(sweep={"axes": {"a.b": [3]}, "mode": "spiral"}),
            ["sweep.mode: 'spiral' is unknown; known: product, zip"],
        ),
    ],
)
def test_every_fault_is_told_with_its_path(document, expected):
    found = faults(document)
    assert len(found) == len(expected), found
    for text, start in zip(found, expected, strict=True):
        assert text.startswith(start)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "run = = 1", r"a\.toml: is malformed: .*line 1"),
        ("a.json", "{", r"a\.json: is malformed"),
        ("a.json", '{"run": 1, "run": 2}', "the key 'run' is there twice"),
        ("a.yaml", "a: 1\na: 2", "the key 'a' is there twice"),
        ("a.yaml", "a: [", r"a\.yaml: is malformed"),
        ("a.yaml", "- 1", "holds no table"),
        ("a.ini", "", "is .toml, .yaml, .yml or .json"),
    ],
)
def test_files_that_are_no_configs(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ps.ConfigError, match=message):
        ps.read_config(tmp_path / name)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ps.ConfigError, match=r"no\.toml: cannot be read: No such file"):
        ps.read_config(tmp_path / "no.toml")
    (tmp_path / "latin.toml").write_bytes(b'title = "\xe9"')
    with pytest.raises(ps.ConfigError, match="is no UTF-8 text"):
        ps.read_config(tmp_path / "latin.toml")


def test_keys_are_set_without_touching_the_original():
    document = {"stages": {"forward_ms": [1, 1]}}
    assert set_key(document, "stages.forward_ms[1]", 5) == {"stages": {"forward_ms": [1, 5]}}
    assert set_key(document, "run.options.order", "fifo")["run"] == {"options": {"order": "fifo"}}
    assert document == {"stages": {"forward_ms": [1, 1]}}


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("", "is no key"),
        ("stages..x", "is no key"),
        ("[0]", "is no key"),
        ("stages.forward_ms[9]", "the list has 2 values, from 0 on"),
        ("stages.count[1]", "is 2, not a list"),
        ("stages.count.x", "stages.count is 2 and has no key 'x'"),
        ("stages.nothing[0]", "there is no stages.nothing"),
    ],
)
def test_keys_that_do_not_fit_are_refused(key, message):
    with pytest.raises(ValueError, match=message):
        set_key({"stages": {"forward_ms": [1, 1], "count": 2}}, key, 1)


def test_the_shipped_straggler_reads_as_it_is_written():
    document = read_document(CONFIGS / "straggler.toml")
    assert document["stages"]["forward_ms"] == [67.206, 66.998, 67.583, 139.445]


def test_all_faults_are_told_whatever_their_kind():
    found = faults(
        changed(
            run={"schedule": "nope", "microbatches": 4.7, "options": {"x": 1}},
            stages={"forward_ms": [1, 2], "backward_ms": [1, 2, 3], "for.ward": 1, 1: 2},
            links=3,
        )
    )
    assert [text.split(":")[0] for text in found] == [
        "stages.for.ward",
        "stages.1",
        "run.microbatches",
        "links",
        "run.schedule",
        "stages.backward_ms",
    ]


def test_faults_around_layers_have_their_own_keys(layered):
    with pytest.raises(ps.ConfigError) as caught:
        layered([2, 2], links={"latency_ms": [1, 2, 3]}, devices={"speed": [1, 2, 3], "ranks": 3})
    assert [text.split(":")[0] for text in caught.value.faults] == [
        "devices.ranks",
        "devices.speed",
        "links.latency_ms",
    ]


def test_a_bad_layer_file_is_told_with_the_key(tmp_path):
    document = {"run": GOOD["run"], "layers": {"file": "nowhere.csv", "split": [1]}}
    with pytest.raises(ps.ConfigError) as caught:
        parse_config(document, "x.toml", tmp_path)
    assert str(caught.value).startswith("x.toml: layers.file: ")


def test_none_stands_for_an_optional_key_only():
    assert parse_config(changed(run=GOOD["run"] | {"queue_capacity": "none"}), "x.toml")
    assert faults(changed(run=GOOD["run"] | {"schedule": "none"}))[0].startswith(
        "run.schedule: 'none' is unknown"
    )
    assert faults(changed(title=None)) == ["title: None is not a text in quotes"]


def test_the_source_reaches_the_pipeline():
    config = parse_config(changed(source="a paper"), "x.toml")
    assert config.pipeline.source == "a paper"


def test_one_link_can_be_set():
    document = set_key({"links": {"latency_ms": {"0->1": 1}}}, 'links.latency_ms."0->1"', 2)
    assert document == {"links": {"latency_ms": {"0->1": 2}}}


def test_links_that_carry_nothing_and_pairs_given_twice_are_refused():
    pairs = {"0->2": 3, "1->1": 5, "0->1": 1, " 0 -> 1": 7}
    found = faults(changed(links={"latency_ms": pairs, "bandwidth_gb_s": {"3->1": 5}}))
    assert found[0] == 'links.latency_ms." 0 -> 1": is given twice'
    assert found[1].startswith('links.bandwidth_gb_s."3->1": no message goes this way')


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("run.microbatches", 10**22),
        ("stages.count", 10**10),
        ("stages.forward_ms", 1e308),
        ("stages.forward_ms", 10**400),
        ("links.latency_ms", 1e308),
        ("links.bandwidth_gb_s", 5e-324),
        ("devices.speed", 1e-308),
        ("stages.stash_bytes", 10**20),
    ],
)
def test_values_beyond_all_measure_are_refused(key, value):
    (found,) = faults(set_key(GOOD, key, value))
    assert found.startswith(key)
    assert len(found) < 200


def test_more_ops_than_fit_into_memory_are_refused():
    (found,) = faults(set_key(set_key(GOOD, "run.microbatches", 10**6), "stages", {
        "forward_ms": 1, "backward_ms": 2, "count": 1000,
    }))  # fmt: skip
    assert "1,000,000,000 forwards (1000 stages x 1000000 micro-batches" in found


def test_yaml_as_people_write_it(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "base: &base {schedule: 1f1b, microbatches: 4}\n"
        "run: {<<: *base, microbatches: 8}\n"
        "stages: {forward_ms: [1, 1e0], backward_ms: 2e+0, stash_bytes: 2e9}\n"
    )
    with pytest.raises(ps.ConfigError, match="base: unknown key"):
        ps.read_config(path)
    path.write_text(path.read_text().replace("base: &base", "title: t\nrun: &base", 1))
    with pytest.raises(ps.ConfigError, match="the key 'run' is there twice"):
        ps.read_config(path)
    path.write_text(
        "run: {schedule: 1f1b, microbatches: 8}\n"
        "stages: &s {forward_ms: [1, 1e0], backward_ms: 2e+0, stash_bytes: 2e9}\n"
        "devices: {<<: {speed: 1e0}, overhead_ms: 1e-1}\n"
    )
    config = ps.read_config(path)
    assert config.pipeline.stages[0].stash_bytes == 2_000_000_000
    assert config.pipeline.devices[0] == ps.Device(1.0, 0.1)


def test_a_byte_order_mark_is_no_fault(tmp_path):
    path = tmp_path / "c.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    assert ps.read_config(path).pipeline.title == "mine"


TRAINING = {
    "replicas": 4,
    "zero": 1,
    "bytes_per_param": 2,
    "grad_bytes_per_param": 4,
    "optimizer_bytes_per_param": 12,
    "latency_ms": 0.1,
    "bandwidth_gb_s": 25,
    "overlap": False,
    "optimizer_ms": [1, 2, 3, 4],
    "tied_bytes": 1000,
    "barrier": False,
    "speed": [[1, 1, 1, 1], [1, 1, 1, 0.5], [1, 1, 1, 1], [1, 1, 1, 1]],
}
STAGES = GOOD["stages"] | {"param_bytes": 1000}


def test_all_keys_of_training():
    config = parse_config(changed(training=TRAINING, stages=STAGES), "x.toml")
    expected = TRAINING | {
        "optimizer_ms": (1, 2, 3, 4),
        "speed": tuple(map(tuple, TRAINING["speed"])),
    }
    assert config.training == ps.Training(**expected)
    stage = ps.simulate_config(config).pipeline.stages[0]
    # 500 parameters: gradients of 4 bytes each, 12 bytes of optimizer each over 4 replicas.
    assert (stage.param_bytes, stage.grad_bytes, stage.optimizer_bytes) == (1000, 2000, 1500)
    assert ps.simulate_config(config).peak_memory == (4500,) * 4


def test_training_that_is_not_given_changes_nothing():
    config = parse_config(changed(stages=STAGES), "x.toml")
    assert config.training is None
    assert config.batch is None
    assert ps.simulate_config(config).peak_memory == (1000,) * 4
    plain = parse_config(changed(training={}), "x.toml")
    assert plain.training == ps.Training()
    none = parse_config(changed(training={"bandwidth_gb_s": "none", "replicas": None}), "x.toml")
    assert none.training == ps.Training()


@pytest.mark.parametrize(
    ("training", "wanted"),
    [
        ({"zero": 4}, "training.zero: 4 is not 0, 1, 2 or 3"),
        ({"zero": True}, "training.zero: True is not 0, 1, 2 or 3"),
        ({"overlap": 1}, "training.overlap: 1 is not true or false"),
        ({"barrier": "yes"}, "training.barrier: 'yes' is not true or false"),
        ({"replicas": 0}, "training.replicas: 0 is not a whole number from 1"),
        ({"bytes_per_param": 0}, "training.bytes_per_param: 0 is not a number from 10^-9"),
        ({"bandwidth_gb_s": 0}, "training.bandwidth_gb_s: 0 is not a number of at least 10^-9"),
        ({"optimizer_ms": [1, 2]}, "training.optimizer_ms: 2 values for 4 stages"),
        ({"optimizer_ms": [1, -2, 1, 1]}, "training.optimizer_ms[1]: -2 is not a number from 0"),
        ({"speed": [1, 2]}, "training.speed: 2 values for 1 replicas"),
        ({"speed": [[1, 2]]}, "training.speed: rows of 2 values for 4 ranks"),
        ({"speed": [[1, 1, 1, 0]]}, "training.speed[0][3]: 0 is not a number from 10^-9"),
        ({"replicas": 2, "speed": [1, [1] * 4]}, "training.speed: mixes numbers and lists"),
        ({"replica": 2}, "training.replica: unknown key; did you mean replicas?"),
        ([], "training: [] is not a table with keys"),
    ],
)
def test_faults_of_training(training, wanted):
    found = faults(changed(training=training))
    assert len(found) == 1
    assert found[0].startswith(wanted)


def test_gradients_are_given_once():
    stages = STAGES | {"grad_bytes": 5, "optimizer_bytes": [1, 1, 1, 1]}
    assert [fault.split(":")[0] for fault in faults(changed(training={}, stages=stages))] == [
        "stages.grad_bytes",
        "stages.optimizer_bytes",
    ]
    assert parse_config(changed(stages=stages), "x.toml").pipeline.stages[0].grad_bytes == 5


def test_state_beyond_all_bounds_is_a_fault_of_training():
    stages = STAGES | {"param_bytes": 10**15}
    assert faults(changed(training={}, stages=stages))[0].startswith("training: optimizer_bytes")


BATCHES = [
    ({"microbatches": 64}, {"microbatch_size": 2}, {"replicas": 4}),
    ({"microbatches": 64}, {"global_size": 512}, {"replicas": 4}),
    ({}, {"global_size": 512, "microbatch_size": 2}, {"replicas": 4}),
    ({"microbatches": 64}, {"global_size": 512, "microbatch_size": 2}, {}),
    ({"microbatches": 64}, {"global_size": 512, "microbatch_size": 2}, {"replicas": 4}),
    ({"microbatches": 64}, {"global_size": 512, "microbatch_size": 2}, None),
]


@pytest.mark.parametrize(("run", "batch", "training"), BATCHES)
def test_any_three_sizes_of_a_batch_give_the_fourth(run, batch, training):
    document = changed(run={"schedule": "1f1b", **run}, batch=batch)
    config = parse_config(document | ({} if training is None else {"training": training}), "x.toml")
    assert config.batch == ps.BatchSizes(512, 2, 64, 4)
    assert config.schedule.microbatches == 64
    assert config.training.replicas == 4


def test_without_replicas_there_is_one():
    batch = {"global_size": 64, "microbatch_size": 2}
    config = parse_config(changed(run={"schedule": "1f1b"}, batch=batch), "x.toml")
    assert (config.batch, config.training) == (ps.BatchSizes(64, 2, 32, 1), None)
    again = parse_config(changed(run={"schedule": "1f1b"}, batch=batch, training={}), "x.toml")
    assert (again.batch, again.training) == (config.batch, ps.Training())


@pytest.mark.parametrize(
    ("run", "batch", "wanted"),
    [
        (
            {},
            {"global_size": 100, "microbatch_size": 8},
            "batch: batch.global_size = 100 is not divisible by batch.microbatch_size x "
            "training.replicas = 8 x 1 = 8; nearest: batch.global_size = 96 or 104",
        ),
        ({}, {"global_size": 100}, "batch: missing: batch.microbatch_size, run.microbatches"),
        ({"microbatches": 8}, {}, "batch: missing: batch.global_size, batch.microbatch_size"),
        (
            {"microbatches": 8},
            {"global_size": 4.5},
            "batch.global_size: 4.5 is not a whole number",
        ),
        ({"microbatches": 8}, {"size": 4}, "batch.size: unknown key"),
    ],
)
def test_faults_of_batches(run, batch, wanted):
    found = faults(changed(run={"schedule": "1f1b", **run}, batch=batch))
    assert found[0].startswith(wanted)


def test_costs_by_microbatch_go_with_the_batch():
    stages = {"forward_ms": [[1, 2]], "backward_ms": 2}
    batch = {"global_size": 6, "microbatch_size": 2}
    found = faults(changed(run={"schedule": "1f1b"}, batch=batch, stages=stages))
    assert found == ["stages.forward_ms: rows of 2 values for 3 micro-batches"]


def test_the_memory_limit_can_be_lifted():
    document = changed(stages=STAGES, devices={"memory_bytes": 999})
    with pytest.raises(ps.MemoryLimitError, match="rank 0 goes over its memory limit"):
        ps.simulate_config(parse_config(document, "x.toml"))
    lifted = document | {"run": GOOD["run"] | {"memory_limit": False}}
    assert ps.simulate_config(parse_config(lifted, "x.toml")).makespan == 57
    found = faults(changed(run=GOOD["run"] | {"memory_limit": "no"}))
    assert found == ["run.memory_limit: 'no' is not true or false"]


def test_one_replica_can_be_made_slow(tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(changed(training={"replicas": 3})))
    overrides = {"training.speed[1]": 0.5, "training.optimizer_ms[3]": 2.0}
    training = ps.read_config(path, overrides).training
    assert training.speed == (1.0, 0.5, 1.0)
    assert training.optimizer_ms == (0.0, 0.0, 0.0, 2.0)
