"""Closed forms by hand, and what they refuse. Against simulation: test_properties.py."""

import pytest

from pipesim.run import lower_bound as bounds
from pipesim.schedules import closed_forms as theory


def test_by_hand():
    # p=2, m=3, F=[1,2], B=[2,3].
    assert theory.forward_only_makespan([1, 2], 3) == 1 + 2 + 2 * 2
    assert theory.forward_only_makespan([1, 2], 3, latency=0.5) == 7.5
    assert theory.gpipe_makespan([1, 2], [2, 3], 3) == 8 + 2 * (2 + 3)
    assert theory.gpipe_makespan([1, 2], [2, 3], 3, latency=0.5) == 19
    assert theory.one_f_one_b_makespan([1, 1], [2, 2], 3) == 4 * 3
    # Two hops in the fill and drain, and one of the two more micro-batches pays two.
    assert theory.one_f_one_b_makespan([1, 1], [2, 2], 3, latency=0.5) == 12 + 2 * 0.5 * 2
    assert theory.eager_one_f_one_b_makespan([1, 1], [2, 2], 3, latency=0.5) == 13
    assert theory.alpa_makespan([3, 5], 3) == 8 + 2 * 5


@pytest.mark.parametrize(("slow", "makespan"), [(0, 51), (1, 53), (2, 55), (3, 57)])
def test_one_slow_stage(slow, makespan):
    f = [2 if stage == slow else 1 for stage in range(4)]
    assert theory.one_f_one_b_makespan(f, [2 * x for x in f], 8) == makespan


def test_bounds_by_hand():
    # Two stages, two micro-batches, F=[1,2], B=[2,4], half a hop: stage 1 starts at 1.5, works
    # 12, and then a gradient takes 0.5 and B of stage 0 takes 2.
    f, b = [[1, 1], [2, 2]], [[2, 2], [4, 4]]
    assert bounds.fused_lower_bound(f, b, [0.5], [0.5]) == 16
    # Forwards only: stage 1 starts at 1.5 and works 4.
    assert bounds.forward_lower_bound(f, [0.5]) == 5.5
    # Split, I = W = B/2: stage 1 starts at 1.5 and works 12, no way back needed after its last W;
    # or its F and I alone, 8, and then 0.5 and I of stage 0, 1.
    i = [[1, 1], [2, 2]]
    assert bounds.split_lower_bound(f, i, i, [0.5], [0.5]) == 13.5
    # One micro-batch: the longest way, 1 + .5 + 2 + 2 + .5 + 1, and W of stage 0, 1.
    one = [[1], [2]]
    assert bounds.split_lower_bound(one, one, one, [0.5], [0.5]) == 8
    # With ten micro-batches of ten each the zero-bubble paper's H1 takes 270 at p=4, m=8.
    tens = [[10] * 8] * 4
    assert bounds.split_lower_bound(tens, tens, tens, [0] * 3, [0] * 3) <= 270


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.forward_only_makespan([], 1), "forward is empty"),
        (lambda: theory.forward_only_makespan([1, -1], 1), r"forward\[1\] = -1"),
        (lambda: theory.forward_only_makespan([1], 0), "microbatches = 0"),
        (lambda: theory.forward_only_makespan([1], 1, latency=-1), "latency = -1"),
        (lambda: theory.gpipe_makespan([1, 1], [1], 1), "2 forward times, but 1 backward"),
        (lambda: theory.one_f_one_b_makespan([1, 2, 3], [1, 2, 3], 4), "no closed form"),
        (lambda: theory.one_f_one_b_makespan([2, 1], [4, 2], 4, 0.1), "no closed form"),
        (lambda: theory.one_f_one_b_makespan([1.1, 1], [2.2, 2], 4), "no closed form"),
        (lambda: theory.one_f_one_b_makespan([2, 1], [4, 3], 4), "no closed form"),
        (lambda: theory.one_f_one_b_makespan([1, 1], [2, 2], 4, 2.5), "latency 2.5 is above"),
        (lambda: theory.eager_one_f_one_b_makespan([1, 2], [1, 2], 4), "not equal"),
        (lambda: theory.eager_one_f_one_b_makespan([1, 1], [1, 1], 4, 1), "is above min"),
    ],
)
def test_outside_their_range_they_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_one_rank_pays_no_latency():
    assert theory.one_f_one_b_makespan([1], [2], 4, latency=100.0) == 12
    assert theory.eager_one_f_one_b_makespan([1], [2], 4, latency=100.0) == 12
