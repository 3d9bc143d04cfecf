"""Layers -> stages: exact against brute force, within memory, on unequal devices, in any order."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipesim as ps
from pipesim.pipeline.components import Device
from pipesim.pipeline.partition.device_order import _swapped, device_order
from pipesim.pipeline.partition.loads import make_problem, stage_loads
from pipesim.pipeline.partition.min_max import compositions, moves
from pipesim.pipeline.partition.partition import fair_split
from pipesim.pipeline.placement import linear_placement, looped_placement, v_placement

amounts = st.integers(0, 12)


@st.composite
def tasks(draw, chunks=1, most_layers=8, most_ranks=4):
    """Draw a profile, devices and in-flight counts, with and without limits and overheads."""
    layers = draw(st.integers(chunks, most_layers))
    ranks = draw(st.integers(1, min(most_ranks, layers // chunks)))

    def table(value, count):
        return draw(st.lists(value, min_size=count, max_size=count))

    profile = ps.LayerProfile(
        forward_ms=table(amounts, layers),
        backward_ms=table(amounts, layers),
        param_bytes=table(amounts, layers),
        stash_bytes=table(amounts, layers),
        rebuilt_bytes=table(st.integers(0, 4), layers),
    )
    speeds = st.sampled_from([0.5, 1.0, 2.0, 4.0])
    limits = st.one_of(st.none(), st.integers(0, 150))
    devices = [
        Device(speed, overhead, limit)
        for speed, overhead, limit in zip(
            table(speeds, ranks),
            table(st.sampled_from([0.0, 0.25, 3.0]), ranks),
            table(limits, ranks),
            strict=True,
        )
    ]
    return profile, devices, table(st.integers(0, 4), ranks * chunks)


def stage_time(profile, device, first, end):
    work = sum(profile.forward_ms[first:end]) + sum(profile.backward_ms[first:end])
    return work / device.speed + 2 * device.overhead_ms


def stage_size(profile, count, first, end):
    stash = sum(profile.stash_bytes[first:end])
    rebuilt = max(profile.rebuilt_bytes[first:end])
    return sum(profile.param_bytes[first:end]) + count * stash + rebuilt


def spans(counts):
    ends = list(itertools.accumulate(counts))
    return zip([0, *ends], ends, strict=False)


def stage_times(profile, devices, counts):
    return [
        stage_time(profile, device, *span)
        for device, span in zip(devices, spans(counts), strict=True)
    ]


def slowest(profile, devices, counts):
    return max(stage_times(profile, devices, counts))


def unevenness(profile, devices, counts):
    return sum(time**2 for time in stage_times(profile, devices, counts))


def fits(profile, placement, devices, in_flight, counts):
    held = [0] * len(devices)
    for rank, count, span in zip(placement.rank_of, in_flight, spans(counts), strict=True):
        held[rank] += stage_size(profile, count, *span)
    return all(
        device.memory_bytes is None or size <= device.memory_bytes
        for device, size in zip(devices, held, strict=True)
    )


@given(tasks())
def test_the_split_of_unequal_devices_is_the_best_of_all_that_fit(task):
    profile, devices, in_flight = task
    placement = linear_placement(len(devices))
    everything = [
        counts
        for counts in compositions(len(profile), len(devices))
        if fits(profile, placement, devices, in_flight, counts)
    ]
    if not everything:
        with pytest.raises(ValueError, match="the least that any split needs is"):
            fair_split(profile, placement, devices, in_flight=in_flight)
        return
    counts = fair_split(profile, placement, devices, in_flight=in_flight)
    assert sum(counts) == len(profile)
    assert min(counts) >= 1
    best = min(slowest(profile, devices, other) for other in everything)
    assert slowest(profile, devices, counts) == pytest.approx(best, rel=1e-12)
    # Of all best splits the most even one, and of those the one with the largest earlier stages.
    tied = [c for c in everything if slowest(profile, devices, c) <= best * (1 + 1e-12)]
    least = min(unevenness(profile, devices, c) for c in tied)
    even = [c for c in tied if unevenness(profile, devices, c) <= least * (1 + 1e-12)]
    assert counts == max(even)
    assert counts in everything


@given(tasks(most_layers=6, most_ranks=3))
def test_the_free_order_is_the_best_of_all_orders(task):
    profile, devices, in_flight = task
    ranks = len(devices)
    placement = linear_placement(ranks)
    everything = [
        (slowest(profile, ordered, counts), order, counts)
        for order in itertools.permutations(range(ranks))
        for ordered in [[devices[number] for number in order]]
        for counts in compositions(len(profile), ranks)
        if fits(profile, placement, ordered, in_flight, counts)
    ]
    if not everything:
        with pytest.raises(ValueError, match="the least that any split needs is"):
            device_order(profile, placement, devices, in_flight=in_flight)
        return
    order, counts = device_order(profile, placement, devices, in_flight=in_flight)
    assert sorted(order) == list(range(ranks))
    found = slowest(profile, [devices[number] for number in order], counts)
    least = min(everything)[0]
    assert found == pytest.approx(least, rel=1e-12)
    assert (order, counts) in [(o, c) for time, o, c in everything if time <= least * (1 + 1e-12)]


@given(tasks(most_layers=6, most_ranks=3))
def test_the_search_over_swaps_keeps_to_the_limits_and_never_beats_the_exact_order(task):
    profile, devices, in_flight = task
    placement = linear_placement(len(devices))
    problem = make_problem(profile, placement, devices, "time", in_flight, None)
    try:
        order, counts = _swapped(problem, stage_loads(profile, "time", devices), devices)
    except ValueError:
        return
    ordered = [devices[number] for number in order]
    assert fits(profile, placement, ordered, in_flight, counts)
    exact, best = device_order(profile, placement, devices, in_flight=in_flight)
    least = slowest(profile, [devices[number] for number in exact], best)
    assert slowest(profile, ordered, counts) >= least * (1 - 1e-12)


@pytest.mark.parametrize("room", [20, 50, 90])
def test_the_nearest_split_of_several_stages_a_rank_has_the_least_on_the_fullest(room):
    # The first rank's stages hold the most in flight: all it can do is hand its layers on, but
    # not all 11 of them to the last stage, which is its own.
    profile = ps.LayerProfile(
        [1] * 18, param_bytes=[5, *[8] * 16, 5], stash_bytes=[0, *[5] * 16, 10]
    )
    devices = [Device(memory_bytes=room)] * 4
    with pytest.raises(ValueError, match=r"^no split was found that keeps .* needs 99 bytes"):
        fair_split(profile, v_placement(8, 4), devices, in_flight=[7, 7, 7, 7, 4, 3, 2, 1])


@given(tasks(chunks=2, most_ranks=3))
def test_several_stages_share_the_memory_of_their_rank(task):
    profile, devices, in_flight = task
    placement = looped_placement(2 * len(devices), len(devices))
    on = [devices[rank] for rank in placement.rank_of]
    try:
        counts = fair_split(profile, placement, devices, in_flight=in_flight)
    except ValueError as error:
        assert "the nearest split found needs" in str(error)  # noqa: PT017
        return
    assert sum(counts) == len(profile)
    assert fits(profile, placement, devices, in_flight, counts)
    everything = list(compositions(len(profile), len(on)))
    least = min(slowest(profile, on, other) for other in everything)
    tied = [c for c in everything if slowest(profile, on, c) <= least * (1 + 1e-12)]
    even = min(unevenness(profile, on, c) for c in tied)
    best = max(c for c in tied if unevenness(profile, on, c) <= even * (1 + 1e-12))
    if fits(profile, placement, devices, in_flight, best):
        assert counts == best


def test_the_limit_of_a_rank_with_two_stages_bites():
    # In a V rank 0 has stages 0 and 3; with 10 bytes a layer it has room for three of six.
    profile = ps.LayerProfile(forward_ms=[1.0, 1, 1, 1, 1, 1], param_bytes=[10] * 6)
    placement = v_placement(4, 2)
    heavy = ps.LayerProfile(forward_ms=[1.0, 1, 4, 4, 1, 1], param_bytes=[10] * 6)
    free = [Device(memory_bytes=10**9), Device()]
    assert fair_split(heavy, placement, free, in_flight=[1] * 4) == (2, 1, 1, 2)
    limited = [Device(memory_bytes=30), Device()]
    counts = fair_split(heavy, placement, limited, in_flight=[1] * 4)
    assert counts[0] + counts[3] == 3
    with pytest.raises(ValueError, match=r"needs 20 bytes on the fullest rank, 0, which has 19"):
        fair_split(profile, placement, [Device(memory_bytes=19), Device()], in_flight=[1] * 4)


def test_a_limit_that_nothing_fits_names_the_nearest_split():
    # 6 layers of 10 bytes on 2 ranks of 20: three a rank need 30.
    profile = ps.LayerProfile(forward_ms=[1.0] * 6, param_bytes=[10] * 6)
    message = (
        "no split keeps every rank within its memory: the least that any split needs is 30 bytes "
        "on the fullest rank, 0, which has 20, with the split [3, 3]"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        ps.partition(profile, 2, memory_bytes=20, in_flight=[1, 1])


def test_what_1f1b_holds_moves_layers_to_the_end():
    # A layer keeps 1 byte for each of 4, 3, 2, 1 micro-batches: with 12 bytes a rank there is room
    # for 3, 4, 6 and 12 layers. Of 16 the first two take all they can, the others 5 and 4.
    profile = ps.LayerProfile(forward_ms=[1.0] * 16, backward_ms=[2.0] * 16, stash_bytes=[1] * 16)
    held = ps.build_schedule("1f1b", 4, 8).peak_in_flight()
    assert held == (4, 3, 2, 1)
    pipe = ps.partition(profile, 4, memory_bytes=12, in_flight=held)
    assert [stage.stash_bytes for stage in pipe.stages] == [3, 4, 5, 4]
    assert [stage.stash_bytes for stage in ps.partition(profile, 4).stages] == [4, 4, 4, 4]
    assert list(ps.simulate(pipe, "1f1b", 8).ranks.peak_stash_bytes) == [12, 12, 10, 4]


def test_training_state_counts():
    # 2-byte parameters: 2 + 2 + 12 bytes each, so that 100 bytes of them hold 800.
    profile = ps.LayerProfile(forward_ms=[3.0, 1.0, 1.0, 1.0], param_bytes=[100] * 4)
    how = {"in_flight": [0, 0], "memory_bytes": 1600}
    assert [s.name for s in ps.partition(profile, 2, **how).stages] == ["0", "1..3"]
    adam = ps.partition(profile, 2, training=ps.Training(), **how)
    assert [stage.name for stage in adam.stages] == ["0..1", "2..3"]
    with pytest.raises(ValueError, match="1,600 bytes on the fullest rank, 0, which has 1,599"):
        ps.partition(profile, 2, training=ps.Training(), in_flight=[0, 0], memory_bytes=1599)


def test_a_fraction_of_a_micro_batch_is_rounded_up():
    profile = ps.LayerProfile(forward_ms=[1.0, 1.0], stash_bytes=[3, 3])
    with pytest.raises(ValueError, match="needs is 2 bytes"):
        ps.partition(profile, 2, in_flight=[0.5, 0.5], memory_bytes=1)


def test_what_the_ends_of_stages_keep_is_never_taken_for_too_little():
    # Of two stages of two layers the first keeps 1 + 1 + 5 bytes; whichever layers they end with.
    profile = ps.LayerProfile([1.0] * 4, stash_bytes=[1] * 4, last_stash_bytes=[0, 5, 0, 0])
    pipe = ps.partition(profile, 2, memory_bytes=7, in_flight=[1, 1])
    assert [stage.stash_bytes for stage in pipe.stages] == [7, 2]
    with pytest.raises(ValueError, match="needs is 7 bytes"):
        ps.partition(profile, 2, memory_bytes=6, in_flight=[1, 1])


def test_unequal_devices_in_a_given_order():
    # Fast and slow, 3 : 1: of eight equal layers six and two take 2 ms each.
    profile = ps.LayerProfile(forward_ms=[1.0] * 8)
    assert fair_split(profile, linear_placement(2), [Device(3.0), Device(1.0)]) == (6, 2)
    assert fair_split(profile, linear_placement(2), [Device(1.0), Device(3.0)]) == (2, 6)
    # 6 ms of overhead on the first: 8 layers take as long on the second as none there.
    assert fair_split(profile, linear_placement(2), [Device(1.0, 6.0), Device(1.0)]) == (1, 7)
    # Devices make no difference where bytes or numbers are balanced.
    devices = [Device(3.0), Device(1.0)]
    assert fair_split(profile, linear_placement(2), devices, by="layers") == (4, 4)


def test_a_slow_device_must_take_a_layer_even_where_that_is_a_large_one():
    # The least largest load does not fall with fewer layers left: (1 | 100, 1) takes 101 ms, but
    # (100 | 1) would take 10,000 ms on the slow device.
    profile = ps.LayerProfile(forward_ms=[1.0, 100.0, 1.0])
    devices = [Device(0.01), Device(1.0)]
    assert fair_split(profile, linear_placement(2), devices) == (1, 2)


def test_the_free_order_puts_the_fast_device_where_the_large_layer_is():
    profile = ps.LayerProfile(forward_ms=[1.0, 1, 1, 1, 8], backward_ms=[2.0, 2, 2, 2, 16])
    pipe = ps.partition(profile, 3, free_order=True, speed=[4.0, 1.0, 1.0], memory_bytes=None)
    assert [device.speed for device in pipe.devices] == [1, 1, 4]
    assert [stage.name for stage in pipe.stages] == ["0..1", "2..3", "4"]
    assert ps.simulate(pipe, "1f1b", 4).rank_times.busy.tolist() == [24, 24, 24]


def test_the_large_devices_go_where_the_most_is_in_flight():
    profile = ps.LayerProfile(forward_ms=[1.0] * 4, stash_bytes=[10] * 4)
    devices = [Device(memory_bytes=10), Device(memory_bytes=80), Device(memory_bytes=40)]
    how = {"in_flight": [4, 3, 1]}
    order, counts = device_order(profile, linear_placement(3), devices, **how)
    assert (order, counts) == ((1, 2, 0), (2, 1, 1))
    with pytest.raises(ValueError, match=r"least that any split needs is 40 bytes .* \[1, 1, 2\]"):
        device_order(profile, linear_placement(3), [Device(memory_bytes=39)] * 3, **how)


def test_many_devices_of_few_kinds_are_ordered_exactly_and_many_kinds_by_swaps():
    profile = ps.LayerProfile(forward_ms=[8.0, *[1.0] * 40, 8.0])
    kinds = [Device(1.0)] * 12 + [Device(4.0)] * 4
    order, counts = device_order(profile, linear_placement(16), kinds)
    ordered = [kinds[number] for number in order]
    assert max(c / d.speed for c, d in zip(counts[1:-1], ordered[1:-1], strict=True)) == 2
    assert [ordered[0].speed, ordered[-1].speed] == [4, 4]
    different = [Device(1 + number / 8) for number in range(12)]
    order, counts = device_order(profile, linear_placement(12), different)
    given = fair_split(profile, linear_placement(12), different)
    sums = np.concatenate([[0], np.cumsum(profile.forward_ms)])

    def largest(order, counts):
        ends = np.concatenate([[0], np.cumsum(counts)])
        return max(np.diff(sums[ends]) / [different[number].speed for number in order])

    assert sum(counts) == len(profile)
    assert largest(order, counts) < largest(range(12), given)


def test_a_stage_that_has_two_ranks_is_split_for_equal_devices_only():
    profile = ps.LayerProfile(forward_ms=[1.0] * 8)
    pipe = ps.partition(profile, 4, placement="bidirectional")
    assert [stage.forward_ms for stage in pipe.stages] == [2] * 4
    with pytest.raises(ValueError, match="bidirectional placement has every stage on two ranks"):
        ps.partition(profile, 4, placement="bidirectional", speed=[1, 2, 1, 1])


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"memory_bytes": 5}, "memory_bytes without in_flight: give how many micro-batches"),
        ({"in_flight": [1]}, "in_flight has 1 values for 2 stages"),
        ({"in_flight": [1, -1]}, r"in_flight\[1\] = -1 is not a number from 0"),
        ({"by": "stash_bytes"}, "the profile gives no stash_bytes"),
        ({"speed": [1, 2, 3]}, "speed has 3 values for 2 ranks"),
    ],
)
def test_what_cannot_be_split(how, message):
    with pytest.raises(ValueError, match=message):
        ps.partition(ps.LayerProfile(forward_ms=[1.0] * 3), 2, **how)


def test_more_stages_than_layers_says_how_many_there_may_be():
    with pytest.raises(ValueError, match="3 layers cannot fill 4 stages; 3 stages are the most"):
        ps.partition(ps.LayerProfile(forward_ms=[1.0] * 3), 4)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_moves_are_all_splits_that_differ_by_one_layer(counts):
    found = {tuple(row) for row in moves(counts).tolist()}
    away = {
        other
        for other in compositions(sum(counts), len(counts))
        if sum(abs(a - b) for a, b in zip(counts, other, strict=True)) == 2
    }
    assert found == away
    assert len(moves(counts)) == len(found)


def test_peaks_of_stages():
    # By hand: rank 0 runs 0F0 2F0 2B0 0F1 0B0 2F1 2B1 0B1, so stage 0 holds two, stage 2 one.
    orders = ["0F0 2F0 2B0 0F1 0B0 2F1 2B1 0B1", "1F0 1B0 1F1 1B1"]
    assert ps.Schedule.from_orders(orders).peak_in_flight_by_stage() == (2, 1, 1)
    for name in ("gpipe", "1f1b", "zb_h1", "interleaved", "zb_v", "hanayo", "seq1f1b", "dualpipe"):
        schedule = ps.build_schedule(name, 4, 8 + 2 * (name == "dualpipe"))
        by_rank, by_stage = schedule.peak_in_flight(), schedule.peak_in_flight_by_stage()
        if schedule.stages == schedule.ranks and schedule.placement.reverse is None:
            assert by_rank == by_stage
        for rank in range(4):
            own = [by_stage[stage] for stage in schedule.placement.stages_of(rank)]
            assert max(own) <= by_rank[rank]
            if schedule.placement.reverse is None:
                assert by_rank[rank] <= sum(own)


def test_a_device_without_memory_holds_nothing():
    profile = ps.LayerProfile(forward_ms=[1.0], stash_bytes=[1])
    message = "needs is 1 bytes on the fullest rank, 0, which has 0"
    with pytest.raises(ValueError, match=message):
        ps.partition(profile, 1, memory_bytes=0, in_flight=[1])
    assert len(ps.partition(profile, 1, memory_bytes=0, in_flight=[0]).stages) == 1


def test_what_a_backward_rebuilds_pays_no_overhead_of_its_own():
    # 4 ms a layer; with 2 x 1.9 on the first rank 3.8 + 3 x 4 = 15.8 is the least, not 4 x 4.
    profile = ps.LayerProfile([1] * 6, [2] * 6, stash_bytes=[10] * 6, output_bytes=[1] * 6)
    pipe = ps.partition(profile.recompute("full"), 2, overhead_ms=[1.9, 0.0])
    assert [stage.name for stage in pipe.stages] == ["0..2", "3..5"]
