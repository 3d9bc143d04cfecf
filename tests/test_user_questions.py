"""Questions that real users asked in public threads, with the right answers.

The comments name the thread; where its costs were left open, F = 1 and B = 2 a layer.
"""

import pkgutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import pipesim as ps
from pipesim.cli import build_parser
from pipesim.config.sections import SECTIONS
from pipesim.schedules.families.registry import FAMILIES
from pipesim.schedules.program.lowering import PROTOCOLS
from tests.schedules import theory


def step(forward, backward, m, schedule="1f1b", **options):
    return ps.simulate(ps.Pipeline.from_costs(forward, backward, **options), schedule, m)


def layers(*counts, head=0, m, schedule="1f1b"):
    """Return the run of so many equal layers a stage, F = 1 and B = 2, a head on the last."""
    loads = [*counts[:-1], counts[-1] + head]
    return step(loads, [2 * load for load in loads], m, schedule)


def equal_layers(count):
    return ps.LayerProfile(forward_ms=[1.0] * count, backward_ms=[2.0] * count)


def test_30_layers_on_4_stages_must_not_lose_two():  # NVIDIA/Megatron-LM#1304
    with pytest.raises(ValueError, match=r"places 28 layers, but the profile has 30: 2 would be"):
        equal_layers(30).split([7, 7, 7, 7])
    counts = ps.min_max_split([1.0] * 30, 4)
    assert (max(counts), sum(counts)) == (8, 30)
    times = {counts: layers(*counts, m=8).makespan for counts in [(8, 8, 7, 7), (7, 7, 8, 8)]}
    assert times[8, 8, 7, 7] < times[7, 7, 8, 8]  # larger stages first


@pytest.mark.parametrize(("count", "split", "built"), [(48, [11, 13], 24), (20, [1], 1)])
def test_a_split_that_builds_half_the_model(count, split, built):  # Megatron-LM#2718, #1778
    with pytest.raises(ValueError, match=f"places {built} layers, but the profile has {count}"):
        equal_layers(count).split(split)


def test_7_layers_on_2_stages():  # NVIDIA/Megatron-LM#381
    assert layers(3, 4, m=8).makespan == 105
    assert layers(4, 3, m=8).makespan == 102
    assert layers(3, 4, head=1, m=8).makespan == 129
    assert layers(4, 3, head=1, m=8).makespan == 108
    peaks = {(4, 3): [8, 3], (3, 4): [6, 4]}
    for counts, expected in peaks.items():
        held = layers(*counts, m=8).ranks.peak_in_flight
        assert (held * np.array(counts)).tolist() == expected


def test_remainder_layers_first_or_last():  # Oneflow-Inc/libai#225
    times = {(2, 2, 2, 3, 3): 207, (3, 3, 2, 2, 2): 198, (3, 2, 2, 2, 3): 207}
    for counts, expected in times.items():
        assert layers(*counts, m=20).makespan == expected
    for counts, expected in {(2, 2, 2, 3, 3): 10, (3, 3, 2, 2, 2): 15}.items():
        assert layers(*counts, m=20).ranks.peak_in_flight[0] * counts[0] == expected


def test_the_same_bottleneck_is_not_the_same_time():  # deepspeedai/DeepSpeed#4312
    times = {(2, 2, 1, 0): 55, (2, 1, 1, 1): 51, (1, 1, 1, 2): 57}
    for counts, expected in times.items():
        run = ps.simulate(equal_layers(5).split(counts), "1f1b", 8)
        assert run.makespan == expected
    assert layers(2, 2, 1, 0, m=8).ranks.bubble_fraction[3] == 1.0


def test_empty_stages():  # deepspeedai/DeepSpeed#5078
    assert layers(*[3] * 14, 0, 0, m=32).makespan == 405
    assert layers(*[3] * 10, *[2] * 6, m=32).makespan == 387
    assert layers(*[3] * 14, m=32).makespan == 405


def test_a_heavier_last_stage():  # deepspeedai/DeepSpeed#2974
    run = step([1, 1, 1, 1.5], [2, 2, 2, 3], 32)
    assert (run.makespan, run.lower_bound) == (153, 153)
    assert run.bubble_fraction == pytest.approx(0.294, abs=5e-4)
    assert run.closed_form == pytest.approx(0.0857, abs=5e-5)
    assert step([1] * 4, [2] * 4, 32).makespan == 105


def test_weighted_cut():  # bigscience-workshop/Megatron-DeepSpeed#186
    weights = [0, 2, 0, 1, 1, 1, 1, 0, 0, 2, 0]
    profile = ps.LayerProfile(forward_ms=weights, backward_ms=[2 * w for w in weights])
    run = ps.simulate(ps.partition(profile, 4), "1f1b", 16)
    assert [stage.forward_ms for stage in run.pipeline.stages] == [2, 2, 2, 2]
    assert run.makespan == 114
    assert layers(3, 1, 1, 3, m=16).makespan == 159


def test_61_layers_on_8_stages():  # pytorch/torchtitan#963
    run = layers(*[7] * 7, 12, m=32)
    assert run.makespan == 1299
    assert run.bubble_fraction == pytest.approx(0.436, abs=5e-4)
    front = layers(*[8] * 5, *[7] * 3, m=32)
    assert front.makespan == 918
    assert front.bubble_fraction == pytest.approx(0.203, abs=5e-4)
    assert layers(*[7] * 3, *[8] * 5, m=32).makespan == 927


def test_two_ratios_share_one_name():  # paiml/entrenar#135
    run = step([1] * 4, [2] * 4, 8)
    assert run.bubble_ratio == pytest.approx(0.375)
    assert run.bubble_fraction == pytest.approx(0.2727, abs=5e-5)


def test_without_microbatches_all_but_one_stage_idles():  # pentium3/sys_reading#259
    assert step([1] * 4, [2] * 4, 1).bubble_fraction == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("size", "expected"), [(1, 319.5), (2, 292.5), (4, 310.5), (8, 382.5), (16, 544.5)]
)
def test_a_global_batch_of_64_in_microbatches_of_some_size(size, expected):
    # ISEEKYAN/verl_megatron_practice#9: a forward takes 0.5 + the size of the micro-batch.
    m = ps.batch_sizes(global_batch=64, microbatch_size=size, replicas=1).microbatches
    assert step([0.5 + size] * 8, [2 * (0.5 + size)] * 8, m).makespan == expected


def test_throughput_flat_although_the_bubble_falls():
    # marin-community/marin#6532: 8077 and 7987 tokens/s at m = 8 and 16, 8 ranks. The closed form
    # promises 1.304 x; a fixed cost of 0.0586 of the whole work for every stage call explains it.
    def time(m, overhead=0.0):
        return step(
            [1 / (3 * m)] * 8, [2 / (3 * m)] * 8, m, "gpipe", overhead_ms=overhead / 2
        ).makespan

    assert time(8) / time(16) == pytest.approx(1.3043, abs=5e-5)
    assert time(8, 0.0586) / time(16, 0.0586) == pytest.approx(7987 / 8077, rel=5e-4)


def test_under_20_percent_with_5_stages_needs_17_microbatches():  # dylanyunlon/Neuron_SP#245
    assert ps.bubble_formula(5, 8) == pytest.approx(0.3333, abs=5e-5)
    assert ps.bubble_formula(5, 17) == pytest.approx(0.1905, abs=5e-5)
    assert ps.bubble_formula(5, 16) >= 0.2
    run = step([1, 1, 1, 1, 2], [2, 2, 2, 2, 4], 8)
    fast = run.ranks.bubble_fraction[:4]
    assert (fast >= 1 - 1 / 2).all()  # fast ranks must idle: 1 - t/max t at least


def test_four_times_as_many_microbatches_as_stages():  # jasperzhong/read-papers-and-code#168
    idle = [step([1] * p, [2] * p, 4 * p, "gpipe").bubble_fraction for p in (2, 4, 8, 16)]
    assert idle == pytest.approx([0.1111, 0.1579, 0.1795, 0.1899], abs=5e-5)


def test_one_microbatch_on_8_ranks_is_legal():  # huggingface/nanotron#347
    assert step([1] * 8, [2] * 8, 1).makespan == 24


def test_the_most_that_any_schedule_can_gain():
    # sail-sg/zero-bubble-pipeline-parallelism#24: 13B, 4 ranks, 64 micro-batches
    assert step([1] * 4, [2] * 4, 64).bubble_fraction == pytest.approx(0.0448, abs=5e-5)


def test_full_checkpointing_1f1b():  # pytorch/torchtitan#773; B = 3: the forward runs again
    assert step([1] * 8, [3] * 8, 32).makespan == 156


@pytest.mark.parametrize(
    ("latency", "plain", "eager"), [(0.0, 117, 117), (0.1, 123.8, 118.4), (0.3, 137.4, 121.2)]
)
def test_latency_is_no_fill_cost_only(latency, plain, eager):  # NVIDIA/Megatron-LM#4385
    runs = {
        name: step([1] * 8, [2] * 8, 32, name, latency_ms=latency)
        for name in ("1f1b", "1f1b_eager")
    }
    assert runs["1f1b"].makespan == pytest.approx(plain)
    assert runs["1f1b_eager"].makespan == pytest.approx(eager)
    assert runs["1f1b"].ranks.peak_in_flight.tolist() == [8, 7, 6, 5, 4, 3, 2, 1]
    assert runs["1f1b_eager"].ranks.peak_in_flight.tolist() == [15, 13, 11, 9, 7, 5, 3, 1]


@pytest.mark.parametrize(("c", "expected"), [(0.02, 120.12), (0.05, 124.8), (0.1, 132.6)])
def test_every_op_pays_for_its_transfers(c, expected):  # NVIDIA-NeMo/Speech#9482
    assert step([1] * 8, [2] * 8, 32, overhead_ms=2 * c).makespan == pytest.approx(expected)


def test_the_first_of_8_equal_stages_holds_the_most():  # deepspeedai/DeepSpeed#4477
    assert step([1] * 8, [2] * 8, 16).ranks.peak_in_flight.tolist() == [8, 7, 6, 5, 4, 3, 2, 1]


def test_memory_is_told_by_rank_and_never_as_a_mean():  # NVIDIA-NeMo/Megatron-Bridge#5077
    profile = ps.LayerProfile(forward_ms=[1.0] * 8, backward_ms=[2.0] * 8, param_bytes=[10] * 8)
    run = ps.simulate(profile.split([1, 2, 2, 3]), "1f1b", 8)
    assert run.ranks.param_bytes.tolist() == [10, 20, 20, 30]
    assert run.peak_memory == (10, 20, 20, 30)


@pytest.mark.parametrize(
    ("schedule", "p", "m", "chunks", "held"),
    [
        ("1f1b", 8, 32, 1, [8, 7, 6, 5, 4, 3, 2, 1]),
        ("1f1b", 8, 3, 1, [3, 3, 3, 3, 3, 3, 2, 1]),
        ("gpipe", 8, 32, 1, [32] * 8),
        ("interleaved", 4, 8, 2, [11, 9, 7, 5]),
    ],
)
def test_what_is_in_flight_comes_from_the_schedule(schedule, p, m, chunks, held):
    # ROCm/Megatron-LM#162: an estimator with one micro-batch in flight.
    pipe = ps.Pipeline.from_costs(
        1.0, 2.0, stages=p * chunks, ranks=p, stash_bytes=10, param_bytes=1000
    )
    run = ps.simulate(pipe, schedule, m)
    assert run.peak_memory == tuple(1000 * chunks + 10 * n for n in held)


def test_the_memory_of_7_layers_on_2_stages_and_of_12_on_5():
    # NVIDIA/Megatron-LM#381, Oneflow-Inc/libai#225: time and memory pull opposite ways; a layer's
    # activation is 10 bytes.
    profile = ps.LayerProfile(forward_ms=[1.0] * 12, backward_ms=[2.0] * 12, stash_bytes=[10] * 12)
    peaks = {
        counts: ps.simulate(profile.split(counts), "1f1b", 20).peak_memory
        for counts in [(2, 2, 2, 3, 3), (3, 3, 2, 2, 2)]
    }
    assert peaks[2, 2, 2, 3, 3][0] == 100
    assert peaks[3, 3, 2, 2, 2][0] == 150
    seven = ps.LayerProfile(forward_ms=[1.0] * 7, backward_ms=[2.0] * 7, stash_bytes=[10] * 7)
    assert ps.simulate(seven.split([4, 3]), "1f1b", 8).peak_memory == (80, 30)
    assert ps.simulate(seven.split([3, 4]), "1f1b", 8).peak_memory == (60, 40)


def test_slow_devices_first_hold_the_most():  # dylanyunlon/Neuron_SP#271
    slow_first = {"speed": [1, 1, 2, 2], "memory_bytes": [16, 16, 32, 32], "stash_bytes": 5}
    pipe = ps.Pipeline.from_costs(2.0, 4.0, stages=4, **slow_first)
    with pytest.raises(ps.MemoryLimitError) as caught:
        ps.simulate(pipe, "1f1b", 8)
    assert (caught.value.rank, caught.value.op, caught.value.bytes) == (0, "0F3", 20)
    run = ps.simulate(pipe, "1f1b", 8, memory_limit=False)
    assert (run.makespan, run.peak_memory) == (56, (20, 15, 10, 5))


def test_recompute_on_the_early_stages_only():  # IEIT-Yuan/Yuan-2.0#18
    # Bytes in tenths of a layer's full activation; recompute keeps one tenth and costs one F.
    def plan(counts, recompute):
        profile = replace(equal_layers(32), stash_bytes=(10,) * 32)
        early = range(sum(n for n, again in zip(counts, recompute, strict=True) if again))
        pipe = profile.recompute("full", early, kept_share=0.1).split(counts)
        return ps.simulate(pipe, "1f1b", 16)

    none = plan((8, 8, 8, 8), (False,) * 4)
    full = plan((8, 8, 8, 8), (True,) * 4)
    some = plan((7, 7, 9, 9), (True, True, False, False))
    assert [run.makespan for run in (none, full, some)] == [456, 608, 528]
    assert none.ranks.peak_stash_bytes.tolist() == [320, 240, 160, 80]
    # What is kept, and the nine tenths of the one layer that is being rebuilt.
    assert full.ranks.peak_stash_bytes.tolist() == [32 + 9, 24 + 9, 16 + 9, 8 + 9]
    assert some.ranks.peak_stash_bytes.tolist() == [28 + 9, 21 + 9, 180, 90]


@pytest.mark.parametrize(
    ("counts", "trained", "frozen"),
    [
        ((6, 6, 6, 6), 594, 420),
        ((2, 7, 7, 8), 450, 438),
        ((3, 7, 7, 7), 477, None),
        ((4, 6, 7, 7), None, 393),
        ((4, 7, 7, 6), None, 390),
    ],
)
def test_a_vision_encoder_on_the_first_stage(counts, trained, frozen):
    # NVIDIA/Megatron-LM#806; frozen: pytorch/torchtitan, pipeline_parallel.py, pipeline_vlm
    encoder = 6
    forward = [counts[0] + encoder, *counts[1:]]
    if trained is not None:
        assert step(forward, [2 * f for f in forward], 16).makespan == trained
    if frozen is not None:  # a frozen encoder has no backward
        assert step(forward, [2 * n for n in counts], 16).makespan == frozen


def test_packed_inputs_need_a_cost_for_every_microbatch():  # pytorch/torchtitan#431
    length = np.array([1.0, 3.0, 2.0, 1.0])
    forward = np.tile(0.5 * length + 0.1 * length**2, (4, 1))
    run = step(forward, 2 * forward, None)
    mean = step([forward.mean()] * 4, [2 * forward.mean()] * 4, 4)
    assert run.schedule.microbatches == 4
    assert run.makespan > mean.makespan


def test_prefill_in_11_chunks():  # tenstorrent/tt-metal#48246
    pipe = ps.Pipeline.from_costs([412, 391, 413, 439])
    run = ps.simulate(pipe, "gpipe_forward", 11)
    assert run.makespan == 6045
    assert run.rank_times.busy.argmax() == 3


def test_32_layers_on_one_fast_and_four_slow_devices():  # dylanyunlon/Neuron_SP#244
    speed = [989, 155, 155, 155, 155]

    def bottleneck(counts):
        pipe = equal_layers(32).split(counts, speed=speed)
        run = ps.simulate(pipe, "gpipe_forward", 1)
        return run.rank_times.busy.max()

    assert bottleneck([9, 7, 7, 5, 4]) == pytest.approx(0.0452, abs=5e-5)
    assert bottleneck([7, 7, 6, 6, 6]) == pytest.approx(0.0452, abs=5e-5)
    assert bottleneck([20, 3, 3, 3, 3]) == pytest.approx(0.0202, abs=5e-5)


def test_slow_devices_first_or_last():  # dylanyunlon/Neuron_SP#271
    last, first = step([1, 1, 2, 2], [2, 2, 4, 4], 8), step([2, 2, 1, 1], [4, 4, 2, 2], 8)
    assert (last.makespan, first.makespan) == (60, 56)
    assert step([1.5] * 4, [3] * 4, 8).makespan == 49.5
    assert last.ranks.bubble_fraction.tolist() == pytest.approx([0.6, 0.6, 0.2, 0.2])
    assert first.ranks.bubble_fraction.round(2).tolist() == [0.14, 0.14, 0.57, 0.57]


@pytest.mark.parametrize(("slow", "ratio"), [(0, 1.0641), (3, 1.0718), (7, 1.0821)])
def test_one_stage_a_tenth_slower(slow, ratio):  # AI-Infra-Team/awesome-papers#53
    factor = [1.1 if stage == slow else 1.0 for stage in range(8)]
    run = step(factor, [2 * f for f in factor], 32)
    assert run.makespan / 117 == pytest.approx(ratio, abs=5e-5)


@pytest.mark.parametrize(("sigma", "mean"), [(0.05, 1.03), (0.1, 1.061), (0.2, 1.125)])
def test_independent_noise_on_every_op(sigma, mean):  # the same thread; 40 seeds
    random = np.random.default_rng(7)
    steps = []
    for _ in range(40):
        forward, backward = (
            base * np.maximum(random.normal(1.0, sigma, (8, 32)), 0.0) for base in (1.0, 2.0)
        )
        steps.append(step(forward, backward, None).makespan)
    assert np.mean(steps) / 117 == pytest.approx(mean, abs=0.006)


@pytest.mark.parametrize(("m", "speedup"), [(4, 1.714), (32, 2.743)])
def test_speedup_of_gpipe_with_recompute_at_fixed_work(m, speedup):  # kakaobrain/torchgpipe#18
    one_device_without_recompute = 4 * m * (1 + 2)
    pipe = ps.Pipeline.from_costs(1, 2, stages=4).recompute("full")
    run = ps.simulate(pipe, "gpipe", m)
    assert one_device_without_recompute / run.makespan == pytest.approx(speedup, abs=5e-4)


@pytest.mark.parametrize(("m", "speedup"), [(4, 2.0), (8, 2.546), (32, 3.201), (100, 3.399)])
def test_the_planners_speedup_is_a_limit(m, speedup):  # msr-fiddle/pipedream#50
    run = step([0.584 / 3] * 4, [0.584 * 2 / 3] * 4, m)
    assert 2.0448 * m / run.makespan == pytest.approx(speedup, abs=1e-3)


def interleaved(p, v, m, forward=1.0, backward=2.0, **options):
    keys = ("latency_ms", "overhead_ms")
    costs = {key: options.pop(key) for key in keys if key in options}
    pipe = ps.Pipeline.from_costs(forward, backward, stages=p * v, ranks=p, **costs)
    return ps.simulate(pipe, "interleaved", m, options=options)


def test_interleaving_pays_with_two_ranks():  # NVIDIA/Megatron-LM#750
    assert step([1] * 2, [2] * 2, 8).bubble_fraction == pytest.approx(0.1111, abs=5e-5)
    assert interleaved(2, 2, 8).bubble_fraction == pytest.approx(0.0588, abs=5e-5)


@pytest.mark.parametrize(("v", "idle"), [(2, 0.2), (3, 0.1429)])
def test_under_20_percent_with_8_microbatches_needs_3_chunks(v, idle):  # Neuron_SP#245
    with pytest.raises(ps.ScheduleError, match=r"m mod N = 3\. Nearest legal m: 5 or 10"):
        interleaved(5, v, 8)
    run = interleaved(5, v, 8, grouping="pytorch")
    assert run.bubble_fraction == pytest.approx(idle, abs=5e-5)


@pytest.mark.parametrize(
    ("latency", "long", "short"),
    [(0.0, 57, 57), (0.1, 58.4, 60.0), (0.25, 60.5, 64.5), (0.5, 64, 72)],
)
def test_why_the_interleaved_warm_up_has_a_factor_2(latency, long, short):  # Megatron-LM#675
    runs = [interleaved(4, 2, 8, latency_ms=latency, warm_up=w) for w in ("long", "short")]
    assert [run.makespan for run in runs] == pytest.approx([long, short], rel=1e-9)
    held = [run.ranks.peak_in_flight.tolist() for run in runs]
    assert held == [[11, 9, 7, 5], [8, 7, 6, 5]]


def test_the_interleaved_warm_up_of_the_first_and_the_last_rank():  # Megatron-LM#169
    schedule = ps.build_schedule("interleaved", 4, 8)
    before = [
        [op.kind for op in schedule.order(rank)].index(ps.Kind.B) - 1  # the first of the pairs
        for rank in range(4)
    ]
    assert before == [10, 8, 6, 4]


@pytest.mark.parametrize("m", [4, 6, 8, 10, 12])
def test_m_need_be_no_multiple_of_p_times_v(m):  # NVIDIA-BioNeMo/bionemo-recipes#286
    if m in (4, 8, 12):
        assert interleaved(4, 2, m).bubble_fraction == pytest.approx(3 / (2 * m + 3))
        return
    with pytest.raises(ps.ScheduleError, match=f"p = 4, N = 4, m = {m}, m mod N = 2. Nearest"):
        interleaved(4, 2, m)


def test_interleaving_in_groups_of_other_sizes():  # pytorch/pytorch#129597
    run = interleaved(4, 2, 10, 0.5, 1.0, grouping="pytorch")
    assert run.makespan == 34.5
    assert run.bubble_fraction == pytest.approx(3 / 23)
    assert interleaved(4, 2, 3, 0.5, 1.0, grouping="pytorch").bubble_fraction == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("head", "uniform", "moved"), [(0, 1002, 1075), (1, 1098, 1075), (2, 1194, 1101)]
)
def test_a_layer_less_on_the_last_chunk(head, uniform, moved):  # NeMo/Megatron-Bridge#5391
    layouts = {uniform: [2] * 40, moved: [2] * 35 + [3, 2, 2, 2, 1]}
    for makespan, layer_counts in layouts.items():
        assert sum(layer_counts) == 80
        loads = [*layer_counts[:-1], layer_counts[-1] + head]
        run = interleaved(8, 5, 32, loads, [2 * load for load in loads])
        assert run.makespan == pytest.approx(makespan, rel=1e-9)


@pytest.mark.parametrize(("last", "makespan"), [([0, 2], 162.3), ([1, 1], 114.3)])
def test_four_heads_on_one_stage_or_two(last, makespan):  # NVIDIA/Megatron-LM#5318
    loads = [0.1, *[1] * 13, *last]
    run = interleaved(8, 2, 16, loads, [2 * load for load in loads])
    assert run.makespan == pytest.approx(makespan, rel=1e-9)


@pytest.mark.parametrize(
    ("c", "steps"),
    [
        (0.02, [120.12, 112.18, 112.05, 119.67]),
        (0.05, [124.8, 120.7, 128.25, 151.22]),
        (0.1, [132.6, 134.9, 155.25, 203.82]),
    ],
)
def test_how_many_chunks_where_every_op_pays_for_its_transfers(c, steps):  # NeMo/Speech#9482
    runs = [interleaved(8, v, 32, 1 / v, 2 / v, overhead_ms=2 * c) for v in (1, 2, 4, 8)]
    assert [run.makespan for run in runs] == pytest.approx(steps, abs=0.006)


def test_full_recompute_turns_memory_round():  # sail-sg/zero-bubble-pipeline-parallelism#74
    # Tenths: F keeps 1, I takes 9 more (the recomputed activation), W gives all of it back.
    pipe = ps.Pipeline.from_costs(
        1.0, input_grad=2.0, weight_grad=1.0, stages=4, stash_bytes=1, input_grad_frees_bytes=-9
    )
    assert list(ps.simulate(pipe, "zb_h1", 8).ranks.peak_stash_bytes) == [13, 22, 31, 40]
    # Without recompute all stages peak at p.
    pipe = ps.Pipeline.from_costs(
        1.0, input_grad=1.0, weight_grad=1.0, stages=4, stash_bytes=10, input_grad_frees_bytes=0
    )
    assert list(ps.simulate(pipe, "zb_h1", 8).ranks.peak_stash_bytes) == [40, 40, 40, 40]


def test_46_layers_in_a_v():  # sail-sg/zero-bubble-pipeline-parallelism#9
    # With embedding and head as a layer each: 48 over 32 chunks is 1.5, over 16 it is 3.
    ones = [1.0] * 48
    profile = ps.LayerProfile(forward_ms=ones, input_grad_ms=ones, weight_grad_ms=ones)
    with pytest.raises(ValueError, match="places 32 layers, but the profile has 48"):
        profile.split([1] * 32)
    pipe = profile.split([3] * 16, ranks=8, placement="v_shape")
    assert ps.simulate(pipe, "zb_v", 16).span_bubble == pytest.approx(0, abs=1e-12)


def test_a_v_has_its_own_owners():  # pytorch/torchtitan#774
    assert ps.build_schedule("zb_v", 4, 8).placement.rank_of == (0, 1, 2, 3, 3, 2, 1, 0)


def test_a_split_backward_that_recomputes_twice_is_slower():  # pytorch/torchtitan#773
    # The forward runs again for I, and in that code once more for W: 5 units instead of 4.
    pipe = ps.Pipeline.from_costs(1.0, input_grad=1.0, weight_grad=1.0, stages=8)
    assert ps.simulate(pipe.recompute("full"), "1f1b", 32).makespan == 156
    again = ps.Pipeline.from_costs(1.0, input_grad=1.0, weight_grad=1.0 + 1.0, stages=8)
    assert ps.simulate(again.recompute("full"), "zb_h1", 32).makespan == 174


def test_interleaved_with_receives_that_overlap():  # pytorch/pytorch#172668
    orders = ["0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1", "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"]
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=4, ranks=2)
    assert ps.simulate(pipe, ps.Schedule.from_orders(orders)).makespan == 15


def test_rates_above_the_lower_bound_are_impossible():  # meta-pytorch/torchrec#4585
    run = step([1, 1, 1, 2], [2, 2, 2, 4], 8)
    assert run.lower_bound == 57 == theory.one_f_one_b_makespan([1, 1, 1, 2], [2, 2, 2, 4], 8)


def test_a_barrier_at_the_end_of_the_step_ruins_zero_bubble():
    # sail-sg/zero-bubble-pipeline-parallelism#64
    p, m = 8, 32
    pipe = ps.Pipeline.from_costs(1.0, input_grad=1.0, weight_grad=1.0, stages=p)
    free, all_wait = (
        ps.simulate_step(pipe, "zb_h2", m, training=ps.Training(barrier=barrier))
        for barrier in (False, True)
    )
    assert free.runs[0].span_bubble == pytest.approx(0, abs=1e-12)
    assert free.period_ms == 3 * m  # every rank goes on with its next step: no bubble
    assert all_wait.period_ms == 3 * m + p - 1  # all end with the last
    assert all_wait.ranks.wait_barrier.tolist() == list(range(p - 1, -1, -1))
    # Reductions within a stage are no such barrier: the wait stays away.
    local = ps.Training(replicas=2, latency_ms=0.5, barrier=False)
    assert ps.simulate_step(pipe, "zb_h2", m, training=local).period_ms == 3 * m + 0.5


@pytest.mark.parametrize("culprit", range(4))
def test_the_culprit_waits_least(culprit):  # traceopt-ai/traceml#252
    backward = np.array([293.0, 292.2, 293.0, 293.1])
    backward[culprit] += 200
    pipes = [ps.Pipeline.from_costs([100.0], [ms]) for ms in backward]
    step = ps.simulate_step(pipes, "gpipe", 1, training=ps.Training(replicas=4))
    assert len(set(step.ranks.end)) == 1  # wall times are all the same
    assert step.ranks.wait_reduction.argmin() == culprit
    assert np.sort(step.ranks.wait_reduction)[0] == 0
    assert np.sort(step.ranks.wait_reduction)[1] > 199


@pytest.mark.parametrize(("schedule", "stages", "added"), [("1f1b", 4, 0.5), ("zb_v", 8, 0.0)])
def test_a_tied_embedding_costs_nothing_in_a_v(schedule, stages, added):  # uw-syfi/piper#13
    pipe = ps.Pipeline.from_costs(
        1.0,
        input_grad=1.0,
        weight_grad=1.0,
        stages=stages,
        ranks=4,
        bandwidth_gb_s={(0, 3): 2.0, (3, 0): 2.0},
    )
    training = ps.Training(tied_bytes=1_000_000)  # 0.5 ms
    step = ps.simulate_step(pipe, schedule, 8, training=training)
    assert step.step_ms == step.makespan + added


def test_gradients_are_reduced_once_a_step():  # deepspeedai/DeepSpeed#794
    p, m = 4, 8
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=p, param_bytes=1_000_000)
    training = ps.Training(replicas=2, bandwidth_gb_s=1.0)
    once = ps.simulate_step(pipe, "1f1b", m, training=training)
    assert once.step_ms == 33 + 1
    every = step([1] * p, [2 + 1] * p, m)  # with every backward instead
    assert (every.rank_times.busy - once.runs[0].rank_times.busy).tolist() == [m] * p
    assert every.makespan == 33 + m + p - 1


def test_input_and_output_counted_as_layers():  # pytorch/torchtitan#1103
    # 6 layers and an input and an output that each count as one: 8 over 4 stages, 2 each.
    counts = ps.min_max_split([1.0] * 8, 4)
    assert counts == (2, 2, 2, 2)
    assert [counts[0] - 1, *counts[1:-1], counts[-1] - 1] == [1, 2, 2, 1]
    # What is left over goes to the earliest stages.
    assert ps.min_max_split([1.0] * 10, 4)[0] == 3


def test_61_layers_are_split_with_the_larger_stages_first():  # pytorch/torchtitan#963
    profile = equal_layers(61)
    assert ps.min_max_split([1.0] * 61, 8) == (8, 8, 8, 8, 8, 7, 7, 7)
    remainder_last = [7] * 7 + [12]
    best = ps.refine_split(profile, remainder_last, "1f1b", 32)
    assert best.run.makespan <= 918
    assert sum(best.counts) == 61


def test_42_layers_on_16_stages_have_a_largest_stage_of_3():  # deepspeedai/DeepSpeed#5078
    counts = ps.min_max_split([1.0] * 42, 16)
    assert counts == (3,) * 10 + (2,) * 6
    best = ps.refine_split(equal_layers(42), counts, "1f1b", 32)
    assert best.run.makespan <= 387  # ten of 3, then six of 2


@pytest.mark.parametrize(("encoder_backward", "best"), [(12.0, 450), (0.0, 390)])
def test_the_best_split_around_a_vision_encoder(encoder_backward, best):  # Megatron-LM#806
    # An encoder of 6 forwards as one more layer in front, trained or frozen, and 24 layers.
    profile = ps.LayerProfile(
        forward_ms=[6.0] + [1.0] * 24, backward_ms=[encoder_backward] + [2.0] * 24
    )
    found = ps.best_split(profile, 4, "1f1b", 16)
    assert found.run.makespan <= best
    assert ps.refine_split(profile, [7, 6, 6, 6], "1f1b", 16).run.makespan == found.run.makespan


def test_the_best_split_on_one_fast_and_four_slow_devices():  # dylanyunlon/Neuron_SP#244
    profile = ps.LayerProfile(forward_ms=[1.0] * 32)
    for speeds in ([989, 155, 155, 155, 155], [155, 155, 989, 155, 155]):
        pipe = ps.partition(profile, 5, speed=speeds)
        loads = [stage.forward_ms for stage in pipe.stages]
        assert sorted(loads) == [3, 3, 3, 3, 20]
        assert loads.index(20) == speeds.index(989)
    # Where the fast device has memory for ten layers only, the slow ones must take the others.
    sized = ps.LayerProfile(forward_ms=[1.0] * 32, param_bytes=[1] * 32)
    limits = [10, 32, 32, 32, 32]
    pipe = ps.partition(
        sized, 5, speed=[989, 155, 155, 155, 155], memory_bytes=limits, in_flight=[1] * 5
    )
    assert [stage.param_bytes for stage in pipe.stages] == [10, 6, 6, 5, 5]


def test_the_plan_depends_on_the_bandwidth():  # msr-fiddle/pipedream#29
    # Layers that take equally long; what the first sends is large.
    profile = ps.LayerProfile(
        forward_ms=[1.0] * 4, backward_ms=[2.0] * 4, output_bytes=[10**7, 10**7, 10**5, 10**5]
    )
    fast = ps.best_split(profile, 2, "1f1b", 8, bandwidth_gb_s=1e3)
    slow = ps.best_split(profile, 2, "1f1b", 8, bandwidth_gb_s=1.0)
    assert (fast.counts, slow.counts) == ((2, 2), (3, 1))
    assert all(link.bandwidth_gb_s == 1.0 for link in slow.run.pipeline.links.values())


def test_use_and_peak_memory_of_every_cut_on_one_table():  # pytorch/pytorch#51014
    profile = ps.LayerProfile(
        forward_ms=[1.0] * 4, backward_ms=[2.0] * 4, stash_bytes=[1] * 4, param_bytes=[5] * 4
    )
    rows = {
        (counts, m): ps.simulate(profile.split(counts), "gpipe", m)
        for counts in [(1, 3), (2, 2), (3, 1)]
        for m in (2, 8)
    }
    held = {at: (run.ranks.peak_stash_bytes + run.ranks.param_bytes) for at, run in rows.items()}
    assert held[(2, 2), 8].tolist() == [2 * 8 + 10] * 2
    assert held[(3, 1), 2].tolist() == [3 * 2 + 15, 1 * 2 + 5]
    use = {at: 1 - run.ranks.bubble_fraction for at, run in rows.items()}
    assert use[(2, 2), 8].tolist() == pytest.approx([8 / 9] * 2)
    assert use[(1, 3), 8].tolist() == pytest.approx([24 / 75, 72 / 75])


def test_when_is_zero_bubble_worth_its_memory():
    # sail-sg/zero-bubble-pipeline-parallelism#21: 8 ranks; 1F1B 55 samples/s, ZB-2P 67. If that
    # one is without idle time, 55 / 67 = m / (m + 7).
    m = round(7 * 55 / (67 - 55))
    assert m == 32
    gain = step([1] * 8, [2] * 8, m).bubble_fraction
    assert gain == pytest.approx(0.179, abs=5e-4)
    # Most of that is had by interleaving, in less memory; with many micro-batches there is none.
    assert interleaved(8, 8, m, 1 / 8, 2 / 8).bubble_fraction == pytest.approx(7 / (8 * m + 7))
    assert step([1] * 8, [2] * 8, 512).bubble_fraction == pytest.approx(0.0135, abs=5e-5)
    parts = {"input_grad": 1.0, "weight_grad": 1.0, "stages": 8, "stash_bytes": 10}
    pipe = ps.Pipeline.from_costs(1.0, **parts)
    held = {name: max(ps.simulate(pipe, name, m).peak_memory) for name in ("1f1b", "zb_2p")}
    assert held["1f1b"] == 80
    assert held["zb_2p"] > 1.5 * held["1f1b"]


def test_an_input_gradient_may_take_more_memory_than_it_frees():
    # sail-sg/zero-bubble-pipeline-parallelism#63: what W gives back is what F and I took.
    pipe = ps.Pipeline.from_costs(
        1.0, input_grad=1.0, weight_grad=1.0, stages=2, stash_bytes=10, input_grad_frees_bytes=-3
    )
    memory = ps.simulate(pipe, "zb_h1", 4).memory
    memory["change"] = memory.groupby("rank").activations.diff()
    for kind, change in {"F": 10, "I": 3, "W": -13}.items():
        of_kind = memory[memory.op.str.contains(kind)]
        assert len(of_kind) == 2 * 4
        assert set(of_kind.change) == {change}


@pytest.mark.parametrize(("m", "late", "prompt"), [(8, 36, 33), (16, 60, 57)])
def test_sends_that_are_posted_one_op_late(tmp_path, m, late, prompt):
    # sail-sg/zero-bubble-pipeline-parallelism#73: every hop adds one F to the fill.
    program = ps.lower(ps.build_schedule("1f1b", 4, m), "posted")
    rows = []
    for rank in range(4):
        first, end = program.offsets[rank : rank + 2]
        row = [program.text(number) for number in range(first, end)]
        for i in range(3 - rank):  # the forwards of the warm-up
            row.remove(f"{rank}SEND_F{i}")
            row.insert(row.index(f"{rank}F{i + 1}") + 1, f"{rank}SEND_F{i}")
        rows.append(",".join(row))
    (tmp_path / "late.csv").write_text("\n".join(rows) + "\n")
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=4)
    assert ps.simulate(pipe, tmp_path / "late.csv", protocol="posted").makespan == late
    assert ps.simulate(pipe, "1f1b", m, protocol="posted").makespan == prompt


@pytest.mark.parametrize(("together", "bubble"), [(3, 6), (2, 3)])
def test_one_schedule_in_pictures_of_several_bubbles(together, bubble):
    # Victarry/PP-Schedule-Visualization#1: (p/2 - 1)(F&B + B - 3W), B the whole backward; what
    # an overlapped pair takes is a parameter of its own.
    pipe = ps.Pipeline.from_costs(
        1.0, input_grad=1.0, weight_grad=1.0, stages=8, overlap_ms=float(together)
    )
    run = ps.simulate(pipe, "dualpipe", 20)
    assert max(run.makespan - run.rank_times.busy) == bubble == 3 * (together + 2 - 3)


def test_a_gradient_that_is_taken_late_delays_nothing():
    # deepseek-ai/DualPipe#21: the receiver has other work meanwhile.
    pipe = ps.Pipeline.from_costs(1.0, input_grad=1.0, weight_grad=1.0, stages=8, overlap_ms=3.0)
    run = ps.simulate(pipe, "dualpipe", 20)
    ops = run.trace[run.trace.resource == "compute"]
    late = ops[ops.kind.isin(["B", "I"]) & (ops.start >= ops.ready + 2)]
    assert len(late)
    for op in late.itertuples():  # from when it could run until it does, its rank is at work
        meanwhile = ops[(ops["rank"] == op.rank) & (ops.end > op.ready) & (ops.start < op.start)]
        begin = meanwhile.start.clip(lower=op.ready)
        spans = set(zip(begin, meanwhile.end, strict=True))  # a pair is two rows
        assert sum(end - start for start, end in spans) == op.start - op.ready


OPEN = Path(__file__).parent / "open_questions.md"


def open_rows():
    lines = [line for line in OPEN.read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names_of_everything():
    """Return what pipesim calls its modules, public names, commands, keys and options."""
    names = [module.name for module in pkgutil.walk_packages(ps.__path__, "pipesim.")]
    names += [*ps.__all__, *PROTOCOLS, *FAMILIES]
    names += [option for family in FAMILIES.values() for option in family.options]
    names += [f"{key}.{name}" for key, part in SECTIONS.items() for name in part.__slots__]
    (commands,) = (a for a in build_parser()._actions if a.dest == "command")
    for name, command in commands.choices.items():
        names += [name, *(f"{name} {flag}" for flag in command._option_string_actions)]
    return [name.lower().replace("-", "_") for name in names]


@pytest.mark.parametrize("row", open_rows(), ids=lambda row: row[0])
def test_open_questions_are_still_open(row):
    """What an open question lacks is not there: once it is, the table is to lose the row."""
    words = [word.strip("` ") for word in row[-1].split(",")]
    assert len(row) == 5
    assert all(words)
    found = [name for name in names_of_everything() if any(word in name for word in words)]
    assert not found, f"can {row[0]} be answered now? then with a test instead of this row"


def test_the_names_of_everything_have_what_there_is():
    names = names_of_everything()
    for known in (
        "pipesim.files.layer_csv",
        "refine_split",
        "run.microbatches",
        "warm_up",
        "posted",
    ):
        assert known in names
    assert any("memory_limit" in name for name in names if name.startswith("run __"))


def test_sizes_by_micro_batch_are_refused():  # pytorch/torchtitan#431, an open question
    for key in ("output_bytes", "stash_bytes"):
        with pytest.raises(ValueError, match=key):
            ps.Pipeline.from_costs([[1.0, 2.0]] * 2, [[2.0, 4.0]] * 2, **{key: [[8, 16]] * 2})
