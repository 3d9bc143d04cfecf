"""Sends and receives as instructions: what each protocol costs, and which orders hang."""

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipesim as ps
from pipesim.engine.graph.event_graph import event_graph
from pipesim.engine.workload import bind
from pipesim.schedules.program.lowering import PROTOCOLS, lower
from tests.engine.instruction_path import instruction_path
from tests.engine.longest_path import Deadlock
from tests.engine.test_engine import random_orders
from tests.strategies import cases

BLOCKS = {"posted": (), "posted_blocking": ("RECV",)}


def step(schedule, protocol, p=4, m=8, **options):
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=p, latency_ms=0.5)
    return ps.simulate(pipe, schedule, m, protocol=protocol, **options).makespan


@pytest.mark.parametrize(
    "schedule, protocol, makespan",
    [
        ("1f1b", "eager", 41),
        ("gpipe", "eager", 36),
        ("1f1b", "odd_even", 50),
        ("1f1b", "paired", 42.5),
        ("gpipe", "paired", 43),
        ("gpipe", "rendezvous", 50),
    ],
)
def test_the_protocol_decides_what_half_a_millisecond_a_hop_costs(schedule, protocol, makespan):
    assert step(schedule, protocol) == makespan


def test_naive_1f1b_hangs_where_the_last_two_ranks_both_send_first():
    with pytest.raises(ps.DeadlockError) as caught:
        step("1f1b", "rendezvous")
    assert caught.value.cycle == (
        (2, 5, "2SEND_F1", "3RECV_F1"),
        (3, 3, "3SEND_B0", "2RECV_B0"),
    )
    assert str(caught.value).splitlines() == [
        "1f1b under rendezvous cannot go on: ranks 2, 3 wait for each other",
        "  rank 2 at 2SEND_F1, instruction 6 of its 48: "
        "waits for 3RECV_F1, instruction 5 of rank 3",
        "  rank 3 at 3SEND_B0, instruction 4 of its 32: "
        "waits for 2RECV_B0, instruction 7 of rank 2",
        "  2 more ranks cannot go on for that reason",
        "  rank 0 | ... 0SEND_F1  0F2       0SEND_F2  0F3  >0SEND_F3<  0RECV_B0  0B0  0F4 ...",
        "  rank 1 | ... 1F1       1SEND_F1  1RECV_F2  1F2  >1SEND_F2<  1RECV_B0  1B0  1SEND_B0 ...",
        "  rank 2 | ... 2F0       2SEND_F0  2RECV_F1  2F1  >2SEND_F1<  2RECV_B0  2B0  2SEND_B0 ...",
        "  rank 3 |               3RECV_F0  3F0       3B0  >3SEND_B0<  3RECV_F1  3F1  3B1 ...",
        "  no swap of two neighbouring instructions lets it go on",
    ]


@pytest.mark.parametrize("p, m", [(1, 1), (2, 1), (4, 1), (4, 2), (8, 4), (3, 7), (8, 32), (5, 2)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "gpipe_forward"])
@pytest.mark.parametrize("protocol", ["odd_even", "paired", "posted", "posted_blocking"])
def test_reordered_transfers_do_not_hang_at_turns(schedule, protocol, p, m):
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=p, latency_ms=0.5)
    run = ps.simulate(pipe, schedule, m, protocol=protocol)
    assert run.makespan >= ps.simulate(pipe, schedule, m).makespan


def test_only_orders_that_go_back_and_forth_between_neighbours_bear_blocking_transfers():
    def hangs(protocol):
        found = set()
        for name in ps.schedule_names():
            program = ps.lower(ps.build_schedule(name, 4, 8), protocol)
            try:
                ps.check_deadlock(program)
            except ps.DeadlockError:
                found.add(name)
        return found

    every = set(ps.schedule_names())
    forward = {"gpipe", "gpipe_forward", "terapipe"}  # one way at a time
    in_turn = {"1f1b", "seq1f1b", "pipedream", "pipedream_2bw"}
    split = {"zb_h1", "zb_auto", "zb_1p", "zb_2p", "1f1b_eager"}
    assert hangs("eager") == hangs("posted") == hangs("posted_blocking") == set()
    assert hangs("rendezvous") == every - forward
    assert hangs("odd_even") == every - forward - in_turn
    assert hangs("paired") == every - forward - in_turn - split


def test_plain_even_send_first_would_hang_where_design_says():
    # Without the rule that a send goes first where the receive follows from it.
    def plain(p, m, schedule):
        order = ps.build_schedule(schedule, p, m)
        program = lower(order, "rendezvous")
        for _ in range(len(program)):  # bubble the receives of odd ranks before the sends
            rank, kinds = program.rank, [program.text(i) for i in range(len(program))]
            swap = next(
                (
                    i
                    for i in range(len(program) - 1)
                    if rank[i] == rank[i + 1]
                    and rank[i] % 2
                    and "SEND" in kinds[i]
                    and "RECV" in kinds[i + 1]
                ),
                None,
            )
            if swap is None:
                break
            program = program.swapped(swap)
        return event_graph(program).stuck().any()

    assert plain(4, 2, "gpipe")
    assert all(plain(p, m, "1f1b") for p, m in [(4, 1), (4, 2), (8, 4)])
    assert not plain(4, 8, "1f1b")


# pytorch/pytorch#172668: every receive stands as early as its send.
EARLY = ["0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1", "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"]


@pytest.mark.parametrize("protocol, makespan", [("posted", 15), ("posted_blocking", 21)])
def test_receives_that_block_where_they_are_listed_cost_six_of_fifteen(protocol, makespan):
    order = ps.Schedule.from_orders(EARLY)
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=4, ranks=2)
    assert ps.simulate(pipe, order, protocol=protocol).makespan == makespan
    assert [lower(order, protocol).text(i) for i in range(6)] == [
        "0F0",
        "0SEND_F0",
        "2RECV_F0",
        "0F1",
        "0SEND_F1",
        "2RECV_F1",
    ]


# NVIDIA/nccl#479: two ranks that each send first.
def test_two_ranks_that_both_send_first_hang():
    program = ps.Program.from_lists(["send x to 1, recv y from 1", "send y to 0, recv x from 0"])
    with pytest.raises(ps.DeadlockError) as caught:
        ps.check_deadlock(program)
    assert caught.value.cycle == (
        (0, 0, "send x to 1", "recv x from 0"),
        (1, 0, "send y to 0", "recv y from 1"),
    )
    assert str(caught.value).splitlines()[-1] == (
        "  it would go on with send x to 1 and recv y from 1 swapped "
        "(instructions 1 and 2 of rank 0)"
    )


def test_grouped_or_turned_round_on_one_side_they_do_not():
    ps.check_deadlock(
        ps.Program.from_lists(["send x to 1, recv y from 1", "recv x from 0, send y to 0"])
    )
    ps.check_deadlock(
        ps.Program.from_lists(["send x to 1 & recv y from 1", "send y to 0 & recv x from 0"])
    )


# meta-pytorch/torchrec#4472: the same order passes by luck while its messages are small.
@pytest.mark.parametrize("size, hangs", [(4096, False), (4097, True)])
def test_small_messages_pass_and_large_ones_hang(size, hangs):
    lists = ["send x to 1, recv y from 1", "send y to 0, recv x from 0"]
    program = ps.Program.from_lists(lists, sizes={"x": size, "y": size})
    if not hangs:
        ps.check_deadlock(program, eager_limit_bytes=4096)
        return
    with pytest.raises(ps.DeadlockError) as caught:
        ps.check_deadlock(program, eager_limit_bytes=4096)
    assert [rank for rank, *_ in caught.value.cycle] == [0, 1]
    one = ps.Program.from_lists(lists, sizes={"x": size, "y": 8})
    ps.check_deadlock(one, eager_limit_bytes=4096)  # one small message is enough


# NVIDIA/Megatron-LM#5100: shapes are exchanged before the data, in an order of their own.
def with_shapes(p, m, shapes_first):
    """Return 1F1B with the data in groups and the shapes one by one, sent or received first."""
    lists = []
    for rank in range(p):
        warm = min(m, p - 1 - rank)
        order = [f"F{i}" for i in range(warm)]
        for i in range(m - warm):
            order += [f"F{warm + i}", f"B{i}"]
        order += [f"B{i}" for i in range(m - warm, m)]
        row = []
        for before, after in zip([None, *order], [*order, None], strict=True):
            sends, receives = [], []
            if before is not None:
                to = rank + 1 if before[0] == "F" else rank - 1
                if 0 <= to < p:
                    sends = [(f"{before}.{rank}-{to}", to)]
            if after is not None:
                source = rank - 1 if after[0] == "F" else rank + 1
                if 0 <= source < p:
                    receives = [(f"{after}.{source}-{rank}", source)]
            # The gradient follows from the activation that is sent: the send goes first.
            turn = bool(sends and receives) and before[0] == "F" and after == f"B{before[1:]}"
            for class_, rule in (("shape", shapes_first), ("data", "group")):
                send = [f"send {class_}:{name} to {to}" for name, to in sends]
                receive = [f"recv {class_}:{name} from {source}" for name, source in receives]
                late = turn or rule == "send" or (rule == "odd_even" and rank % 2 == 0)
                if rule == "group" and not turn:
                    row += [" & ".join(send + receive)]
                else:
                    row += send + receive if late else receive + send
            row.append(after or "")
        lists.append(row)
    return ps.Program.from_lists(lists)


def test_an_order_check_must_see_every_class_of_message():
    with pytest.raises(ps.DeadlockError) as caught:
        ps.check_deadlock(with_shapes(4, 8, "send"))
    assert caught.value.cycle == (
        (2, 7, "send shape:F1.2-3 to 3", "recv shape:F1.2-3 from 2"),
        (3, 4, "send shape:B0.3-2 to 2", "recv shape:B0.3-2 from 3"),
    )
    ps.check_deadlock(with_shapes(4, 8, "odd_even"))


def test_a_swap_that_breaks_the_cycle_is_named():
    order = ps.Schedule.from_orders(["0F0 0F1 0B0 0B1", "1F1 1F0 1B0 1B1"])
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=2)
    with pytest.raises(ps.DeadlockError) as caught:
        ps.simulate(pipe, order, queue_capacity=1)
    assert str(caught.value).splitlines() == [
        "custom cannot go on: ranks 0, 1 wait for each other",
        "  rank 0 at 0F1, op 2 of its 4: waits for room in the queue from stage 0 to stage 1, "
        "until 1F1, op 1 of rank 1, starts",
        "  rank 1 at 1F1, op 1 of its 4: waits for the activation from 0F1, op 2 of rank 0",
        "  rank 0 |     0F0  >0F1<  0B0  0B1",
        "  rank 1 |          >1F1<  1F0  1B0  1B1",
        "  it would go on with 0F0 and 0F1 swapped (ops 1 and 2 of rank 0)",
    ]


def check_engine(pipe, schedule, protocol, capacity, limit):
    """Check the SimPy engine against the recursion over texts, and the event graph against both."""
    program = lower(schedule, protocol)
    limit = None if protocol == "eager" else limit
    workload = bind(program, pipe, limit)
    graph = event_graph(program, queue_capacity=capacity, meets=workload.meets)
    options = {"protocol": protocol, "queue_capacity": capacity, "eager_limit_bytes": limit}
    try:
        ops, messages = instruction_path(
            program, workload, BLOCKS.get(protocol, ("SEND", "RECV")), capacity
        )
    except Deadlock:
        assert graph.stuck().any()
        with pytest.raises(ps.DeadlockError) as caught:
            ps.simulate(pipe, schedule, **options)
        assert_is_a_cycle(program, caught.value.cycle)
        assert ("would go on" in str(caught.value)) == any(
            not event_graph(program.swapped(i), **graph.rules).stuck().any()
            for i in range(len(program) - 1)
            if program.rank[i] == program.rank[i + 1]
        )
        return
    assert not graph.stuck().any()
    run = ps.simulate(pipe, schedule, **options)
    times = graph.times(*graph.costs(workload.duration, workload.wire, workload.latency))
    for number in range(len(schedule)):
        name = str(schedule.op(number))
        assert (run.spans.start[number], run.spans.end[number]) == ops[name]
        assert tuple(times[graph.enter[program.instruction_of_op[number]], [0, 2]]) == ops[name]
        if name in messages:
            assert (run.spans.departure[number], run.spans.arrival[number]) == messages[name]
            assert tuple(times[graph.transfer[number], [0, 2]]) == messages[name]


def assert_is_a_cycle(program, cycle):
    """Each rank waits for an instruction that the next one comes to after where it stands."""
    rows = [
        [program.text(i) for i in range(program.offsets[r], program.offsets[r + 1])]
        for r in range(program.ranks)
    ]
    for before, at in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        assert rows[at.rank][at.place] == at.instruction
        assert at.place <= rows[at.rank].index(before.awaited)


protocols = st.sampled_from(PROTOCOLS)
limits = st.sampled_from([None, 0, 10**6, 10**9])


@settings(max_examples=250, deadline=None)
@given(cases(), protocols, st.sampled_from([None, 1, 2, 3]), limits)
def test_engine_and_graph_agree_with_the_instructions_read_out(case, protocol, capacity, limit):
    pipe, schedule = case
    check_engine(pipe, schedule, protocol, capacity, limit)


@settings(max_examples=250, deadline=None)
@given(
    st.randoms(use_true_random=False),
    st.integers(1, 4),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from([None, 1, 2, 3]),
    protocols,
    limits,
)
def test_random_orders_hang_exactly_when_the_graph_has_a_cycle(
    random, p, m, split, capacity, protocol, limit
):
    schedule = ps.Schedule.from_orders(random_orders(random, p, m, split))
    pipe = ps.Pipeline.from_costs(
        forward=[random.choice([0.0, 1.0, 2.5]) for _ in range(p)],
        input_grad=[random.choice([0.0, 1.0]) for _ in range(p)],
        weight_grad=0.5,
        latency_ms=0.25,
        bandwidth_gb_s=1.0,
        output_bytes=[random.choice([0, 10**6, 10**7]) for _ in range(p)],
    )
    check_engine(pipe, schedule, protocol, capacity, limit)


@settings(max_examples=100, deadline=None)
@given(cases(), protocols, limits)
def test_idle_parts_add_up_where_transfers_block(case, protocol, limit):
    pipe, schedule = case
    limit = None if protocol == "eager" else limit
    try:
        run = ps.simulate(pipe, schedule, protocol=protocol, eager_limit_bytes=limit)
    except ps.DeadlockError:
        return
    times, tolerance = run.rank_times, 1e-9 * run.makespan
    np.testing.assert_allclose(times.idle, run.makespan - times.busy, rtol=0, atol=tolerance)
    waits = times.wait_forward + times.wait_gradient + times.blocked
    assert (times.exposed_communication <= waits + tolerance).all()
    assert all((getattr(times, cause) >= 0).all() for cause in ("wait_forward", "blocked"))
    if protocol in ("eager", "posted"):
        assert not times.blocked.any()


def test_blocking_transfers_are_rows_of_the_trace():
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=2, latency_ms=0.5)
    run = ps.simulate(pipe, "gpipe", 1, protocol="paired")
    # By hand: F 0..1 on rank 0, sent 1..1.5, F 1.5..2.5, B 2.5..4.5, sent 4.5..5, B 5..7. Rank 1
    # waits for the activation from the start, rank 0 for the gradient from 1.5 on.
    held = run.trace[run.trace.resource == "exchange"]
    assert held[["rank", "kind", "start", "end"]].values.tolist() == [
        [1, "RECV_F", 0.0, 1.5],
        [0, "SEND_F", 1.0, 1.5],
        [0, "RECV_B", 1.5, 5.0],
        [1, "SEND_B", 4.5, 5.0],
    ]
    assert run.ranks.blocked.tolist() == [4.0, 0.0]  # rank 1: before its first op is fill
    assert run.ranks.exposed_communication.tolist() == [1.0, 0.0]


def test_a_group_is_told_in_the_trace():
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=2, latency_ms=0.5)
    trace = ps.simulate(pipe, "1f1b", 2, protocol="paired").trace
    grouped = trace[(trace.resource == "exchange") & (trace.group >= 0)]
    assert grouped.groupby("group").kind.agg(list).map(sorted).tolist() == [
        ["RECV_B", "SEND_F"],
        ["RECV_F", "SEND_B"],
    ]


def test_the_ladder_tells_what_a_protocol_adds():
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=4, latency_ms=0.5)
    rungs = ps.ladder(ps.simulate(pipe, "1f1b", 8, protocol="odd_even", queue_capacity=4))
    assert rungs.rung.tolist()[2:] == ["+ transfers", "+ protocol odd_even", "+ bounded queues"]
    assert rungs.step_ms.tolist()[2:4] == [41, 50]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"protocol": "blocking"}, "'blocking' is unknown; did you mean posted_blocking?"),
        ({"protocol": "any"}, "protocol 'any' is unknown; known: eager, rendezvous"),
        ({"eager_limit_bytes": 10}, "with protocol 'eager' no message waits"),
        ({"protocol": "paired", "eager_limit_bytes": -1}, "eager_limit_bytes = -1 is not"),
    ],
)
def test_bad_options_are_told(options, message):
    with pytest.raises(ValueError, match=message):
        ps.simulate(ps.Pipeline.from_costs(1.0, 2.0, stages=2), "1f1b", 2, **options)


@pytest.mark.parametrize(
    "lists, message",
    [
        (["send x to 1", "F0"], "'x' do not meet: sent by 0 to 1, never received"),
        (["send x to 1", "recv x from 2", "F"], "sent by 0 to 1, received by 1 from 2"),
        (["send x to 1, send x to 1", "recv x from 0"], "rank 0: 'send x to 1' is there twice"),
        (["send x to 1 & F0", "recv x from 0"], "'F0' among 'send x to 1 & F0'"),
    ],
)
def test_lists_that_make_no_program_are_told(lists, message):
    with pytest.raises(ps.ScheduleError, match=message):
        ps.Program.from_lists(lists)


def test_exposed_is_only_what_travels():
    # By hand it is little: a tenth for each message, and the last stage is ten times as slow.
    pipe = ps.Pipeline.from_costs([1, 1, 10], [2, 2, 20], latency_ms=0.1)
    run = ps.simulate(pipe, "1f1b", 8, protocol="paired")
    rows = run.trace
    held = rows[(rows.resource == "exchange") & (rows["rank"] == 1)]
    compute = rows[(rows.resource == "compute") & (rows["rank"] == 1)]
    links = rows[rows.resource == "link"]
    expected = 0.0
    for begin, end in {(b, e) for b, e in zip(held.start, held.end, strict=True)}:
        if not compute.end.min() <= begin < compute.start.max():
            continue
        inside = set()
        for row in held[(held.start == begin) & (held.end == end)].itertuples():
            match = links[(links.microbatch == row.microbatch) & (links.start < end)]
            kind = row.kind.replace("RECV", "SEND")
            source = {"SEND": 1, "RECV_F": 0, "RECV_B": 2}
            rank = source.get(row.kind[:4], source.get(row.kind))
            (link,) = match[(match.kind == kind) & (match["rank"] == rank)].itertuples()
            inside.add((max(link.start, begin), min(link.end, end)))
        times = sorted({t for span in inside for t in span})
        for low, high in pairwise(times):
            if any(b <= low and high <= e for b, e in inside):
                expected += high - low
    assert run.ranks.exposed_communication[1] == pytest.approx(expected)
    assert expected == pytest.approx(1.6)


def test_the_ladder_of_a_run_that_goes_by_the_costs_keeps_its_order():
    pipe = ps.Pipeline.from_costs(
        1.0, input_grad=[3, 0.5, 0, 1], weight_grad=[1, 1, 2, 4], latency_ms=0.3
    )
    order = ps.build_schedule("zb_2p", 4, 8)
    run = ps.simulate(pipe, order, protocol="paired", queue_capacity=8)
    assert ps.ladder(run).step_ms.tolist()[-1] == run.makespan


@pytest.mark.parametrize(
    "lists, options, message",
    [
        ("send x to 1", {}, "is one list; give a list of them"),
        (["send x to 1, Recv y from 1", "recv x from 0"], {}, "'Recv y from 1' is no transfer"),
        (["send x from 1", "recv x to 0"], {}, "'send x from 1' is no transfer"),
        (["send x to 1", "recv x from 0"], {"sizes": {"y": 4}}, "there is no message 'y'"),
        (["send x to 1", "recv x from 0"], {"sizes": {"x": -4}}, "'x'] = -4 is not a number"),
    ],
)
def test_what_is_meant_as_a_transfer_must_be_one(lists, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ps.Program.from_lists(lists, **options)


def test_programs_without_messages_and_bad_limits():
    program = ps.Program.from_lists(["F0, F1", "F0"])
    ps.check_deadlock(program)
    ps.check_deadlock(ps.Program.from_lists([]))
    for options in ({"queue_capacity": 0}, {"eager_limit_bytes": float("nan")}):
        with pytest.raises(ValueError, match=" = "):
            ps.check_deadlock(program, **options)


def test_a_long_cycle_is_cut():
    ring = [
        f"send x{r} to {(r + 1) % 20}, recv x{(r - 1) % 20} from {(r - 1) % 20}" for r in range(20)
    ]
    with pytest.raises(ps.DeadlockError) as caught:
        ps.check_deadlock(ps.Program.from_lists(ring))
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("14, 15, ... wait for each other")
    assert lines[17] == "  and 4 more ranks, back to rank 0"
    assert len(caught.value.cycle) == 20
