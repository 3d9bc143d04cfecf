"""What ranks hold over time, and where that is too much."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipesim as ps
from pipesim.pipeline.variants import CostVariants
from pipesim.run.many import simulate_many
from pipesim.run.memory import op_texts
from tests.strategies import cases, positive_costs

STATE = {"param_bytes": 100, "grad_bytes": 50, "optimizer_bytes": 300}


def small(**more):
    """Return p=2, F=[1,2], B=[2,4], half a hop: 450 bytes of state, 10 and 20 of stash.

    rank 0:  F0 0-1  F1 1-2 | wait .................... | B0 8-10 | wait | B1 14-16
    rank 1:  fill   F0 1.5-3.5 B0 3.5-7.5 F1 7.5-9.5 B1 9.5-13.5 | drain to 16
    """
    return ps.Pipeline.from_costs(
        [1, 2], [2, 4], latency_ms=0.5, stash_bytes=[10, 20], **STATE, **more
    )


def rows(run, *columns):
    return list(run.memory[list(columns)].itertuples(index=False, name=None))


def test_every_change_by_hand():
    run = ps.simulate(small(), "1f1b", 2)
    assert rows(run, "rank", "time", "op", "activations") == [
        (0, 0.0, "", 0),
        (0, 0.0, "0F0", 10),
        (0, 1.0, "0F1", 20),
        (0, 10.0, "0B0", 10),
        (0, 16.0, "0B1", 0),
        (1, 0.0, "", 0),
        (1, 1.5, "1F0", 20),
        (1, 7.5, "1B0", 0),
        (1, 7.5, "1F1", 20),
        (1, 13.5, "1B1", 0),
    ]
    state = run.memory[["params", "grads", "optimizer"]].drop_duplicates().to_numpy().tolist()
    assert state == [[100, 50, 300]]
    assert (run.memory.total == 450 + run.memory.activations).all()
    assert run.peak_memory == (470, 470)
    assert run.ranks.peak_memory_bytes.tolist() == [470, 470]
    first = run.summary()["per_rank"][0]
    assert (first["param_bytes"], first["grad_bytes"], first["optimizer_bytes"]) == (100, 50, 300)
    assert first["peak_memory_bytes"] == run.summary()["peak_memory_bytes"] == 470


def test_a_split_backward_frees_in_two_parts():
    # F takes 10, I gives 4 of them back, W the rest: 0F0 0-1, 0I0 1-2, 0W0 2-3.
    pipe = ps.Pipeline.from_costs(
        [1], input_grad=[1], weight_grad=[1], stash_bytes=10, input_grad_frees_bytes=4
    )
    run = ps.simulate(pipe, ps.Schedule.from_orders(["0F0 0I0 0W0"]))
    assert rows(run, "time", "op", "total") == [
        (0, "", 0),
        (0, "0F0", 10),
        (2, "0I0", 6),
        (3, "0W0", 0),
    ]


def test_both_ops_of_a_pair_take_before_either_frees():
    schedule = ps.Schedule.from_orders(["0F0 0F1&0B0 0B1"])
    run = ps.simulate(ps.Pipeline.from_costs([1], [2], stash_bytes=10), schedule)
    assert rows(run, "time", "op", "total")[1:] == [
        (0, "0F0", 10),
        (1, "0F1", 20),
        (4, "0B0", 10),
        (6, "0B1", 0),
    ]
    assert run.peak_memory == (20,)


def test_ops_that_take_no_time_keep_their_order():
    pipe = ps.Pipeline.from_costs([0], [0], stash_bytes=10)
    run = ps.simulate(pipe, "1f1b", 2)
    assert rows(run, "op", "total") == [("", 0), ("0F0", 10), ("0B0", 0), ("0F1", 10), ("0B1", 0)]


def test_versions_and_copies_hold_parameters_each():
    # Rank s of p keeps p - s versions of its weights, and one of gradients and optimizer.
    pipe = ps.Pipeline.from_costs([1, 1, 1], [2, 2, 2], **STATE)
    assert ps.simulate(pipe, "pipedream", 2).peak_memory == (650, 550, 450)
    # Of two directions every rank has a stage of each: 0 and 3, 1 and 2.
    pipe = ps.Pipeline.from_costs(
        1.0, 2.0, stages=4, placement="bidirectional", param_bytes=[1, 10, 100, 1000]
    )
    run = ps.simulate(pipe, "chimera", 4)
    assert run.ranks.param_bytes.tolist() == [1001, 110, 110, 1001]
    assert run.peak_memory == (1001, 110, 110, 1001)
    assert run.summary()["total_param_bytes"] == 2 * 1111


def test_the_texts_of_ops_are_those_of_the_schedule():
    for schedule in (
        ps.build_schedule("zb_v", 3, 12),
        ps.build_schedule("seq1f1b", 2, 3, slices=3),
        ps.build_schedule("dualpipe", 4, 8),
    ):
        expected = [str(schedule.op(number)) for number in range(len(schedule))]
        assert op_texts(schedule).tolist() == expected


def test_seventy_billion_parameters_in_16_bit_are_140_gb():
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=8, param_bytes=2 * 70_000_000_000 // 8)
    run = ps.simulate(ps.Training(replicas=4, zero=1).holding(pipe), "1f1b", 8)
    summary = run.summary()
    assert summary["total_param_bytes"] == summary["total_grad_bytes"] == 140 * 10**9
    assert summary["total_optimizer_bytes"] == 210 * 10**9  # 12 bytes each, over 4 replicas


@settings(max_examples=100, deadline=None)
@given(
    case=cases(value=positive_costs),
    params=st.integers(0, 1000),
    early=st.integers(-40, 60),
)
def test_activations_return_to_nothing_and_peak_as_the_order_says(case, params, early):
    pipe, schedule = case
    stages = tuple(
        replace(
            stage,
            stash_bytes=60,
            input_grad_frees_bytes=early,
            param_bytes=params * (number + 1),
            grad_bytes=params,
            optimizer_bytes=3 * params,
        )
        for number, stage in enumerate(pipe.stages)
    )
    run = ps.simulate(replace(pipe, stages=stages), schedule)
    memory = run.memory
    by_rank = memory.groupby("rank")
    assert (by_rank.activations.first() == 0).all()
    assert (by_rank.activations.last() == 0).all()
    assert (memory.activations >= 0).all()
    assert (memory.total >= memory.params).all()
    assert by_rank.total.max().tolist() == list(run.peak_memory)
    assert (by_rank.time.diff().dropna() >= 0).all()
    held = [
        (run.ranks.param_bytes + run.ranks.grad_bytes + run.ranks.optimizer_bytes).tolist(),
        run.ranks.peak_stash_bytes.tolist(),
    ]
    assert np.sum(held, axis=0).tolist() == list(run.peak_memory)


def over(limit, schedule="1f1b", m=2, **how):
    with pytest.raises(ps.MemoryLimitError) as caught:
        ps.simulate(small(memory_bytes=limit), schedule, m, **how)
    error = caught.value
    return error.rank, error.op, error.time, error.bytes, error.limit


@pytest.mark.parametrize("engine", ["simpy", "replay"])
def test_the_first_op_over_the_limit(engine):
    assert over(469, engine=engine) == (0, "0F1", 1.0, 470, 469)
    assert over(459, engine=engine) == (0, "0F0", 0.0, 460, 459)
    assert over([1000, 469], engine=engine) == (1, "1F0", 1.5, 470, 469)
    assert over([469, 469], engine=engine) == (0, "0F1", 1.0, 470, 469)  # 1 ms before 1.5
    # gpipe: rank 1 holds both at 1F1, from 3.5 on.
    assert over([1000, 480], "gpipe", engine=engine) == (1, "1F1", 3.5, 490, 480)
    assert ps.simulate(small(memory_bytes=470), "1f1b", 2, engine=engine).makespan == 16
    assert ps.simulate(small(memory_bytes=1), "1f1b", 2, engine=engine, memory_limit=False)


def test_what_is_held_all_the_time_can_be_too_much():
    assert over(449) == (0, None, 0.0, 450, 449)
    assert over([1000, 449]) == (1, None, 0.0, 450, 449)
    assert over([459, 449]) == (1, None, 0.0, 450, 449)  # before any op starts


def test_ties_go_to_the_lower_rank():
    pipe = ps.Pipeline.from_costs(
        1.0, 2.0, stages=4, placement="bidirectional", stash_bytes=10, memory_bytes=5
    )
    with pytest.raises(ps.MemoryLimitError) as caught:
        ps.simulate(pipe, "chimera", 4)
    assert (caught.value.rank, caught.value.op, caught.value.time) == (0, "0F0", 0.0)


def test_a_limit_in_the_middle_of_a_pair():
    schedule = ps.Schedule.from_orders(["0F0 0F1&0B0 0B1"])
    pipe = ps.Pipeline.from_costs([1], [2], stash_bytes=10, memory_bytes=19)
    with pytest.raises(ps.MemoryLimitError, match="0F1 at 1 ms takes it to 20 B"):
        ps.simulate(pipe, schedule)


def test_the_message_says_what_and_what_to_do():
    gb = 10**9
    pipe = ps.Pipeline.from_costs(
        1.0, 2.0, stages=4, stash_bytes=6 * gb, param_bytes=16 * gb, memory_bytes=30 * gb
    )
    with pytest.raises(ps.MemoryLimitError) as caught:
        ps.simulate(ps.Training(zero=1, replicas=1000).holding(pipe), "gpipe", 8)
    first, parts, ways = str(caught.value).splitlines()
    assert first == (
        "rank 0 goes over its memory limit: before its first op it holds 32.1 GB, "
        "its device has 30 GB"
    )
    assert parts == "parameters 16 GB + gradients 16 GB + optimizer 96 MB"
    assert "ZeRO over replicas" in ways
    with pytest.raises(ps.MemoryLimitError) as caught:
        ps.simulate(pipe, "gpipe", 8)
    first, parts, ways = str(caught.value).splitlines()
    assert first == (
        "rank 0 goes over its memory limit: 0F2 at 2 ms takes it to 34 GB, its device has 30 GB"
    )
    assert parts == "parameters 16 GB + activations 18 GB of 3 micro-batches in flight"
    for word in ("fewer micro-batches in flight", "recompute", "more ranks", "--no-memory-limit"):
        assert word in ways
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.rank, again.op) == (str(caught.value), 0, "0F2")
    assert isinstance(again, ps.PipesimError)


def test_a_byte_too_much_is_told_apart():
    pipe = ps.Pipeline.from_costs([1], [2], stash_bytes=80_000_000_001, memory_bytes=80 * 10**9)
    with pytest.raises(
        ps.MemoryLimitError, match=r"takes it to 80\.000000001 GB, its device has 80"
    ):
        ps.simulate(pipe, "1f1b", 1)


def test_many_at_once_keep_the_limit_like_one():
    schedule = ps.build_schedule("1f1b", 2, 2)
    good, bad = small(memory_bytes=470), small(memory_bytes=[1000, 469])
    peaks = simulate_many(schedule, [good, small()])["peak_memory_bytes"]
    assert peaks.tolist() == [470, 470]
    with pytest.raises(ps.MemoryLimitError) as alone:
        ps.simulate(bad, schedule)
    with pytest.raises(ps.MemoryLimitError) as together:
        simulate_many(schedule, [good, bad])
    assert str(together.value) == str(alone.value)
    assert len(simulate_many(schedule, [good, bad], memory_limit=False)["makespan_ms"]) == 2
    variants = CostVariants(bad, {"forward_ms": np.array([[1.0, 2.0], [3.0, 3.0]])})
    with pytest.raises(ps.MemoryLimitError) as varied:
        simulate_many(schedule, variants)
    assert str(varied.value) == str(alone.value)  # the first of them is the same
    assert simulate_many(schedule, variants, memory_limit=False)["peak_memory_bytes"].tolist() == [
        470,
        470,
    ]


def test_what_is_compared_with_a_run_knows_no_limit():
    run = ps.simulate(small(memory_bytes=1), "1f1b", 2, memory_limit=False)
    assert ps.ladder(run).step_ms.iloc[-1] == run.makespan
    assert run.inflation == 16 / 13.5


def test_the_best_split_is_one_that_fits():
    # 7 layers: (4, 3) is fastest with 8 layers' stash on rank 0; (3, 4) holds 6.
    profile = ps.LayerProfile(forward_ms=[1] * 7, backward_ms=[2] * 7, stash_bytes=[10] * 7)
    assert ps.best_split(profile, 2, "1f1b", 8).counts == (4, 3)
    best = ps.best_split(profile, 2, "1f1b", 8, memory_bytes=60)
    assert (best.counts, best.run.makespan, best.run.peak_memory) == ((3, 4), 105, (60, 40))
    with pytest.raises(ValueError, match="the least that any split needs is 50 bytes"):
        ps.best_split(profile, 2, "1f1b", 8, memory_bytes=19)


def test_more_than_can_be_added_up_is_refused():
    pipe = ps.Pipeline.from_costs([1.0], [2.0], stash_bytes=10**15)
    assert ps.simulate(pipe, "gpipe", 1000).peak_memory == (10**18,)
    run = ps.simulate(pipe, "gpipe", 10_000, engine="replay")
    with pytest.raises(ValueError, match="come to 1e\\+19 bytes"):
        _ = run.peak_memory
