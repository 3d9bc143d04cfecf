"""Orders: golden grids, counts, and what is refused."""

import inspect
from pathlib import Path

import numpy as np
import pytest

import pipesim as ps
from pipesim.schedules.families.registry import FAMILIES

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("name", ps.schedule_names())
def test_golden_grid(name):
    schedule = ps.build_schedule(name, ranks=4, microbatches=8 if "dualpipe" in name else 4)
    head, *rows = (GOLDEN / f"{name}.txt").read_text().splitlines()
    assert str(schedule).splitlines()[0] == head
    assert schedule.grid().splitlines() == rows


def test_every_golden_grid_has_its_schedule():
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(ps.schedule_names())


PICTURES = {"gpipe": 4, "1f1b": 4, "interleaved": 4, "zb_h1": 4, "zb_1p": 4, "zb_v": 8, "v_half": 4}
PICTURES |= {"dualpipe": 8, "seq1f1b": 2}


@pytest.mark.parametrize("name", PICTURES)
def test_each_family_file_opens_with_its_picture(name):
    lines = inspect.getmodule(FAMILIES[name].build).__doc__.splitlines()
    picture = [line.split("|")[1].split() for line in lines if line.startswith("    rank ")]
    grid = ps.build_schedule(name, ranks=4, microbatches=PICTURES[name]).grid()
    assert len(picture) == 4
    for drawn, row in zip(picture, grid.splitlines(), strict=True):
        cells = row.split("|")[1].split()
        shown = drawn.index("...") if "..." in drawn else len(cells)
        assert shown >= 9
        assert drawn[:shown] == cells[:shown]


ORDERS = {
    # Warm-up min(m, p-1-s) = 3, 2, 1, 0 forwards, then pairs of F and B.
    ("1f1b", 5): [
        "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4",
        "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4",
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4",
    ],
    # min(m, p-1-s) = 2, 2, 1, 0: fewer micro-batches than stages.
    ("1f1b", 2): ["F0 F1 B0 B1", "F0 F1 B0 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"],
    # min(m, 2(p-1-s)) = 5, 4, 2, 0.
    ("1f1b_eager", 5): [
        "F0 F1 F2 F3 F4 B0 B1 B2 B3 B4",
        "F0 F1 F2 F3 F4 B0 B1 B2 B3 B4",
        "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4",
    ],
}


@pytest.mark.parametrize(("name", "m"), ORDERS)
def test_orders_written_out(name, m):
    schedule = ps.build_schedule(name, 4, m)
    orders = [" ".join(str(op)[1:] for op in schedule.order(rank)) for rank in range(4)]
    assert orders == ORDERS[name, m]


def test_gpipe_backwards_go_last_in_first_out_or_as_pytorch_does():
    lifo = ps.build_schedule("gpipe", 1, 3)
    fifo = ps.build_schedule("gpipe", 1, 3, order="fifo")
    assert " ".join(map(str, lifo.order(0))) == "0F0 0F1 0F2 0B2 0B1 0B0"
    assert " ".join(map(str, fifo.order(0))) == "0F0 0F1 0F2 0B0 0B1 0B2"
    assert lifo != fifo
    assert lifo == ps.build_schedule("gpipe", 1, 3, order="lifo")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ps.build_schedule("1f2b", 4, 4), "unknown schedule '1f2b'; did you mean 1f1b?"),
        (lambda: ps.build_schedule("1f1b", 4, 4, chunks=2), "1f1b has no option 'chunks'"),
        (lambda: ps.build_schedule("gpipe", 4, 4, order="x"), "order = 'x' of gpipe"),
        (
            lambda: ps.build_schedule("interleaved", 4, 6),
            "Nearest legal m: 4 or 8; N: 6",
        ),
        (lambda: ps.build_schedule("interleaved", 4, 3), "N = 4, m = 3.*Nearest legal m: 4 or 8"),
        (lambda: ps.build_schedule("interleaved", 4, 8, group=3), "Nearest legal N: 4 or 8"),
        (lambda: ps.build_schedule("dualpipe", 4, 7), "even m of at least 2p.*legal m: 8$"),
        (lambda: ps.build_schedule("dualpipe", 4, 11), "even m of at least 2p.*legal m: 10 or 12"),
        (
            lambda: ps.build_schedule("dualpipe", 3, 8),
            "even p; here p = 3. Nearest legal p: 2 or 4",
        ),
        (lambda: ps.build_schedule("interleaved", 4, 4, chunks=0), "chunks = 0"),
        (
            lambda: ps.build_schedule(
                "interleaved", microbatches=4, placement=ps.looped_placement(8, 4), chunks=3
            ),
            "interleaved needs 3 stages a rank, the pipeline has 8 stages on 4 ranks",
        ),
        (
            lambda: ps.build_schedule("seq1f1b", 3, 2, slices=10**9),
            "6,000,000,000 forwards .* would not fit into memory",
        ),
        (
            lambda: ps.build_schedule("pipedream", 3, 2, batches=10**9),
            "6,000,000,000 forwards .* would not fit into memory",
        ),
        (lambda: ps.build_schedule("chimera", 3, 4), "even p; here p = 3. Nearest legal p: 2 or 4"),
        (lambda: ps.build_schedule("hanayo", 4, 4, chunks=3), "needs a multiple of two stages"),
        (lambda: ps.build_schedule("zb_auto", 2, 4, limit=0.5), "limit of stage 0 is 0.5"),
        (lambda: ps.build_schedule("zb_auto", 2, 4, limit=[2, 2, 2]), "3 limits for 2 stages"),
        (lambda: ps.build_schedule("zb_2p", 2, 4, objective="x"), "objective 'x'; known: span"),
        (
            lambda: ps.build_schedule("v_schedule", 2, 4, limit=1),
            "limit = 1, but rank 0 holds both",
        ),
        (lambda: ps.build_schedule("v_schedule", 2, 4, limit=2.5), "limit = 2.5 is not a whole"),
        (lambda: ps.build_schedule("1f1b", 4, 0), "microbatches = 0"),
        (lambda: ps.build_schedule("1f1b", 4, 4.7), "microbatches = 4.7"),
        (lambda: ps.build_schedule("1f1b", 4), "microbatches = None"),
        (lambda: ps.build_schedule("1f1b", "4", 4), "ranks = '4'"),
        (
            lambda: ps.build_schedule("1f1b", 3, 4, placement=ps.linear_placement(4)),
            "ranks = 3 for a placement on 4 ranks",
        ),
    ],
)
def test_bad_requests_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        (["0F0 0F0 0B0"], "rank 0: 0F0 is there twice"),
        (["0F0 0B0 0F1"], "stage 0, micro-batch 1 has F but no backward"),
        (["0B0 0F0"], "0B0 comes before its own stage's input"),
        (["0F0 0W0 0I0"], "0W0 comes before its own stage's input"),
        (["0F0 0I0"], "has I but no W"),
        (["0F0 0W0"], "has W but no I"),
        (["0F0 0B0 0I0 0W0"], "has both B and a part of it"),
        (["0B0"], "stage 0, micro-batch 0 has no F"),
        (["0F0", "1F0 0F1"], "rank 1: 0F1 is not on the rank that holds its stage"),
        (["0F0", "2F0"], "no rank runs stage 1"),
        (["0F0 0F2"], "stage 0, micro-batch 1 has no F"),
        (["", ""], "there is no op"),
        ([["0F0", ps.Op(0, ps.Kind.SEND_F, 0)]], "is no compute op"),
    ],
)
def test_what_is_no_schedule_is_refused(orders, message):
    with pytest.raises(ps.ScheduleError, match=message):
        ps.Schedule.from_orders(orders)


def test_counts_that_do_not_fit_are_refused():
    with pytest.raises(ps.ScheduleError, match=r"0F1 names a micro-batch outside 0\.\.0"):
        ps.Schedule.from_orders(["0F0 0F1"], microbatches=1)
    with pytest.raises(ps.ScheduleError, match=r"1F0 names a stage outside 0\.\.0"):
        ps.Schedule.from_orders(["0F0 1F0"], placement=ps.linear_placement(1))
    with pytest.raises(ps.ScheduleError, match="1 orders for a placement on 2 ranks"):
        ps.Schedule.from_orders(["0F0"], placement=ps.linear_placement(2))


def test_the_placement_is_found_from_the_orders():
    schedule = ps.Schedule.from_orders(["0F0 2F0", "1F0 3F0"])
    assert schedule.placement.rank_of == (0, 1, 0, 1)
    assert ps.Schedule.from_orders(["0F0", "1F0"]).placement == ps.linear_placement(2)


def test_a_grid_of_several_stages_a_rank_names_them():
    assert str(ps.Schedule.from_orders(["0F0 2F0", "1F0"], name="mine")).splitlines() == [
        "mine: 2 ranks, 1 micro-batch",
        "rank 0 | 0F0 .   2F0",
        "rank 1 | .   1F0 .",
    ]


def test_a_wide_grid_is_cut_and_says_so():
    lines = str(ps.build_schedule("1f1b", 2, 500)).splitlines()
    assert all(len(line) < 170 for line in lines)
    assert lines[1].endswith("...")


def test_a_schedule_leaves_the_arrays_it_is_made_of_alone():
    built = ps.build_schedule("1f1b", 2, 2)
    names = ("stage", "kind", "microbatch", "offsets")
    arrays = {name: getattr(built, name).copy() for name in names}
    fields = {"name": "mine", "placement": built.placement, "microbatches": 2}
    ps.Schedule(**fields, **arrays)
    arrays["stage"][0] = 0  # still writeable, and the caller's own
    arrays["kind"][0] = -1
    with pytest.raises(ps.ScheduleError, match="kind -1 is no compute op"):
        ps.Schedule(**fields, **arrays)


def test_a_schedule_is_a_value():
    schedule = ps.build_schedule("1f1b", 2, 2)
    assert schedule == ps.build_schedule("1f1b", 2, 2)
    assert schedule != ps.build_schedule("1f1b", 2, 3)
    assert schedule != "1f1b"
    with pytest.raises(ValueError, match="read-only"):
        schedule.kind[0] = 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(schedule)
    assert repr(schedule) == "Schedule('1f1b', ranks=2, stages=2, microbatches=2, ops=8)"


def test_half_a_million_ops_lie_in_a_few_arrays():
    schedule = ps.build_schedule("1f1b", 64, 4096)
    assert len(schedule) == 2 * 64 * 4096
    arrays = (schedule.stage, schedule.kind, schedule.microbatch, schedule.offsets)
    assert sum(array.nbytes for array in arrays) < 10 * len(schedule)
    chunks = ps.build_schedule("interleaved", 32, 2048, chunks=4)
    assert len(chunks) == 2 * 32 * 4 * 2048
    assert chunks.peak_in_flight()[0] == 2 * 31 + 3 * 32 + 1


SPLIT = [name for name, family in FAMILIES.items() if family.backward.startswith(("I", "B, I"))]


@pytest.mark.parametrize("name", SPLIT)
def test_a_split_backward_given_whole_says_what_to_give(name):
    p, m = 4, 8
    chunks = FAMILIES[name].chunks or 2
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=p * chunks, ranks=p)
    message = f"{name} splits the backward: give input_grad_ms and weight_grad_ms of every stage"
    with pytest.raises(ps.ScheduleError, match=message):
        ps.simulate(pipe, name, m)


def test_options_may_be_arrays():
    sliced = ps.build_schedule("seq1f1b", 2, 3, slices=np.array([0.25, 0.75]))
    assert sliced == ps.build_schedule("seq1f1b", 2, 3, slices=[0.25, 0.75])
    limited = ps.build_schedule("zb_auto", 2, 3, limit=np.array([2.0, 1.0]))
    assert limited == ps.build_schedule("zb_auto", 2, 3, limit=[2, 1])
    for bad in ("half", {}, [], [0.5, 0.6], 0):
        with pytest.raises(ValueError, match="slices"):
            ps.build_schedule("seq1f1b", 2, 3, slices=bad)


def test_what_goes_by_the_costs_is_made_anew_for_others():
    slow = ps.Pipeline.from_costs([1, 1, 3], input_grad=[1, 1, 3], weight_grad=[1, 1, 3])
    schedule = ps.build_schedule("zb_auto", microbatches=6, pipeline=slow, limit=3)
    equal = ps.Pipeline.from_costs(1.0, input_grad=1.0, weight_grad=1.0, stages=3)
    made = schedule.made_for(equal)
    assert made == ps.build_schedule("zb_auto", 3, 6, limit=3)
    assert made.family == "zb_auto"
    plain = ps.build_schedule("zb_h1", 3, 6)
    assert plain.made_for(slow) is plain
    run = ps.simulate(slow, schedule)
    assert run.equal_stages.schedule == made  # what inflation compares with
    assert run.order() == schedule
    assert run.order().made_for(equal) == schedule  # frozen


@pytest.mark.parametrize(
    ("name", "placement"),
    [
        ("chimera", ps.linear_placement(4)),
        ("chimera", ps.Placement("mine", (1, 0, 3, 2))),
        ("dualpipe", ps.linear_placement(4)),
        ("interleaved", ps.v_placement(8, 4)),
        ("interleaved", ps.Placement("mine", (0, 0, 1, 1, 2, 2, 3, 3))),
        ("looped_bfs", ps.wave_placement(8, 4)),
        ("looped_bfs", ps.Placement("mine", (0, 0, 0, 1, 2, 3))),
        ("zb_v", ps.looped_placement(8, 4)),
        ("v_half", ps.looped_placement(8, 4)),
        ("hanayo", ps.looped_placement(8, 4)),
        ("1f1b", ps.bidirectional_placement(4, 4)),
    ],
)
def test_a_placement_of_another_kind_is_refused(name, placement):
    message = f"{name} needs the {FAMILIES[name].placement} placement, not the {placement.name} one"
    with pytest.raises(ps.ScheduleError, match=message):
        ps.build_schedule(name, microbatches=8, placement=placement)


def test_schedules_with_one_stage_a_rank_take_any_order_of_the_ranks():
    placement = ps.Placement("mine", (1, 0, 3, 2))
    for name in ("1f1b", "zb_h1", "zb_1p", "seq1f1b", "pipedream"):
        assert ps.build_schedule(name, microbatches=4, placement=placement).placement == placement


@pytest.mark.parametrize("option", ["name", "pipeline", "placement", "ranks", "microbatches", 1])
def test_options_are_never_taken_for_something_else(option):
    pipe = ps.Pipeline.from_costs(1.0, 2.0, stages=2)
    with pytest.raises(ps.ScheduleError, match=f"1f1b has no option '{option}'"):
        ps.simulate(pipe, "1f1b", 2, options={option: 1})


@pytest.mark.parametrize("name", ps.schedule_names())
def test_equal_stages_have_an_inflation_of_one(name):
    p, m = 4, 8
    chunks = FAMILIES[name].chunks or 2
    pipe = ps.Pipeline.from_costs(
        1.0, input_grad=1.0, weight_grad=0.7, stages=p * chunks, ranks=p, overlap_factor=0.6
    )
    assert ps.simulate(pipe, name, m).inflation == pytest.approx(1.0, rel=1e-12)


def test_equal_stages_carry_the_same_work_in_both_directions():
    costs = [1.0, 1.0, 1.0, 9.0]
    for name in ("chimera", "dualpipe"):
        for options in ({}, {"overlap_ms": [4.0, 4.0, 4.0, 20.0]}):
            pipe = ps.Pipeline.from_costs(
                costs, input_grad=costs, weight_grad=1.0, speed=[1, 2, 3, 9], **options
            )
            run = ps.simulate(pipe, name, 8)
            busy = run.ranks.busy.sum(), run.equal_stages.ranks.busy.sum()
            if name == "chimera":
                assert busy[0] == pytest.approx(busy[1], rel=1e-12)
            else:
                assert busy[0] == pytest.approx(busy[1], rel=0.1)  # pairs are not all of all stages


# What the table of schedules says that the fullest rank holds; v = 2 chunks, k = 2 slices.
PEAKS = {
    "gpipe_forward": lambda p, m: 1,
    "gpipe": lambda p, m: m,
    "1f1b": lambda p, m: min(m, p),
    "1f1b_eager": lambda p, m: min(m, 2 * p - 1),
    "interleaved": lambda p, m: min(2 * m, 2 * (p - 1) + p + 1),
    "interleaved_zb": lambda p, m: min(2 * m, p + m // max(1, m // p)),
    "looped_bfs": lambda p, m: 2 * m,
    "zb_h1": lambda p, m: min(m, p),
    "zb_h2": lambda p, m: min(m, 2 * p - 1),
    "zb_v": lambda p, m: min(2 * m, 2 * p),
    "dualpipe": lambda p, m: p + 1,
    "dualpipe_v": lambda p, m: 2 * p + 1,
    "chimera": lambda p, m: min(m, p),
    "hanayo": lambda p, m: 2 * min(m, p),
    "seq1f1b": lambda p, m: min(2 * m, p + 1),
    "terapipe": lambda p, m: 1,
    "pipedream": lambda p, m: min(2 * m, p),
    "pipedream_2bw": lambda p, m: min(2 * m, p),
}


@pytest.mark.parametrize("name", PEAKS)
@pytest.mark.parametrize("p", [2, 4, 6])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_peaks_are_as_the_table_says(name, p, times):
    m = p * max(times, 2 if "dualpipe" in name else 1)
    assert max(ps.build_schedule(name, p, m).peak_in_flight()) == PEAKS[name](p, m)


def test_a_backward_cannot_overlap_with_its_own_forward():
    with pytest.raises(ps.ScheduleError, match="1B0 cannot overlap with its own forward"):
        ps.Schedule.from_orders(["0F0 0B0", "1F0&1B0"])
