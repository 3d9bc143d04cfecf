"""Layers from files and frames, and cutting them into stages."""

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipesim as ps
from pipesim.pipeline.partition.min_max import compositions

CSV = """layer,kind,F_ms,B_input_ms,W_ms,act_bytes,out_bytes,param_bytes
0,embedding,0.2,0.0,0.4,0,16777216,262144000
1,decoder,3.0,3.1,2.8,268435456,16777216,404750336
2,decoder,3.0,3.1,2.8,268435456,16777216,404750336
3,head,2.6,2.7,2.5,1048576000,0,262144000
"""


@pytest.fixture
def layer_csv(tmp_path):
    path = tmp_path / "layers.csv"
    path.write_text(CSV)
    return path


def test_a_file_with_aliases_is_read(layer_csv):
    profile = ps.read_layers(layer_csv)
    assert profile.forward_ms == (0.2, 3.0, 3.0, 2.6)
    assert profile.input_grad_ms == (0.0, 3.1, 3.1, 2.7)
    assert profile.names == ("0", "1", "2", "3")
    assert profile.labels == {"kind": ("embedding", "decoder", "decoder", "head")}
    assert str(profile).splitlines()[2].split()[:3] == ["1", "decoder", "3"]
    pipe = profile.split([2, 2], latency_ms=0.5)
    assert [stage.name for stage in pipe.stages] == ["0..1", "2..3"]
    assert pipe.stages[0].forward_ms == pytest.approx(3.2)
    assert pipe.stages[0].param_bytes == 262144000 + 404750336
    assert [stage.output_bytes for stage in pipe.stages] == [16777216, 0]
    assert pipe.link(0, 1).latency_ms == 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "unknown column 'a'"),
        ("layer\nx\n", "no column forward_ms"),
        ("F_ms,forward_ms\n1,1\n", "gives forward_ms a second time"),
        ("F_ms\n-1\n", r"F_ms\[0\]: -1 is not a number from 0"),
        ("F_ms\n2\nx\n", r"csv: no layer costs: F_ms\[1\]: 'x' is not a number"),
        ("F_ms\nx\n", r"F_ms\[0\]: 'x' is not a number"),
        ("F_ms\n1\n\n,\n", "line 4: 2 fields for 1 columns"),
        ("layer,F_ms,B_ms\na,1,2,9\n", "line 2: 4 fields for 3 columns"),
        ("layer,F_ms\na,1,\n", "line 2: 3 fields for 2 columns"),
        ("layer,F_ms\na\n", "line 2: 1 fields for 2 columns"),
        ("F_ms,act_bytes\n1,1.5\n", r"act_bytes\[0\]: 1.5 is not a whole number"),
        ("F_ms,act_bytes\n1,1\n2,\n", r"act_bytes\[1\]: nothing is not a whole number"),
        ("F_ms,act_bytes\n1,inf\n", r"act_bytes\[0\]: inf is not a whole number"),
        ("F_ms,B_ms,B_input_ms,W_ms\n1,1,1,1\n", "the backward is given twice"),
        ("F_ms,B_input_ms\n1,1\n", "give both or none"),
        ("F_ms\n", "at least one layer"),
        ("", "no layer costs"),
    ],
)
def test_bad_files_are_named(tmp_path, text, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(ps.ConfigError, match=message) as caught:
        ps.read_layers(path)
    assert str(path) in str(caught.value)


def test_one_text_among_numbers_is_the_only_fault(tmp_path):
    path = tmp_path / "layers.csv"
    path.write_text("layer,kind,F_ms,act_bytes\na,1,1,5\nb,x,o,6\nc,2,1e3,7\n")
    with pytest.raises(ps.ConfigError) as error:
        ps.read_layers(path)
    assert [fault.split(": ", 1)[1] for fault in error.value.faults] == [
        "F_ms[1] (b): 'o' is not a number from 0 to 10^15"
    ]
    path.write_text("layer,kind,F_ms,act_bytes\na,1,1,5\nb,x,2,6\n")
    assert ps.read_layers(path).labels == {"kind": ("1", "x")}


def test_blanks_and_a_byte_order_mark_do_not_matter(tmp_path):
    path = tmp_path / "layers.csv"
    path.write_bytes("\ufefflayer, forward_ms , backward_ms\na, 1, 2\n".encode())
    assert ps.read_layers(path).total_ms().tolist() == [3]


def test_a_missing_file_is_named():
    with pytest.raises(ps.ConfigError, match=r"nowhere\.csv: no layer costs: No such file"):
        ps.read_layers("nowhere.csv")


def test_a_frame_is_taken_as_it_is():
    frame = pd.DataFrame({"forward_ms": [1, 2], "backward_ms": [2, 4], "note": ["a", "b"]})
    assert ps.LayerProfile.from_frame(frame).total_ms().tolist() == [3, 6]


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([2, 1], "places 3 layers, but the profile has 4: 1 would be lost"),
        ([2, 3], "places 5 layers, but the profile has 4: 1 would be there twice"),
        ([5, -1], "at least 0"),
        ([], "at least 0"),
    ],
)
def test_a_split_neither_loses_nor_repeats_a_layer(counts, message):
    profile = ps.LayerProfile(forward_ms=[1.0] * 4)
    with pytest.raises(ValueError, match=message):
        profile.split(counts)


def test_an_empty_stage_costs_nothing():
    profile = ps.LayerProfile(forward_ms=[1.0, 2.0], output_bytes=[5, 6])
    stages = profile.split([1, 0, 1]).stages
    assert [stage.forward_ms for stage in stages] == [1.0, 0, 2.0]
    assert [stage.output_bytes for stage in stages] == [5, 5, 6]


def test_a_stage_keeps_more_for_its_first_and_its_last_layer():
    profile = ps.LayerProfile(
        forward_ms=[1.0] * 4,
        stash_bytes=[1, 2, 3, 4],
        first_stash_bytes=[10, 20, 30, 40],
        last_stash_bytes=[100, 200, 300, 400],
    )

    def stash(*counts):
        return [stage.stash_bytes for stage in profile.split(counts).stages]

    assert stash(4) == [10 + (1 + 2 + 3 + 4) + 400]
    assert stash(1, 3) == [10 + 1 + 100, 20 + (2 + 3 + 4) + 400]
    assert stash(2, 0, 2) == [10 + (1 + 2) + 200, 0, 30 + (3 + 4) + 400]


weights = st.lists(st.integers(0, 20), min_size=1, max_size=9)


@given(weights, st.data())
def test_min_max_split_is_the_best_of_all_splits(weights, data):
    parts = data.draw(st.integers(1, len(weights)))

    def loads(counts):
        ends = np.cumsum(counts)
        return [sum(weights[end - count : end]) for count, end in zip(counts, ends, strict=True)]

    def worse(counts):  # the largest load, then how uneven
        return max(loads(counts)), sum(load**2 for load in loads(counts))

    counts = ps.min_max_split(weights, parts)
    everything = list(compositions(len(weights), parts))
    best = min(map(worse, everything))
    # Of all best splits, the most even one, and then the one whose earlier parts are the largest.
    assert counts == max(c for c in everything if worse(c) == best)


@given(st.integers(1, 6), st.data())
def test_compositions_are_all_of_them_in_order(total, data):
    parts = data.draw(st.integers(1, total))
    expected = [c for c in itertools.product(range(1, total + 1), repeat=parts) if sum(c) == total]
    assert list(compositions(total, parts)) == sorted(expected)


def test_what_is_written_is_what_is_read(tmp_path):
    profile = ps.LayerProfile(
        forward_ms=[1 / 3, 1e-9, 12345.6789],
        input_grad_ms=[0.1 + 0.2, 0, 2],
        weight_grad_ms=[0.0, 1e15, 2.5],
        stash_bytes=[10**15, 0, 7],
        param_bytes=[1, 2, 3],
        names=["01", 'a, "quoted" name', "1.0"],
        labels={"kind": ("Linear", "Ä", "x y"), "spread": ("-2.0% +1.0%", "+0.0%", "-1%")},
        forward_gflop=[0.25, 0, 2e6],
    )
    path = tmp_path / "new" / "layers.csv"
    ps.write_layers(profile, path)
    assert ps.read_layers(path) == profile
    ps.write_layers(ps.LayerProfile([1.5]), path)
    assert ps.read_layers(path).columns() == {"layer": ("0",), "forward_ms": (1.5,)}
    assert [file.name for file in path.parent.iterdir()] == ["layers.csv"]


def test_a_file_that_cannot_be_written_is_left_alone(tmp_path):
    path = tmp_path / "layers.csv"
    path.write_text("before")
    with pytest.raises(UnicodeEncodeError):  # half a character: after some rows
        ps.write_layers(ps.LayerProfile([1, 2], names=["a", "\ud800"]), path)
    assert path.read_text() == "before"
    assert [file.name for file in tmp_path.iterdir()] == ["layers.csv"]
    with pytest.raises(OSError, match="in_a_file"):
        ps.write_layers(ps.LayerProfile([1]), path / "in_a_file.csv")


def test_operations_are_shown_and_nothing_depends_on_them():
    profile = ps.LayerProfile([1, 2], forward_gflop=[0.5, 3e6])
    assert "forward_gflop" in str(profile)
    assert profile.total_ms().tolist() == [1, 2]
    assert profile.split([1, 1]) == ps.LayerProfile([1, 2]).split([1, 1])
    with pytest.raises(ValueError, match=r"forward_gflop\[1\] = -1 is not a number from 0"):
        ps.LayerProfile([1, 2], forward_gflop=[0, -1])


def test_partition_balances_what_is_asked_for(layer_csv):
    profile = ps.read_layers(layer_csv)
    assert [s.name for s in ps.partition(profile, 2).stages] == ["0..1", "2..3"]
    assert [s.name for s in ps.partition(profile, 2, by="layers").stages] == ["0..1", "2..3"]
    assert [s.name for s in ps.partition(profile, 2, by="stash_bytes").stages] == ["0..2", "3"]
    with pytest.raises(ValueError, match="'colour' is unknown; known: time"):
        ps.partition(profile, 2, by="colour")
    with pytest.raises(ValueError, match="4 layers cannot fill 5 stages"):
        ps.partition(profile, 5)
    with pytest.raises(ValueError, match="gives no param_bytes"):
        ps.partition(ps.LayerProfile(forward_ms=[1, 2]), 2, by="param_bytes")


def test_the_best_split_is_the_best_of_all_simulations():
    profile = ps.LayerProfile(
        forward_ms=[1.0, 2.0, 1.0, 1.5, 1.0, 3.0], backward_ms=[2.0, 3.0, 2.5, 3.0, 2.0, 4.0]
    )
    times = {
        counts: ps.simulate(profile.split(counts, latency_ms=0.1), "1f1b", 4).makespan
        for counts in compositions(6, 3)
    }
    best = ps.best_split(profile, 3, "1f1b", 4, latency_ms=0.1)
    assert best.run.makespan == min(times.values()) == times[best.counts]
    assert best.splits == len(times) == 10
    assert best.simulated <= best.splits


def test_ties_go_to_the_smaller_slowest_stage_then_to_the_first_in_order():
    # Two micro-batches and a long first layer: many splits take equally long.
    profile = ps.LayerProfile(forward_ms=[4.0, 0.0, 0.0, 0.0])
    best = ps.best_split(profile, 2, "gpipe_forward", 2)
    assert best.counts == (1, 3)


def test_too_many_splits_are_refused_with_the_way_out():
    profile = ps.LayerProfile(forward_ms=[1.0] * 80)
    with pytest.raises(ValueError, match=r"use partition\(profile, 8\)"):
        ps.best_split(profile, 8, "1f1b", 8)
    with pytest.raises(ValueError, match="80 layers cannot fill 81 stages"):
        ps.best_split(profile, 81, "1f1b", 8)
