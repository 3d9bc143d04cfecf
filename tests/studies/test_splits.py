"""Searches over splits by simulation: as good as looking at all of them, and within memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipesim as ps
from pipesim.pipeline.partition.min_max import compositions
from pipesim.run.many import makespans
from pipesim.studies.splits.candidates import split_pipelines


def profile_of(forward, **columns):
    return ps.LayerProfile(forward_ms=forward, backward_ms=[2 * f for f in forward], **columns)


def test_with_few_micro_batches_the_slow_stage_is_better_placed_early():
    # 1F1B, 4 ranks, 4 micro-batches, 16 equal layers: [4, 4, 4, 4] takes 3 x 4 x 7 = 84.
    profile = profile_of([1.0] * 16)
    even = ps.simulate(profile.split([4, 4, 4, 4]), "1f1b", 4)
    assert even.makespan == 84
    found = ps.refine_split(profile, [4, 4, 4, 4], "1f1b", 4)
    assert found.counts == (5, 4, 4, 3)
    assert found.run.makespan == 82
    assert found.run.makespan == ps.best_split(profile, 4, "1f1b", 4).run.makespan
    # With many micro-batches the largest stage decides, and even stages are the best.
    assert ps.refine_split(profile, [7, 3, 3, 3], "1f1b", 64).counts == (4, 4, 4, 4)


def test_one_stage_twice_as_slow_costs_the_least_at_the_front():
    # Of 5 layers on 4 stages one has two: 51, 53, 55 or 57, the earlier the less.
    profile = profile_of([1.0] * 5)
    for start in ([2, 1, 1, 1], [1, 1, 1, 2], [1, 2, 1, 1]):
        found = ps.refine_split(profile, start, "1f1b", 8)
        assert (found.counts, found.run.makespan) == ((2, 1, 1, 1), 51)
        assert found.splits == 4


@given(
    st.lists(st.integers(0, 5), min_size=3, max_size=9),
    st.integers(1, 3),
    st.integers(1, 8),
    st.sampled_from(["gpipe", "1f1b", "1f1b_eager"]),
    st.data(),
)
@settings(max_examples=40)
def test_no_layer_is_lost_and_no_split_gets_slower(forward, stages, m, schedule, data):
    profile = profile_of([float(f) for f in forward])
    every = list(compositions(len(forward), stages))
    start = data.draw(st.sampled_from(every))
    options = {"latency_ms": data.draw(st.sampled_from([0.0, 0.25]))}
    found = ps.refine_split(profile, start, schedule, m, **options)
    assert sum(found.counts) == len(forward)
    assert min(found.counts) >= 1
    before = ps.simulate(profile.split(start, **options), schedule, m).makespan
    assert found.run.makespan <= before
    assert found.run.makespan == ps.simulate(found.run.pipeline, schedule, m).makespan
    assert found.simulated <= found.splits == len(every)


def test_how_often_the_refined_split_is_the_best_of_all():
    random = np.random.default_rng(0)
    hits, worst = 0, 1.0
    for _ in range(60):
        layers, stages, m = (int(random.integers(*span)) for span in ((5, 12), (2, 5), (1, 13)))
        forward = random.integers(1, 5, layers).astype(float).tolist()
        how = {"speed": random.choice([1.0, 2.0], stages).tolist(), "latency_ms": 0.2}
        profile = profile_of(forward)
        best = ps.best_split(profile, stages, "1f1b", m, **how).run.makespan
        start = ps.min_max_split([1.0] * layers, stages)
        refined = ps.refine_split(profile, start, "1f1b", m, **how).run.makespan
        hits += refined <= best * (1 + 1e-9)
        worst = max(worst, refined / best)
    assert hits >= 58
    assert worst < 1.05


@pytest.mark.parametrize(
    ("schedule", "stages", "how"),
    [
        ("interleaved", 4, {"ranks": 2}),
        ("zb_v", 4, {"ranks": 2, "placement": "v_shape"}),
        ("zb_h1", 3, {"bandwidth_gb_s": 1.0}),
        ("zb_auto", 2, {}),
        ("1f1b", 3, {"bandwidth_gb_s": 0.001, "overhead_ms": 0.5}),
    ],
)
def test_other_schedules_and_what_is_sent(schedule, stages, how):
    rows = [1.0, 3.0, 1.0, 2.0, 1.0, 1.0, 4.0]
    profile = ps.LayerProfile(
        forward_ms=rows,
        input_grad_ms=rows,
        weight_grad_ms=[0.5 * row for row in rows],
        recompute_ms=[0.25] * 7,
        output_bytes=[1000, 9000, 500, 9000, 9000, 100, 7],
    )
    best = min(
        ps.simulate(profile.split(counts, **how), schedule, 4).makespan
        for counts in compositions(7, stages)
    )
    start = (7 - stages + 1, *[1] * (stages - 1))
    found = ps.refine_split(profile, start, schedule, 4, **how)
    assert found.run.makespan == pytest.approx(best, rel=1e-9)
    assert ps.best_split(profile, stages, schedule, 4, **how).run.makespan <= best * (1 + 1e-9)


@pytest.mark.parametrize(
    ("schedule", "options", "memory"),
    [
        ("1f1b", {}, 40),
        ("gpipe", {}, 80),
        ("gpipe", {"recompute": "early"}, 80),
        ("zb_h1", {}, 50),
    ],
)
@pytest.mark.parametrize("limited", [False, True])
def test_what_is_rebuilt_counts_in_every_split(schedule, options, memory, limited):
    limit = memory if limited else None
    rows = [1.0, 1.5, 1.0, 2.0, 1.0, 1.25, 1.0]
    plain = ps.LayerProfile(
        forward_ms=rows,
        input_grad_ms=rows,
        weight_grad_ms=rows,
        stash_bytes=[8] * 7,
        output_bytes=[1] * 7,
    )
    profile = plain.recompute("full", range(4))
    fitting = {}
    for counts in compositions(7, 3):
        try:
            run = ps.simulate(
                profile.split(counts, memory_bytes=limit), schedule, 4, options=options
            )
        except ps.MemoryLimitError:
            continue
        fitting[counts] = run.makespan
    assert 0 < len(fitting) < 15 or not limited
    how = {"options": options, "memory_bytes": limit}
    found = ps.best_split(profile, 3, schedule, 4, **how)
    assert found.run.makespan == fitting[found.counts] == min(fitting.values())
    assert found.run.pipeline.stages[0].recompute_ms == sum(rows[: found.counts[0]][:4])
    refined = ps.refine_split(profile, found.counts, schedule, 4, **how)
    assert refined.run.makespan == found.run.makespan
    # The layers that rebuild take longer: without that, another split is the best.
    other = ps.best_split(plain, 3, schedule, 4, options=options)
    assert other.run.makespan < found.run.makespan


@pytest.mark.parametrize("outputs", [[8] * 5, [8, 16, 8, 8, 8]])
def test_many_splits_at_once_take_what_each_takes_alone(outputs):
    profile = ps.LayerProfile(
        forward_ms=[0.1, 0.7, 0.3, 0.2, 0.9],
        backward_ms=[0.3, 0.8, 0.3, 0.5, 1.1],
        recompute_ms=[0.1, 0.0, 0.3, 0.1, 0.2],
        output_bytes=outputs,
    )
    options = {"bandwidth_gb_s": 1e-6, "speed": [1.0, 1.5, 0.5]}
    splits = list(compositions(5, 3))
    schedule = ps.build_schedule("1f1b", 3, 4)
    pipelines = split_pipelines(profile, np.array(splits), options, sizes=True)
    many = makespans(schedule, pipelines)
    alone = [ps.simulate(profile.split(s, **options), schedule).makespan for s in splits]
    assert many.tolist() == pytest.approx(alone, rel=1e-12)


def test_memory_limits_are_kept():
    # 1F1B holds 4, 3, 2, 1 micro-batches: with 16 bytes a rank at most 4, 5, 8, 16 layers.
    profile = profile_of([1.0] * 16, stash_bytes=[1] * 16)
    free = ps.refine_split(profile, [4, 4, 4, 4], "1f1b", 4)
    assert free.counts == (5, 4, 4, 3)
    assert free.run.peak_memory == (20, 12, 8, 3)
    tight = {"memory_bytes": 16}
    kept = ps.refine_split(profile, [4, 4, 4, 4], "1f1b", 4, **tight)
    assert max(kept.run.peak_memory) <= 16
    best = min(
        ps.simulate(profile.split(counts), "1f1b", 4).makespan
        for counts in compositions(16, 4)
        if all(held * n <= 16 for held, n in zip((4, 3, 2, 1), counts, strict=True))
    )
    assert kept.run.makespan == best
    assert ps.best_split(profile, 4, "1f1b", 4, **tight).run.makespan == best
    # From a start that does not fit the search goes on from those that do.
    assert ps.refine_split(profile, [10, 2, 2, 2], "1f1b", 4, **tight).run.makespan == best
    with pytest.raises(ValueError, match="the least that any split needs is"):
        ps.refine_split(profile, [4, 4, 4, 4], "1f1b", 4, memory_bytes=6)
    with pytest.raises(ValueError, match="the least that any split needs is 8 bytes"):
        ps.best_split(profile, 4, "1f1b", 4, memory_bytes=6)


def test_what_a_rank_holds():
    # Stage 1 of 1F1B on two ranks: one micro-batch of 3 + 4 bytes, what the larger rebuilds,
    # and the parameters, with Adam 16 bytes for each of two.
    profile = profile_of(
        [1.0] * 3, stash_bytes=[2, 3, 4], rebuilt_bytes=[0, 6, 5], param_bytes=[10, 20, 30]
    )
    pipe = profile.split([1, 2])
    schedule = ps.build_schedule("1f1b", 2, 4)
    assert ps.simulate(pipe, schedule).peak_memory == (2 * 2 + 10, 7 + 6 + 50)
    trained = ps.best_split(profile, 2, schedule, 4, training=ps.Training())
    assert trained.counts == (2, 1)
    assert trained.run.peak_memory == (2 * 5 + 6 + 8 * 30, 4 + 5 + 8 * 30)


def test_the_search_tells_how_far_it_is():
    told = []
    profile = profile_of([1.0, 2.0, 1.0, 3.0, 1.0])
    ps.refine_split(profile, [1, 1, 3], "1f1b", 2, progress=lambda *state: told.append(state))
    assert told
    assert all(0 < done <= total for done, total in told)


def test_a_split_that_loses_a_layer_is_refused():
    with pytest.raises(ValueError, match="places 3 layers, but the profile has 4: 1 would be lost"):
        ps.refine_split(profile_of([1.0] * 4), [2, 1], "1f1b", 2)
