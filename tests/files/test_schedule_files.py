"""Schedule files in PyTorch's format: read, checked, written, and run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipesim as ps
from pipesim.files.schedule_csv.fault_grid import fault_grid
from pipesim.files.schedule_csv.read import parse_torch_schedule, read_torch_schedule
from pipesim.files.schedule_csv.write import export_notes
from pipesim.schedules.order.dataflow import rank_phases
from tests.strategies import cases

SAMPLES = Path(__file__).parents[1] / "data" / "torch_schedule"
GOOD = "0F0,0F1,0B0,0B1\r\n1F0,1B0,1F1,1B1\r\n"
COMMS = (
    "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
    "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n"
)


def parsed(text, path="mine.csv"):
    return parse_torch_schedule(text.encode() if isinstance(text, str) else text, path)


def faults(text):
    file = parsed(text)
    assert file.schedule is None
    return [str(fault) for fault in file.faults]


@pytest.mark.parametrize(
    ("name", "schedule", "dialect", "timeless", "padding"),
    [
        ("1f1b_p4_m8_compute_only", ("1f1b", 4, 8, {}), "current", 0, 0),
        ("zb_h1_p4_m8_I_W", None, "current", 0, 0),
        ("legacy_2.5_1f1b_p4_m4_BW", None, "legacy", 0, 0),
        (
            "interleaved_p4_v2_m8_padded",
            ("interleaved", 4, 8, {"chunks": 2, "grouping": "pytorch"}),
            "current",
            0,
            24,
        ),
        ("interleaved_p2_v2_m4_compute_comms", None, "current", 12, 0),
        ("overlap_pair_example_p2_v2_m2", None, "current", 0, 0),
    ],
)
def test_samples(name, schedule, dialect, timeless, padding):
    file = read_torch_schedule(SAMPLES / f"{name}.csv")
    assert file.faults == ()
    assert (file.name, file.dialect) == (name, dialect)
    assert (file.timeless, file.padding) == (timeless, padding)
    assert file.schedule.name == name
    ps.check_deadlock(ps.lower(file.schedule, "eager"))
    if schedule is not None:
        family, ranks, microbatches, options = schedule
        assert file.schedule == ps.build_schedule(family, ranks, microbatches, **options)


def test_the_two_dialects_say_the_same():
    new = ps.read_schedule(SAMPLES / "zb_h1_p4_m8_I_W.csv")
    old = ps.read_schedule(SAMPLES / "legacy_2.5_zb_h1_p4_m8_B_W_BW.csv")
    assert new == old
    assert new.kinds == {ps.Kind.F, ps.Kind.I, ps.Kind.W}
    assert ps.read_schedule(SAMPLES / "legacy_2.5_1f1b_p4_m4_BW.csv").kinds == {
        ps.Kind.F,
        ps.Kind.B,
    }


def test_a_pair_is_one_cell():
    schedule = ps.read_schedule(SAMPLES / "overlap_pair_example_p2_v2_m2.csv")
    orders = ["0F0 0F1 3F0 3F1&3B0 3B1 0B0 0B1", "1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1"]
    assert schedule == ps.Schedule.from_orders(orders, placement=ps.v_placement(4, 2))
    assert schedule.placement.name == "v_shape"


def test_sends_and_receives_are_kept_in_file_order():
    file = read_torch_schedule(SAMPLES / "interleaved_p2_v2_m4_compute_comms.csv")
    listed = file.actions
    assert len(listed) == 80
    kinds = [ps.Kind(kind).name for kind in listed.kind[:6]]
    assert kinds == ["F", "SEND_F", "F", "SEND_F", "RECV_F", "F"]
    assert listed.stage[:6].tolist() == [0, 0, 0, 0, 2, 2]
    assert listed.cell[:2].tolist() == [2, 3]  # after two cells that take no time
    assert np.unique(listed.rank, return_counts=True)[1].tolist() == [40, 40]
    assert file.schedule.placement.name == "looped"
    assert not parsed(GOOD).actions.transfers


def test_the_combined_cell_of_the_older_dialect_is_a_send_and_a_receive():
    combined = COMMS.replace("0SEND_F1,0RECV_B0", "0SEND_F1_0RECV_B0").replace("B1", "BW1")
    file = parsed(
        combined.replace("B0", "BW0").replace("SEND_BW", "SEND_B").replace("RECV_BW", "RECV_B")
    )
    assert file.faults == ()
    assert file.dialect == "legacy"
    both = file.actions.cell[file.actions.rank == 0] == 3
    names = [ps.Kind(kind).name for kind in file.actions.kind[file.actions.rank == 0][both]]
    assert names == ["SEND_F", "RECV_B"]


@pytest.mark.parametrize(
    ("name", "error", "lines"),
    [
        (
            "BAD_missing_backward",
            ps.ScheduleError,
            ["row 1 (rank 0), cell 2: '0F1' has no backward 0B1"],
        ),
        (
            "BAD_stage_on_two_ranks",
            ps.ScheduleError,
            [
                "row 2 (rank 1), cell 1: '1B0' puts stage 1 on two ranks: "
                "it lives on row 1 (rank 0), cell 2"
            ],
        ),
    ],
)
def test_bad_samples(name, error, lines):
    path = SAMPLES / f"{name}.csv"
    with pytest.raises(error) as raised:
        ps.read_schedule(path)
    assert str(raised.value).splitlines() == [f"{path}: {line}" for line in lines]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOD.replace("1B1", "1X1"), "row 2 (rank 1), cell 4: '1X1' is no action; write stage, "),
        (GOOD.replace("1B1", "1B1x"), "row 2 (rank 1), cell 4: '1B1x' is no action"),
        (GOOD.replace("1B1", "-1B1"), "'-1B1' is no action"),
        (GOOD.replace("1B1", "1b1"), "'1b1' is no action; kinds are in capitals"),
        (GOOD.replace("1B1", "1B١"), "is no action; digits and letters are ASCII ones"),
        (GOOD.replace("1B1", "1B\x00"), r"'1B\x00' is no action"),
        (GOOD.replace("1B1", "1B4294967296"), "has a number of more than nine digits"),
        (GOOD.replace("1B1", "1B" + "9" * 5000), "has a number of more than nine digits"),
        (GOOD.replace("1B1", "1B99"), "'1B99' names micro-batch 99, which a file of 8 ops cannot"),
        (GOOD.replace("1B1", "99B1"), "'99B1' names stage 99, which a file of 8 ops cannot have"),
        (GOOD.replace("1B1", "1B1.99"), "names slice 99, which a file of 8 ops cannot have"),
        (GOOD.replace("1B1", "1B1.1"), "'1B1.1' names slice 1, which most micro-batches do not"),
        (GOOD.replace("1B1", "1B4"), "'1B4' names micro-batch 4, but micro-batches 2 to 3 are now"),
        (GOOD.replace("1", "2"), "'0F2' names micro-batch 2, but micro-batch 1 is nowhere"),
        (GOOD.replace("1B1", "1B0"), "'1B0' is there twice, first in row 2 (rank 1), cell 2"),
        (GOOD.replace(",1B1", ""), "row 2 (rank 1), cell 3: '1F1' has no backward 1B1"),
        (GOOD.replace("1F1,", ""), "row 2 (rank 1), cell 3: '1B1' has no forward 1F1"),
        (GOOD.replace("1F1,1B1", ""), "row 2 (rank 1): stage 1 has no forward 1F1"),
        (GOOD.replace("1B1", "1B1,1W1,1I1"), "'1I1' is too much beside 1B1; give B, or I and W"),
        (GOOD.replace("1B1", "1I1"), "row 2 (rank 1), cell 4: '1I1' has no 1W1: I and W go togeth"),
        (GOOD.replace("1B1", "1W1").replace("0B1", "0I1"), "'1W1' has no 1I1: I and W go together"),
        (GOOD.replace("1B1", "1BW1"), "'1BW1' mixes two dialects"),
        (
            GOOD.replace("1B0,1F1", "1F1").replace("1F0", "1B0,1F0"),
            "row 2 (rank 1), cell 1: '1B0' comes before '1F0' in row 2 (rank 1), cell 2, which it",
        ),
        ("0F0,0W0,0I0\n", "cell 2: '0W0' comes before '0I0' in row 1 (rank 0), cell 3, which it"),
        ("(0F0;0B0)OVERLAP_F_B\n", "cannot run at once: the backward needs the forward"),
        (GOOD.replace("1F1", "(1F1;1B0;1B1)OVERLAP_F_B"), "is no overlapped pair, which is one f"),
        (GOOD.replace("1F1", "(1F1;0X0)OVERLAP_F_B"), "'0X0' in '(1F1;0X0)OVERLAP_F_B' is no act"),
        (GOOD.replace("1F1", "()OVERLAP_F_B"), "'' in '()OVERLAP_F_B' is no action"),
        (GOOD + "\r\n", "row 3 (rank 2): has no op; every rank runs at least one stage"),
        (GOOD + " , ,\r\n", "row 3 (rank 2): has no op"),
        (GOOD + '"0F0\r\n', "row 3 (rank 2): is no CSV: unexpected end of data"),
        (GOOD.replace("0F1", '"0F"1'), "row 1 (rank 0): is no CSV: ',' expected after '\"'"),
        (GOOD + "x" * 200_000, "row 3 (rank 2): is no CSV: field larger than field limit"),
        ("", "the file is empty; write one row a rank"),
        ("\n \n", "the file is empty"),
        ("0UNSHARD\n", "row 1 (rank 0): has no op"),
        (GOOD.encode("utf-16"), "row 1 (rank 0), cell 1: byte 0xff is UTF-16; save the file as"),
        (GOOD.encode("utf-16-le"), "is no action"),
        (GOOD.encode() + b"0F0,\xff", "row 3 (rank 2), cell 2: byte 0xff is no UTF-8 text"),
        ("0F0.1,0F0,0B0.1,0B0\n", "'0F0.1' is out of order: slices go forward in order"),
        ("0F0,0F0.1,0B0,0B0.1\n", "is out of order: backward in reverse order"),
        (COMMS.replace("0SEND_F1,", ""), "cell 3: '0F1' has no 0SEND_F1: its output is never sent"),
        (COMMS.replace("1RECV_F1,", ""), "'1F1' has no 1RECV_F1: its input is never received"),
        (COMMS.replace("0SEND_F1", "0SEND_F0"), "'0SEND_F0' is there twice, first in row 1"),
        (COMMS.replace("1SEND_B1", "1SEND_B1,1SEND_F1"), "needless: there is no stage after stage"),
        (COMMS.replace("0F0,0S", "0RECV_F0,0F0,0S"), "needless: there is no stage before stage 0"),
        (COMMS.replace("0F1,0SEND_F1", "0SEND_F1,0F1"), "comes before the op whose output it send"),
        (COMMS.replace("1RECV_F1,1F1", "1F1,1RECV_F1"), "comes after the op that needs it: '1F1' "),
        (
            COMMS.replace("0SEND_F1,", "").replace("1SEND_B1", "1SEND_B1,0SEND_F1"),
            "'0SEND_F1' is on the wrong row: '0F1' is in row 1 (rank 0), cell 3",
        ),
        ("0F0,1F0,0SEND_F0,1B0,0B0\n", "needless: stages 0 and 1 are on one rank and hand over"),
    ],
)
def test_every_kind_of_fault_has_its_place(text, expected):
    assert any(expected in fault for fault in faults(text)), faults(text)


def test_all_faults_at_once_in_the_order_of_the_rows():
    told = faults("0F0,0f1,0B0\n1F0,1X0,1F1,1B1,1B1\n")
    assert told == [
        "row 1 (rank 0): stage 0 has no forward 0F1",
        "row 1 (rank 0), cell 2: '0f1' is no action; kinds are in capitals: 1F0",
        "row 2 (rank 1), cell 1: '1F0' has no backward 1B0",
        "row 2 (rank 1), cell 2: '1X0' is no action; write stage, kind, micro-batch: 1F0",
        "row 2 (rank 1), cell 5: '1B1' is there twice, first in row 2 (rank 1), cell 4",
    ]


def test_an_error_tells_the_first_faults_and_how_many_more():
    file = parsed("0F0," + ",".join(["junk"] * 5000))
    assert (len(file.faults), file.unlisted) == (1000, 4000)
    lines = str(file.error()).splitlines()
    assert len(lines) == 21
    assert lines[-1] == "mine.csv: and 4,980 more"


def test_receives_in_an_order_that_cannot_go_on():
    turned = COMMS.replace("0F1,0SEND_F1,0RECV_B0,0B0", "0RECV_B0,0F1,0SEND_F1,0B0")
    assert parsed(turned).schedule is not None  # rank 1 needs nothing of what comes after
    turned = turned.replace("1RECV_F0,1F0", "1RECV_F1,1RECV_F0,1F0").replace(
        ",1RECV_F1,1F1", ",1F1"
    )
    schedule = parsed(turned).schedule
    ps.check_deadlock(ps.lower(schedule, "eager"))  # nothing waits for a receive by itself
    with pytest.raises(ps.DeadlockError) as caught:
        ps.check_deadlock(ps.lower(schedule, "posted_blocking"))
    assert caught.value.cycle == (
        (0, 2, "0RECV_B0", "1SEND_B0"),
        (1, 0, "1RECV_F1", "0SEND_F1"),
    )


def test_blank_cells_line_ends_byte_order_marks_and_spaces_carry_nothing():
    plain = parsed(GOOD).schedule
    assert plain == ps.build_schedule("1f1b", 2, 2)
    for text in (
        GOOD.replace("\r\n", "\n"),
        GOOD.rstrip(),
        "\ufeff" + GOOD,
        GOOD.replace(",", " ,, \t"),
        GOOD.replace("1F0", "0UNSHARD,1F0").replace("1B1", "1B1,1REDUCE_GRAD,1RESHARD3"),
        GOOD.replace("0F1", '"0F1"'),
        GOOD.replace("1F0", "01F00"),
    ):
        assert parsed(text).schedule == plain, text


@settings(max_examples=150)
@given(cases())
def test_every_schedule_survives_writing_and_reading(tmp_path_factory, case):
    schedule = case[1]
    path = tmp_path_factory.mktemp("round") / f"{schedule.name}.csv"
    equal = len({round(fraction, 9) for fraction in schedule.fractions}) == 1
    if not equal or schedule.separate_recompute:
        with pytest.raises(ps.ScheduleError, match="recompute" if equal else "equal fractions"):
            ps.write_schedule(schedule, path)
        assert not path.exists()
        return
    ps.write_schedule(schedule, path)
    back = ps.read_schedule(path)
    placement = schedule.placement
    if placement.directions == 2 and not schedule.directions.any():
        placement = replace(placement, reverse=None)  # nothing in the file shows the other one
    expected = replace(schedule, weight_versions=(), placement=placement)
    assert back == expected
    if placement.name != "wave":  # a wave that goes down and up once is a V
        assert back.placement.name in (placement.name, "linear", "looped")
    assert back.name == schedule.name


def test_notes_tell_what_the_file_does_not_hold():
    assert export_notes(ps.build_schedule("1f1b", 4, 8)) == []
    (note,) = export_notes(ps.build_schedule("dualpipe", 4, 8))
    assert "stages are on two ranks" in note
    (note,) = export_notes(ps.build_schedule("seq1f1b", 4, 8, slices=2))
    assert "no slices" in note
    (note,) = export_notes(ps.build_schedule("gpipe_forward", 4, 8))
    assert "no backwards" in note
    (note,) = export_notes(ps.build_schedule("pipedream", 4, 8))
    assert "versions of its weights" in note


def test_single_ops_on_wrong_rows_of_a_two_directional_schedule(tmp_path):
    path = tmp_path / "two.csv"
    ps.write_schedule(ps.build_schedule("chimera", 4, 8), path)
    rows = [row.split(",") for row in path.read_text().splitlines()]
    cell = rows[0].index("0B1")
    rows[1].append(rows[0].pop(cell))
    told = faults("\n".join(map(",".join, rows)))
    assert any("'0B1' is on the wrong row: micro-batch 1 has stage 0 on rank 0" in f for f in told)


def test_a_number_far_too_large_makes_no_giant_table():
    row = [f"0{kind}{m}" for m in range(3000) for kind in "FB"]
    row[10], row[11] = "0F5999", "5999F0"
    told = faults(",".join(row))
    assert any("names micro-batch 5999, but micro-batches 3000 to 5998" in f for f in told)
    assert any("names stage 5999, but stages 1 to 5998 are nowhere" in f for f in told)
    diagonal = ",".join(f"{n}F{n}" for n in range(5000))
    assert "5,000 of the 25,000,000 pairs" in faults(diagonal)[0]


def test_the_picture_marks_the_spots():
    file = parsed(GOOD.replace("1B0", "1X0"))
    assert fault_grid(file).splitlines() == [
        "cell     1     2     3     4",
        "row 2  >1F0< >1X0<  1F1   1B1",
    ]
    wide = parsed(",".join([*(f"0F{m}" for m in range(50)), "x" * 100, "0B\n"]))
    lines = fault_grid(wide).splitlines()
    assert max(map(len, lines)) < 150
    assert len(lines) < 30
    assert "...xxx" not in lines[1]
    assert fault_grid(parsed("")) == ""


def test_phases():
    assert rank_phases(ps.build_schedule("1f1b", 4, 8)) == [
        (4, 8, 4),
        (3, 10, 3),
        (2, 12, 2),
        (1, 14, 1),
    ]
    assert rank_phases(ps.build_schedule("gpipe_forward", 2, 8)) == [(8, 0, 0), (8, 0, 0)]


GARBAGE = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["0BW0", "1I0", "0F0.1", "(0F0;1B0)OVERLAP_F_B", "9F9", "0SEND_F0", '"', "\x00"]
    ),
)


@st.composite
def edits(draw):
    """Draw the text of a valid file with a few edits."""
    text = draw(st.sampled_from([GOOD, COMMS, *map(Path.read_text, sorted(SAMPLES.glob("*.csv")))]))
    rows = [row.split(",") for row in text.splitlines()]
    for _ in range(draw(st.integers(1, 4))):
        row = rows[draw(st.integers(0, len(rows) - 1))]
        cell = draw(st.integers(0, max(0, len(row) - 1)))
        what = draw(st.sampled_from(["drop", "double", "swap", "garbage", "row", "blank"]))
        if what == "row":
            rows.insert(draw(st.integers(0, len(rows))), list(row))
        elif not row or what == "garbage":
            row.insert(cell, draw(GARBAGE))
        elif what == "drop":
            del row[cell]
        elif what == "double":
            row.insert(cell, row[cell])
        elif what == "swap":
            row[cell], row[0] = row[0], row[cell]
        else:
            row[cell] = " "
    return "\n".join(map(",".join, rows))


def hang_or_not(schedule):
    """Check that whether an order hangs is known, told, and what a run comes to."""
    cost = {"input_grad": 1.0, "weight_grad": 1.0, "placement": schedule.placement}
    pipe = ps.Pipeline.from_costs(1.0, stages=schedule.stages, **cost)
    for protocol in ("eager", "rendezvous"):
        try:
            ps.check_deadlock(ps.lower(schedule, protocol))
        except ps.DeadlockError:
            with pytest.raises(ps.DeadlockError, match="wait"):
                ps.simulate(pipe, schedule, protocol=protocol)
        else:
            assert ps.simulate(pipe, schedule, protocol=protocol).makespan >= 0


def whole(file):
    """Check that a file is valid and can be run, or has faults that can be told."""
    if file.schedule is not None:
        assert file.faults == ()
        hang_or_not(file.schedule)
        return
    assert file.faults
    assert str(file.error())
    for fault in file.faults:
        assert fault.cell is None or fault.rank is not None
    assert fault_grid(file).isascii()


@settings(max_examples=400)
@given(edits(), st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "latin-1", "cp037"]))
def test_edited_files_are_valid_or_told_what_is_wrong(text, encoding):
    whole(parsed(text.encode(encoding, errors="replace")))


@settings(max_examples=200)
@given(st.binary(max_size=300))
def test_bytes_of_any_kind(content):
    whole(parsed(content))


@pytest.mark.parametrize(
    "junk",
    [
        lambda: np.random.default_rng(0).bytes(10**7),
        lambda: b"x" * 10**7,
        lambda: b"," * 10**7,
        lambda: b"\n" * 10**7,
        lambda: b"0F0\n" * (10**7 // 4),
        lambda: b"0F0," * (10**7 // 4),
        lambda: b"1Q2," * (10**7 // 4),
        lambda: b'"' * 10**7,
        lambda: np.random.default_rng(0).integers(32, 127, 10**7, dtype=np.uint8).tobytes(),
        lambda: ",".join(f"{n}F{n}" for n in range(800_000)).encode(),
    ],
)
def test_ten_megabytes_of_junk(junk):
    file = parsed(junk())
    assert file.schedule is None
    whole(file)


def test_half_a_million_cells(tmp_path):
    schedule = ps.build_schedule("interleaved", 4, 15_624, chunks=4)
    ps.write_schedule(schedule, tmp_path / "large.csv")
    assert len(schedule) == 499_968
    assert ps.read_schedule(tmp_path / "large.csv") == schedule


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("0SEND_F0\n1RECV_F0\n", "row 1 (rank 0): has no op"),
        (
            "0F0,0SEND_F0,0RECV_B0,0B0,0SEND_F1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1\n",
            "row 1 (rank 0), cell 5: '0SEND_F1' belongs to no op: "
            "stage 0 does nothing with micro-batch 1",
        ),
    ],
)
def test_transfers_without_ops_are_told(text, fault):
    assert any(str(told).startswith(fault) for told in parsed(text).faults)


def test_a_combined_cell_blocks_on_its_receive_only():
    combined = COMMS.replace("0SEND_F1,0RECV_B0", "0SEND_F1_0RECV_B0").replace("B1", "BW1")
    text = combined.replace("B0", "BW0").replace("SEND_BW", "SEND_B").replace("RECV_BW", "RECV_B")
    program = ps.lower(parsed(text).schedule, "posted_blocking")
    texts = [program.text(i) for i in range(len(program))]
    assert not program.blocking[texts.index("0SEND_F1")]
    assert program.blocking[texts.index("0RECV_B0")]
    assert "0SEND_F1&0RECV_B0" in str(ps.lower(parsed(text).schedule, "rendezvous"))


def test_sends_and_receives_come_back_from_a_file(tmp_path):
    ours = ps.read_schedule(SAMPLES / "interleaved_p2_v2_m4_compute_comms.csv")
    ps.write_schedule(ours, tmp_path / "again.csv")
    assert ps.read_schedule(tmp_path / "again.csv") == ours
    bare = ps.build_schedule("interleaved", 2, 4, chunks=2)
    assert ours != bare  # its transfers are its own
    ps.write_schedule(bare, tmp_path / "bare.csv")
    assert ps.read_schedule(tmp_path / "bare.csv") == bare
