"""The whole step: by hand, against a model of processes, and what must hold for any pipeline."""

from dataclasses import replace

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

import pipesim as ps
from pipesim.engine.trace import COLUMNS
from pipesim.report.run_text import step_text
from pipesim.schedules.program.lowering import PROTOCOLS
from tests.strategies import WITH_BACKWARD, cases

ASYNCHRONOUS = ("pipedream", "pipedream_2bw")
WITH_STEPS = [name for name in WITH_BACKWARD if name not in ASYNCHRONOUS]
TWO_STAGES = ps.Pipeline.from_costs([1, 1], [2, 2], param_bytes=[1_000_000, 3_000_000])


def two_by_two(**training):
    """Return the step of 2 stages, 2 micro-batches, 2 replicas, the second at half the speed.

    1F1B: replica 0 is through with stage 1 at 7 and with stage 0 at 9, replica 1 at 14 and 18.
    A full reduction of stage 0 takes 1, of stage 1 it takes 3; the optimizer 0.5 and 1.
    """
    given = {"bandwidth_gb_s": 1.0, "optimizer_ms": 0.5, "speed": (1.0, 0.5)}
    return ps.simulate_step(
        TWO_STAGES, "1f1b", 2, training=ps.Training(replicas=2, **given | training)
    )


def rows(step, kind):
    found = step.trace[step.trace.kind == kind]
    return [tuple(row) for row in found[["replica", "rank", "ready", "start", "end"]].values]


def test_two_replicas_by_hand():
    step = two_by_two()
    assert [run.makespan for run in step.runs] == [9, 18]
    assert (step.makespan, step.slowest_replica) == (18, 1)
    assert rows(step, "REDUCE") == [
        (0, 1, 7, 14, 17),
        (1, 1, 14, 14, 17),
        (0, 0, 9, 18, 19),
        (1, 0, 18, 18, 19),
    ]
    assert rows(step, "OPTIMIZER") == [
        (0, 0, 19, 19, 19.5),
        (0, 1, 17, 19, 19.5),
        (1, 0, 19, 19, 20),
        (1, 1, 17, 19, 20),
    ]
    assert (step.step_ms, step.period_ms) == (20, 20)
    assert (step.exposed_reduction_ms, step.update_ms) == (1, 1)
    ranks = step.ranks.set_index(["replica", "rank"])
    assert ranks.wait_reduction.tolist() == [9, 7, 0, 0]
    assert ranks.reduction.tolist() == [1, 3, 1, 3]
    assert ranks.wait_barrier.tolist() == [0, 2, 0, 2]
    assert ranks.optimizer.tolist() == [0.5, 0.5, 1, 1]
    assert ranks.end.tolist() == [19.5, 19.5, 20, 20]
    assert ranks.busy.tolist() == [6, 6, 12, 12]


def test_without_a_barrier_the_last_rank_is_through_early():
    step = two_by_two(barrier=False)
    assert (step.step_ms, step.period_ms) == (20, 20)
    assert rows(step, "OPTIMIZER")[:2] == [(0, 1, 17, 17, 17.5), (1, 1, 17, 17, 18)]
    assert step.ranks.wait_barrier.tolist() == [0] * 4


def test_zero_1_scatters_before_the_optimizer_and_gathers_after_it():
    step = two_by_two(zero=1)
    # Half the reduction, half the optimizer; parameters are as large as gradients.
    assert [row[3:] for row in rows(step, "REDUCE")[::2]] == [(14, 15.5), (18, 18.5)]
    assert [row[4] for row in rows(step, "OPTIMIZER")] == [18.75, 18.75, 19, 19]
    assert rows(step, "GATHER") == [
        (0, 0, 18.75, 19, 19.5),
        (1, 0, 19, 19, 19.5),
        (0, 1, 18.75, 19, 20.5),
        (1, 1, 19, 19, 20.5),
    ]
    assert (step.step_ms, step.exposed_reduction_ms, step.update_ms) == (20.5, 0.5, 2)
    # The first op of rank 1 starts at 1 in replica 0, at 2 in replica 1: its step is shorter.
    assert step.period_ms == 19.5
    assert two_by_two(zero=2).step_ms == 20.5
    third = two_by_two(zero=3)  # gathers within the ops, which are not timed
    assert (third.step_ms, rows(third, "GATHER")) == (19, [])


def test_reductions_beside_the_compute_or_after_it():
    # One rank, two stages, a micro-batch: F0 F1 B1 B0; stage 1 is whole at 4, stage 0 at 6.
    pipe = ps.Pipeline.from_costs([1, 1], [2, 2], ranks=1, param_bytes=[1_000_000, 3_000_000])
    order = ps.Schedule.from_orders(["0F0 1F0 1B0 0B0"], placement=pipe.placement)
    ends = {}
    for overlap in (True, False):
        training = ps.Training(replicas=2, bandwidth_gb_s=1.0, overlap=overlap)
        step = ps.simulate_step(pipe, order, training=training)
        ends[overlap] = [row[3:] for row in rows(step, "REDUCE")[::2]]
        # One at a time, the stage that is whole first goes first.
        assert step.exposed_reduction_ms == (2 if overlap else 4)
        assert step.ranks.reduction.tolist() == [2 if overlap else 4] * 2
    assert ends == {True: [(4, 7), (7, 8)], False: [(6, 9), (9, 10)]}


def test_a_tied_embedding_goes_over_the_slower_of_the_two_links():
    pipe = ps.Pipeline.from_costs(
        1.0, 2.0, stages=3, bandwidth_gb_s={(0, 2): 1.0, (2, 0): 0.5}, param_bytes=1_000_000
    )
    training = ps.Training(replicas=2, bandwidth_gb_s=1.0, tied_bytes=1_000_000)
    step = ps.simulate_step(pipe, "1f1b", 2, training=training)
    assert step.makespan == 12
    assert rows(step, "TIED") == [
        (0, 0, 13, 13, 15),
        (0, 2, 9, 13, 15),
        (1, 0, 13, 13, 15),
        (1, 2, 9, 13, 15),
    ]
    assert step.step_ms == 15
    assert ps.simulate_step(pipe, "1f1b", 2).step_ms == 12
    heavy = [*pipe.stages[:2], replace(pipe.stages[2], param_bytes=9_000_000)]
    late = ps.simulate_step(replace(pipe, stages=tuple(heavy)), "1f1b", 2, training=training)
    assert rows(late, "TIED")[0] == (0, 0, 13, 17, 19)


def test_both_directions_of_flow_reduce_as_one():
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=2, param_bytes=1_000_000)
    training = ps.Training(bandwidth_gb_s=1.0, tied_bytes=1_000_000)
    step = ps.simulate_step(pipe, "chimera", 2, training=training)
    # Two copies of either stage, 2(2-1)/2 x 1 ms; each rank holds both ends: nothing is tied.
    reduced = rows(step, "REDUCE")
    assert len(reduced) == 4
    assert {end - start for *_, start, end in reduced} == {1}
    assert rows(step, "TIED") == []
    assert step.makespan + 1 <= step.step_ms <= step.makespan + 2


def test_what_the_optimizer_takes_goes_by_stage_and_speed():
    pipe = ps.Pipeline.from_costs([1, 1], [2, 2], speed=[1.0, 2.0])
    training = ps.Training(optimizer_ms=(1.0, 6.0))
    step = ps.simulate_step(pipe, "gpipe", 1, training=training)
    assert step.ranks.optimizer.tolist() == [1, 3]
    assert step.step_ms == step.makespan + 3
    with pytest.raises(ValueError, match="optimizer_ms has 3 entries for 2 stages"):
        ps.simulate_step(pipe, "gpipe", 1, training=ps.Training(optimizer_ms=(1.0, 1.0, 1.0)))


def test_the_trace_of_a_step():
    step = two_by_two(zero=1)
    trace = step.trace
    assert tuple(trace.columns) == COLUMNS
    assert trace.dtypes.equals(step.runs[0].trace.dtypes)
    keys = trace[["start", "end", "replica", "rank", "resource"]]
    assert keys.equals(keys.sort_values(list(keys), kind="stable"))
    at_end = trace[trace.microbatch == -1]
    assert set(at_end.resource) == {"network", "compute"}
    for number, run in enumerate(step.runs):
        own = trace[(trace.replica == number) & (trace.microbatch >= 0)]
        own = own.drop(columns="replica").reset_index(drop=True)
        assert own.equals(run.trace.drop(columns="replica"))
    alone = ps.simulate_step(TWO_STAGES, "1f1b", 2)
    assert alone.trace.equals(alone.runs[0].trace)


def test_the_numbers_as_a_plain_dict():
    step = two_by_two()
    found = step.summary()
    assert found["makespan_ms"] == step.runs[1].makespan == 18  # of the slowest replica
    assert set(step.runs[0].summary()) < set(found)
    assert (found["replicas"], found["step_ms"], found["slowest_replica"]) == (2, 20, 1)
    assert [each["mean_wait_ms"] for each in found["per_replica"]] == [9, 1]
    assert repr(step) == (
        "Step(1f1b, replicas=2, ranks=2, microbatches=2, step=20 ms, makespan=18 ms)"
    )


def test_replicas_hold_what_zero_leaves_them_and_reduce_the_whole():
    step = two_by_two(zero=3)
    assert [stage.param_bytes for stage in step.runs[0].pipeline.stages] == [500_000, 1_500_000]
    assert [stage.optimizer_bytes for stage in step.runs[0].pipeline.stages] == [
        3_000_000,
        9_000_000,
    ]
    assert [row[4] - row[3] for row in rows(step, "REDUCE")[::2]] == [1.5, 0.5]


def test_equal_replicas_are_simulated_once():
    step = ps.simulate_step(TWO_STAGES, "1f1b", 2, training=ps.Training(replicas=1000))
    assert len(step.runs) == 1000
    assert len({id(run) for run in step.runs}) == 1
    assert len({id(run) for run in two_by_two().runs}) == 2


def test_replicas_of_other_costs():
    other = ps.Pipeline.from_costs([2, 1], [2, 5], param_bytes=[1_000_000, 3_000_000])
    training = ps.Training(replicas=2)
    step = ps.simulate_step([TWO_STAGES, other], "1f1b", 2, training=training)
    alone = [ps.simulate(pipe, "1f1b", 2).makespan for pipe in (TWO_STAGES, other)]
    assert [run.makespan for run in step.runs] == alone
    assert step.step_ms == max(alone)
    with pytest.raises(ValueError, match="1 pipelines for 2 replicas"):
        ps.simulate_step([other], "1f1b", 2, training=training)
    bare = ps.Pipeline.from_costs([2, 1], [2, 5])
    with pytest.raises(ValueError, match=r"replica 1 has stages of \[0, 0\] param_bytes"):
        ps.simulate_step([TWO_STAGES, bare], "1f1b", 2, training=training)


def test_an_order_by_the_costs_is_made_once_for_all_replicas():
    pipe = ps.Pipeline.from_costs([1, 1, 1, 3], input_grad=[1, 1, 1, 2], weight_grad=1.0)
    training = ps.Training(replicas=2, speed=(1.0, (1.0, 0.4, 1.0, 1.0)))
    step = ps.simulate_step(pipe, "zb_auto", 8, training=training)
    assert step.runs[0].schedule is step.runs[1].schedule
    assert step.runs[0].makespan == ps.simulate(pipe, "zb_auto", 8).makespan


@pytest.mark.parametrize(
    ("name", "message"), [("gpipe_forward", "has no backward"), ("pipedream", "2 versions")]
)
def test_what_has_no_end_of_a_step(name, message):
    with pytest.raises(ps.ScheduleError, match=message):
        ps.simulate_step(TWO_STAGES, name, 4)


trainings = st.builds(
    ps.Training,
    replicas=st.just(3),
    zero=st.integers(0, 3),
    latency_ms=st.sampled_from([0.0, 0.3]),
    bandwidth_gb_s=st.sampled_from([None, 0.5, 25.0]),
    overlap=st.booleans(),
    optimizer_ms=st.sampled_from([0.0, 0.7]),
    tied_bytes=st.sampled_from([0, 10**6]),
    barrier=st.booleans(),
    speed=st.sampled_from([1.0, (1.0, 0.8, 1.0), (0.7, 1.0, 1.3)]),
)


@st.composite
def steps(draw, **more):
    """Draw (pipeline with parameters, schedule, training)."""
    pipe, schedule = draw(cases(of=WITH_STEPS))
    sizes = draw(st.lists(st.integers(0, 10**7), min_size=len(pipe.stages), max_size=64))
    stages = tuple(
        replace(stage, param_bytes=size) for stage, size in zip(pipe.stages, sizes, strict=False)
    )
    return replace(pipe, stages=stages), schedule, replace(draw(trainings), **more)


@settings(max_examples=60)
@given(steps(replicas=1, optimizer_ms=0.0, tied_bytes=0, speed=1.0))
def test_one_replica_changes_nothing(case):
    pipe, schedule, training = case
    if schedule.placement.directions > 1:  # its two copies are reduced even so, here in no time
        training = ps.Training()
    step = ps.simulate_step(pipe, schedule, training=training)
    run = ps.simulate(pipe, schedule)
    assert step.step_ms == step.makespan == run.makespan
    assert (step.exposed_reduction_ms, step.update_ms) == (0, 0)
    for name in ("ready", "start", "end"):
        assert np.array_equal(getattr(step.runs[0].spans, name), getattr(run.spans, name))
    if schedule.placement.directions == 1:
        assert step.trace.equals(run.trace)


@settings(max_examples=40)
@given(steps(speed=1.0), st.sampled_from(PROTOCOLS))
def test_equal_replicas_only_add_the_end(case, protocol):
    pipe, schedule, training = case
    try:
        run = ps.simulate(pipe, schedule, protocol=protocol)
    except ps.DeadlockError:
        return
    step = ps.simulate_step(pipe, schedule, training=training, protocol=protocol)
    assert step.makespan == run.makespan
    assert step.step_ms >= run.makespan
    ends = step.ranks.groupby("replica").end.apply(list)
    assert ends[0] == ends[1] == ends[2]
    whole = sum(training.all_reduce_ms(stage.param_bytes) for stage in pipe.stages)
    if not training.tied_bytes and schedule.placement.directions == 1:
        assert step.exposed_reduction_ms <= whole * (1 + 1e-9) + 1e-9 * run.makespan


@settings(max_examples=25)
@given(steps(latency_ms=0.0, bandwidth_gb_s=None, optimizer_ms=0.0, tied_bytes=0))
def test_the_slowest_replica_sets_the_step(case):
    pipe, schedule, training = case
    step = ps.simulate_step(pipe, schedule, training=training, engine="replay")
    assert step.step_ms == step.runs[step.slowest_replica].makespan
    assert step.step_ms == max(run.makespan for run in step.runs)


@settings(max_examples=25)
@given(steps(overlap=True))
def test_overlap_and_no_barrier_never_take_longer(case):
    pipe, schedule, training = case
    here = ps.simulate_step(pipe, schedule, training=training, engine="replay")
    after = ps.simulate_step(
        pipe, schedule, training=replace(training, overlap=False), engine="replay"
    )
    free = ps.simulate_step(
        pipe, schedule, training=replace(training, barrier=False), engine="replay"
    )
    assert here.step_ms <= after.step_ms
    assert free.step_ms <= here.step_ms
    assert free.period_ms <= here.period_ms <= here.step_ms * (1 + 1e-12)


@settings(max_examples=25)
@given(steps())
def test_both_engines_end_the_step_alike(case):
    pipe, schedule, training = case
    one, other = (
        ps.simulate_step(pipe, schedule, training=training, engine=engine)
        for engine in ("simpy", "replay")
    )
    assert one.step_ms == other.step_ms
    assert one.trace.equals(other.trace)


@settings(max_examples=60)
@given(steps())
def test_a_model_of_processes_gives_the_same_times(case):
    pipe, schedule, training = case
    step = ps.simulate_step(pipe, schedule, training=training)
    if schedule.placement.directions == 1:
        expected = model(step, pipe, training)
        assert step.end.done.tolist() == [pytest.approx(row, rel=1e-12) for row in expected]
    times = step.ranks
    parts = ["wait_reduction", "reduction", "wait_barrier", "optimizer", "gather"]
    assert (times[parts] >= 0).all(axis=None)
    after_the_ops = times.end - step.end.through.ravel()
    assert times[parts].sum(axis=1).tolist() == pytest.approx(after_the_ops.tolist(), abs=1e-7)


def model(step, pipe, training):
    """Return when each rank of each replica is through with everything, by SimPy processes.

    One a rank for the network of all replicas, one a replica for the tied embedding, one a
    replica and rank for the rest. Stages on one rank each.
    """
    env = simpy.Environment()
    order, rank_of = step.schedule, step.schedule.placement.rank_of
    replicas, ranks, stages = range(len(step.runs)), range(order.ranks), range(order.stages)
    held = [  # in the order of the last backwards
        list(dict.fromkeys(op.stage for op in reversed(order.order(k)) if op.kind != ps.Kind.F))
        for k in ranks
    ]
    held = [list(reversed(stages_of)) for stages_of in held]
    ends = [run.spans.end for run in step.runs]

    def at(time):
        return env.timeout(time)

    whole, through = {}, {}
    for r in replicas:
        for k in ranks:
            first, last = order.offsets[k], order.offsets[k + 1] - 1
            through[r, k] = at(ends[r][last])
            for n in range(first, last + 1):
                if order.kind[n] != ps.Kind.F:
                    whole[r, order.stage[n]] = n
    whole = {key: at(ends[key[0]][n]) for key, n in whole.items()}
    reduced = {s: env.event() for s in stages}
    tied = {r: env.event() for r in replicas}
    ready = {(r, k): env.event() for r in replicas for k in ranks}
    updated = {(r, s): env.event() for r in replicas for s in stages}
    done = [[0.0] * order.ranks for _ in replicas]
    ring = (training.replicas - 1) / training.replicas
    rounds = 2 if training.zero == 0 else 1
    link = ps.Link(training.latency_ms, training.bandwidth_gb_s)

    def collective(size, rounds):
        return at(link.wire_ms(rounds * ring * size) + link.latency_ms)

    def network(k):
        for s in held[k]:
            yield env.all_of([whole[r, s] if training.overlap else through[r, k] for r in replicas])
            yield collective(pipe.stages[s].param_bytes, rounds)
            reduced[s].succeed()
        if training.zero in (1, 2):
            for s in held[k]:
                wanted = [s] if training.overlap else held[k]
                yield env.all_of([updated[r, other] for r in replicas for other in wanted])
                yield collective(pipe.stages[s].param_bytes, 1)
            for r in replicas:
                done[r][k] = env.now

    def embedding(r):
        yield reduced[0] & reduced[stages[-1]]
        near, far = rank_of[0], rank_of[-1]
        if training.tied_bytes and near != far:
            ways = (pipe.link(near, far), pipe.link(far, near))
            yield at(max(way.wire_ms(training.tied_bytes) + way.latency_ms for way in ways))
        tied[r].succeed()

    def rank(r, k):
        yield env.all_of([through[r, k], *(reduced[s] for s in held[k])])
        if training.tied_bytes and rank_of[0] != rank_of[-1] and k in (rank_of[0], rank_of[-1]):
            yield tied[r]
        ready[r, k].succeed()
        if training.barrier:
            yield env.all_of(list(ready.values()))
        for s in held[k]:
            share = training.replicas if training.zero else 1
            speed = training.replica(pipe, r).devices[k].speed
            yield at(training.optimizer_ms / share / speed)
            updated[r, s].succeed()
        done[r][k] = max(done[r][k], env.now)

    for k in ranks:
        env.process(network(k))
        for r in replicas:
            env.process(rank(r, k))
    for r in replicas:
        env.process(embedding(r))
    env.run()
    return done


def test_the_step_as_text():
    lines = step_text(two_by_two(zero=1)).splitlines()
    assert lines == [
        "step 20.50 ms = makespan 18.00 + reductions 0.50 + optimizer and gathers 2.00",
        "2 replicas, ZeRO-1: gradients reduced beside the compute; "
        "every optimizer waits for all gradients;",
        "the next step can follow after 19.50 ms",
        "replica  makespan  bubble  waits for others  for the barrier",
        "      0      9.00   33.3%              8.00             1.50",
        "      1     18.00   33.3%              0.00             1.50  <- slowest",
        "waits: mean over ranks after their last op; a slow replica waits least",
    ]
    alike = step_text(two_by_two(speed=1.0, overlap=False, barrier=False)).splitlines()
    assert alike[1].endswith(
        "gradients reduced after the compute; every optimizer waits for its rank's gradients;"
    )
    assert alike[-1] == "all replicas take the same time"
    alone = step_text(ps.simulate_step(TWO_STAGES, "1f1b", 2)).splitlines()
    assert alone[1:] == [
        "1 replica: every optimizer waits for all gradients;",
        "the next step can follow after 9.0000 ms",
    ]
    many = ps.Training(replicas=20, speed=tuple(1 - number / 100 for number in range(20)))
    last = step_text(ps.simulate_step(TWO_STAGES, "1f1b", 2, training=many)).splitlines()
    assert last[-1].endswith("4 faster replicas left out")
    assert [line.split()[0] for line in last[4:-1]] == [str(n) for n in range(4, 20)]


def test_a_training_takes_lists():
    training = ps.Training(replicas=2, speed=[1.0, [1.0, 0.5]], optimizer_ms=[1, 2])
    assert training == ps.Training(replicas=2, speed=(1.0, (1.0, 0.5)), optimizer_ms=(1, 2))


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_two_copies_in_one_replica_split_nothing(zero):
    pipe = ps.Pipeline.from_costs(
        [1] * 4, input_grad=[1] * 4, weight_grad=[1] * 4, param_bytes=1_000_000
    )
    plain, split = (
        ps.simulate_step(
            pipe,
            "dualpipe",
            8,
            training=ps.Training(zero=level, bandwidth_gb_s=1.0, latency_ms=0.25),
        )
        for level in (0, zero)
    )
    # The ops end at 26. Ranks 1 and 2 reduce stage 2 from 25 on, then stage 1; each reduction takes
    # 2 x (1/2) x 1 MB / (1 GB/s) and a latency.
    assert plain.exposed_reduction_ms == 25 + 2 * 1.25 - 26
    assert split.step_ms == plain.step_ms
    assert split.end.gather is None
