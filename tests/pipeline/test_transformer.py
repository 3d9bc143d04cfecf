"""A transformer's shape against the published counts of FLOPs, parameters and bytes."""

from dataclasses import replace

import pytest

import pipesim as ps

# Korthikanti et al. 2022, Table 3: heads, hidden, layers, pipeline ranks, global batch,
# micro-batch; sequence 2048, vocabulary 51200, 8 tensor-parallel ranks.
KORTHIKANTI = {
    "22B": (64, 6144, 48, 1, 4, 4),
    "175B": (96, 12288, 96, 8, 64, 1),
    "530B": (128, 20480, 105, 35, 280, 1),
    "1T": (160, 25600, 128, 64, 512, 1),
}


def korthikanti(name, **more):
    heads, hidden, layers, _, _, microbatch = KORTHIKANTI[name]
    shape = {"layers": layers, "hidden": hidden, "heads": heads, "microbatch": microbatch}
    return ps.Transformer(**shape, vocabulary=51200, sequence=2048, **more)


LLAMA = ps.Transformer(
    layers=80,
    hidden=8192,
    ffn=28672,
    heads=64,
    kv_heads=8,
    gated=True,
    vocabulary=128256,
    sequence=8192,
)
SMALL = {"layers": 2, "hidden": 12, "heads": 6, "vocabulary": 10, "sequence": 4}


def test_a_small_gpt_by_hand():
    gpt = ps.Transformer(**SMALL, ffn=20, microbatch=3)
    embedding, layer, head = gpt.rows()
    # QKV 12 x 36, projection 12 x 12, MLP 12 x 20 twice; their biases; two norms.
    assert layer.parameters == 12 * 36 + 12 * 12 + 2 * 12 * 20 + (36 + 12 + 20 + 12) + 2 * 24
    assert embedding.parameters == 10 * 12 + 4 * 12
    assert head.parameters == 10 * 12 + 24
    assert gpt.parameters == 168 + 2 * layer.parameters + 144
    products = 2 * 12 * (12 * 36 + 12 * 12 + 2 * 12 * 20)
    core = 2 * (2 * 3 * 4 * 4 * 12)  # queries x keys, scores x values
    assert layer.flops == (products + core, products + 2 * core, products)
    assert layer.rebuilt_flops == core
    assert embedding.flops == (144, 0, 288)
    assert head.flops == (2 * 12 * 12 * 10,) * 3
    assert gpt.flops == 432 + 2 * sum(layer.flops) + sum(head.flops)
    # Four inputs of 12, QKV 36, projection's input 12, in the MLP 2 x 20; two masks of 12.
    assert layer.selective_stash_bytes == 12 * (2 * (4 * 12 + 36 + 12 + 40) + 2 * 12)
    assert layer.stash_bytes - layer.selective_stash_bytes == 5 * 6 * 4 * 12
    # Moved for each of 12 x 6 x 4 scores: by products and softmax 2 each, by dropout 2 + 2 + 1.
    assert layer.moved_bytes == (288 * (4 * 2 + 5), 288 * (7 * 2 + 5), 0)
    # Inputs of four matrices 12, 12, 12, 20; gradients of what they put out 36, 12, 20, 12.
    assert layer.wgrad_stash_bytes == 2 * 12 * (12 + 12 + 12 + 20 + 36 + 12 + 20 + 12)
    assert (embedding.stash_bytes, embedding.wgrad_stash_bytes) == (144, 288)
    assert head.stash_bytes == 12 * (2 * 2 * 12 + 4 * 10)
    assert head.wgrad_stash_bytes == 12 * (2 * 12 + 2 * 10)
    assert gpt.message_bytes == embedding.output_bytes == layer.output_bytes == 288
    assert head.output_bytes == 0


def test_a_small_llama_by_hand():
    llama = ps.Transformer(**SMALL, ffn=20, kv_heads=2, gated=True, causal=True)
    embedding, layer, head = llama.rows()
    # Six heads of 2: keys and values are 4 wide each.
    matrices = 12 * (12 + 4 + 4) + 12 * 12 + 3 * 12 * 20
    assert layer.parameters == matrices + 2 * 12
    assert (embedding.parameters, head.parameters) == (120, 132)
    assert layer.flops.weight_grad == 2 * 4 * matrices
    assert layer.flops.forward - layer.flops.weight_grad == 2 * 4 * 4 * 12
    assert layer.selective_stash_bytes == 4 * 2 * (4 * 12 + 20 + 12 + 3 * 20)
    assert layer.stash_bytes - layer.selective_stash_bytes == 2 * 6 * 4 * 4  # no dropout
    assert embedding.stash_bytes == 0
    assert layer.moved_bytes == (96 * 4 * 2, 96 * 7 * 2, 0)
    flash = replace(llama, flash=True).rows()[1]
    assert flash.stash_bytes == flash.selective_stash_bytes == layer.selective_stash_bytes
    assert flash.flops.input_grad - flash.flops.weight_grad == 2.5 * 2 * 4 * 4 * 12
    assert flash.rebuilt_flops == 0
    assert flash.moved_bytes == (0, 0, 0)


def test_llama_3_70b_is_140_gb():
    assert 2 * LLAMA.parameters == pytest.approx(140e9, rel=0.02)
    assert LLAMA.parameters == 70_553_706_496  # of the released weights
    assert sum(LLAMA.profile(989, 0.4).param_bytes) == 2 * LLAMA.parameters
    norms = (2 * 80 + 1) * 8192  # whole on every tensor-parallel rank
    split = replace(LLAMA, tensor_parallel=8).profile(989, 0.4)
    assert sum(split.param_bytes) == 2 * ((LLAMA.parameters - norms) // 8 + norms)


@pytest.mark.parametrize(
    ("name", "billions"), [("22B", 22), ("175B", 174.6), ("530B", 529.6), ("1T", 1008)]
)
def test_parameters_by_the_closed_form(name, billions):
    gpt = korthikanti(name, tied=True)
    h, layers = gpt.hidden, gpt.layers
    final_norm = 2 * h  # not in the closed form
    assert gpt.parameters - final_norm == (
        12 * layers * h**2 + 13 * layers * h + (51200 + 2048) * h
    )
    assert gpt.parameters == pytest.approx(billions * 1e9, rel=0.01)
    assert replace(gpt, tied=False).parameters == gpt.parameters + 51200 * h


def test_a_tied_matrix_counts_once_but_its_copy_takes_memory():
    gpt = ps.Transformer(**SMALL, tied=True)
    untied = replace(gpt, tied=False)
    assert untied.parameters - gpt.parameters == 120
    assert gpt.profile(1, 1) == untied.profile(1, 1)
    assert (gpt.tied_bytes, untied.tied_bytes) == (240, 0)
    assert replace(gpt, tensor_parallel=3).tied_bytes == 80


@pytest.mark.parametrize("name", KORTHIKANTI)
def test_activation_bytes_of_korthikanti(name):
    for t in (1, 8):
        gpt = korthikanti(name, tensor_parallel=t)
        s, b, h, a = gpt.sequence, gpt.microbatch, gpt.hidden, gpt.heads
        layer = gpt.rows()[1]
        assert layer.stash_bytes == s * b * h * (10 + 24 / t) + 5 * a * s * s * b / t
        assert layer.selective_stash_bytes == s * b * h * (10 + 24 / t)
        assert layer.wgrad_stash_bytes == s * b * h * (8 + 24 / t)
        assert layer.output_bytes == 2 * s * b * h
        parallel = replace(gpt, sequence_parallel=True)
        embedding, layer, head = parallel.rows()
        assert layer.stash_bytes == s * b * h / t * 34 + 5 * a * s * s * b / t
        assert layer.selective_stash_bytes == 34 * s * b * h / t
        assert layer.wgrad_stash_bytes == 32 * s * b * h / t
        assert layer.output_bytes == 2 * s * b * h / t
        # Section 4.3: s b h p / t on the first stage; 4sbh/t (1 + v/h) on the last.
        assert embedding.stash_bytes == s * b * h / t
        assert head.stash_bytes == pytest.approx(4 * s * b * h / t * (1 + 51200 / h), rel=1e-12)


@pytest.mark.parametrize("name", KORTHIKANTI)
def test_flops_of_an_iteration_by_korthikanti(name):
    gpt = korthikanti(name)
    s, h, layers = 2048, gpt.hidden, gpt.layers
    batch = KORTHIKANTI[name][4]
    embedding, layer, head = gpt.rows()
    each = layers * sum(layer.flops) + sum(head.flops)
    model = 72 * batch * layers * s * h**2 * (1 + s / (6 * h) + 51200 / (12 * h * layers))
    assert batch / gpt.microbatch * each == pytest.approx(model, rel=1e-12)
    assert gpt.flops - each == sum(embedding.flops) == 3 * gpt.tokens * h
    # Full recompute repeats the forward of all layers.
    full = 96 * batch * layers * s * h**2 * (1 + s / (6 * h) + 51200 / (16 * layers * h))
    repeated = each + layers * layer.flops.forward
    assert batch / gpt.microbatch * repeated == pytest.approx(full, rel=1e-12)
    # Selective recompute repeats 4bs^2 h a layer, which the paper says and which makes 2s/9h;
    # its formula has s/3h, as if it were three times as much.
    selective = each + 3 * layers * layer.rebuilt_flops
    published = 72 * batch * layers * s * h**2 * (1 + s / (3 * h) + 51200 / (12 * h * layers))
    assert batch / gpt.microbatch * selective == pytest.approx(published, rel=1e-12)


def test_table_1_of_the_zero_bubble_paper():
    gpt = ps.Transformer(
        layers=22, hidden=2304, heads=24, vocabulary=50304, sequence=1024, microbatch=6
    )
    b, s, h = 6, 1024, 2304
    layer = gpt.rows()[1]
    assert layer.flops == (
        b * s * h * (24 * h + 4 * s),
        b * s * h * (24 * h + 8 * s),
        b * s * h * (24 * h),
    )
    assert layer.wgrad_stash_bytes == 32 * s * b * h
    assert layer.stash_bytes == s * b * (34 * h + 5 * 24 * s)


def test_times_are_flops_over_what_the_device_does():
    profile = replace(LLAMA, tensor_parallel=8).profile(peak_tflops=989, efficiency=0.4)
    _, layer, head = LLAMA.rows()
    rate = 989e12 * 0.4 * 8
    for times, part in (
        (profile.forward_ms, 0),
        (profile.input_grad_ms, 1),
        (profile.weight_grad_ms, 2),
    ):
        assert times[1:81] == pytest.approx([1e3 * layer.flops[part] / rate] * 80, rel=1e-12)
        assert times[81] == pytest.approx(1e3 * head.flops[part] / rate, rel=1e-12)
    assert profile.selective_ms[1] == pytest.approx(1e3 * 4 * 8192**3 / rate, rel=1e-12)
    assert profile.selective_ms[0] == profile.selective_ms[81] == 0
    assert profile.labels["kind"] == ("embedding", *["layer"] * 80, "head")
    pipe = profile.split([21, 20, 20, 21])
    assert pipe.stages[3].name == "layer 60..head"
    assert pipe.source == "estimated from FLOPs at 989 TFLOP/s x 0.4"
    assert str(pipe).endswith(f"\nsource: {pipe.source}")
    assert [stage.output_bytes for stage in pipe.stages] == [2 * 8192 * 8192] * 3 + [0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "layers = 0 is not a whole number of at least 1"),
        ({"hidden": 12.0}, "hidden = 12.0 is not a whole number"),
        ({"ffn": -1}, "ffn = -1 is not a whole number of at least 1"),
        ({"heads": 5}, "hidden = 12 is no multiple of heads = 5"),
        ({"kv_heads": 4}, "heads = 6 is no multiple of kv_heads = 4"),
        ({"tensor_parallel": 4}, "heads = 6 is no multiple of tensor_parallel = 4"),
        (
            {"kv_heads": 3, "tensor_parallel": 2},
            "kv_heads = 3 is no multiple of tensor_parallel = 2",
        ),
        ({"ffn": 7, "tensor_parallel": 2}, "ffn = 7 is no multiple of tensor_parallel = 2"),
        (
            {"tensor_parallel": 3, "sequence_parallel": True},
            "sequence = 4 is no multiple of tensor_parallel = 3",
        ),
    ],
)
def test_impossible_shapes_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        ps.Transformer(**SMALL | change)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 0.5), "peak_tflops = 0 is not a number from"),
        ((312, 50), "efficiency = 50 is not a number from 10.-9 to 1$"),
        ((312, 0.5, -1), "memory_gb_s = -1 is not a number from"),
        (("312", 0.5), "peak_tflops = '312' is not"),
    ],
)
def test_impossible_devices_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        ps.Transformer(**SMALL).profile(*arguments)


def test_what_is_shown_names_the_tensor_parallel_ranks():
    screen = str(korthikanti("22B", tensor_parallel=8, tied=True)).splitlines()
    assert screen[0].startswith("transformer: 48 layers, hidden 6144, ffn 24576, 64 heads, 64 of")
    assert "vocabulary 51200 tied" in screen[1]
    assert screen[1].endswith("4 x 2048 tokens; bytes of one of 8 tensor-parallel ranks")
    assert screen[2].startswith("22.07 billion parameters, 44.15 GB; 1144 TFLOP")
    assert screen[5].split()[:2] == ["layer", "48"]
    assert screen[5].split()[-5:] == ["113.3", "1325.4", "654.3", "553.6", "100.7"]


class TestRecomputeOfKorthikanti:
    """Table 4: one layer of the 22B model, 8 tensor-parallel ranks, A100 [ms]."""

    FORWARD, BACKWARD = 7.7, 11.9
    FULL, SELECTIVE = 19.5 - 11.9, 13.2 - 11.9  # what the backward takes longer

    def layer(self, efficiency, memory_gb_s=None):
        gpt = korthikanti("22B", tensor_parallel=8)
        profile = gpt.profile(312, efficiency, memory_gb_s)
        times = (profile.forward_ms, profile.input_grad_ms, profile.weight_grad_ms)
        return [column[1] for column in (*times, profile.selective_ms)]

    def test_full_recompute_of_the_measured_layer_adds_its_forward(self):
        measured = ps.LayerProfile((self.FORWARD,), (self.BACKWARD,), recompute_ms=(self.FORWARD,))
        backward = float(measured.split([1]).stages[0].cost(ps.Kind.B))
        assert backward == pytest.approx(self.BACKWARD + self.FULL, rel=0.01)  # 19.6 and 19.5

    def test_from_flops_and_the_bandwidth_of_the_memory(self):
        # An A100's 312 TFLOP/s and 2039 GB/s; 45.9 % of the first give the measured forward.
        forward, _, _, selective = self.layer(0.459, memory_gb_s=2039)
        assert forward == pytest.approx(self.FORWARD, rel=0.002)
        assert forward == pytest.approx(self.FULL, rel=0.1)
        assert selective == pytest.approx(self.SELECTIVE, rel=0.1)

    def test_the_step_with_full_recompute_from_flops_alone(self):
        forward, input_grad, weight_grad, _ = self.layer(0.408)
        step = forward + input_grad + weight_grad
        published = (self.FORWARD + self.BACKWARD + self.FULL) / (self.FORWARD + self.BACKWARD)
        assert (step + forward) / step == pytest.approx(4 / 3)
        assert (step + forward) / step == pytest.approx(published, rel=0.1)  # 1.333 and 1.388
        # As a share of the step it is 33 % and 39 %: the measured backward takes 1.55 forwards,
        # not 2.
        assert forward / step == pytest.approx(self.FULL / (self.FORWARD + self.BACKWARD), rel=0.15)

    def test_flops_alone_say_too_little_of_selective_recompute(self):
        # Softmax and dropout take hardly a FLOP and most of the time: 0.4 of 1.3 ms.
        forward, input_grad, weight_grad, selective = self.layer(0.408)
        assert selective == pytest.approx(0.405, abs=0.005)
        step = forward + input_grad + weight_grad
        published = (self.FORWARD + self.BACKWARD + self.SELECTIVE) / (self.FORWARD + self.BACKWARD)
        assert (step + selective) / step == pytest.approx(published, rel=0.1)  # 1.018 and 1.066


# Korthikanti et al. 2022, Table 5: seconds of an iteration with full and with selective
# recompute (the latter with sequence parallelism), and chunks a rank.
ITERATIONS = {
    "22B": (1.42, 1.10, 1),
    "175B": (18.13, 13.75, 3),
    "530B": (49.05, 37.83, 3),
    "1T": (94.42, 71.49, 1),
}


@pytest.mark.parametrize("name", ITERATIONS)
def test_selective_recompute_saves_a_fifth_to_a_quarter_of_an_iteration(name):
    full_s, selective_s, chunks = ITERATIONS[name]
    ranks, batch = KORTHIKANTI[name][3], KORTHIKANTI[name][4]
    gpt = korthikanti(name, tensor_parallel=8)
    profile = gpt.profile(312, 0.459, memory_gb_s=2039)
    stages = ranks * chunks
    each = [gpt.layers // stages] * stages
    each[0] += 1
    each[-1] += 1

    def iteration(repeated):
        pipe = replace(profile, recompute_ms=repeated).split(each, ranks=ranks)
        schedule = "interleaved" if chunks > 1 else "1f1b"
        return ps.simulate(pipe, schedule, batch // gpt.microbatch, engine="replay").makespan

    layers_only = [0.0, *profile.forward_ms[1:-1], 0.0]
    ratio = iteration(layers_only) / iteration(profile.selective_ms)
    assert ratio == pytest.approx(full_s / selective_s, rel=0.03)  # measured 1.29 to 1.32
