"""Ops, placements, pipelines: what they say, and what they refuse."""

import copy
import pickle

import pytest

import pipesim as ps
from pipesim.base.ops import Kind


@pytest.mark.parametrize("kind", ["F", "B", "I", "W"])
def test_ops_are_written_and_read(kind):
    op = ps.Op(12, Kind[kind], 345)
    assert str(op) == f"12{kind}345"
    assert ps.parse_op(str(op)) == op


@pytest.mark.parametrize("text", ["", "F0", "2F", "2X0", "2F0x", "-1F0", "2SEND_F0", "2f0"])
def test_other_texts_are_no_ops(text):
    with pytest.raises(ValueError, match="is no op"):
        ps.parse_op(text)


def test_a_placement_knows_ranks_and_chunks():
    looped = ps.Placement("looped", (0, 1, 0, 1))
    assert (looped.stages, looped.ranks) == (4, 2)
    assert looped.stages_of(1) == (1, 3)
    assert looped.chunk_table.tolist() == [[0, 0, 1, 1]]
    assert ps.linear_placement(3).rank_of == (0, 1, 2)


@pytest.mark.parametrize("rank_of", [(), (0, 2), (1,)])
def test_a_placement_leaves_no_rank_empty(rank_of):
    with pytest.raises(ValueError, match="every rank from 0 on"):
        ps.Placement("bad", rank_of)


def test_scalars_are_broadcast():
    pipe = ps.Pipeline.from_costs(forward=1.0, backward=[2, 3], latency_ms=0.5, speed=2.0)
    assert [stage.forward_ms for stage in pipe.stages] == [1.0, 1.0]
    assert [stage.backward_ms for stage in pipe.stages] == [2.0, 3.0]
    assert [device.speed for device in pipe.devices] == [2.0, 2.0]
    assert pipe.link(0, 1) == pipe.link(1, 0) == ps.Link(0.5)
    assert pipe.link(1, 1) == ps.Link()
    assert ps.Pipeline.from_costs(1.0, ranks=3).ranks == 3


def test_links_by_boundary_and_by_pair():
    by_boundary = ps.Pipeline.from_costs([1, 1, 1], latency_ms=[0.1, 0.2])
    assert by_boundary.link(2, 1).latency_ms == 0.2
    by_pair = ps.Pipeline.from_costs([1, 1], latency_ms={(0, 1): 0.3}, bandwidth_gb_s=25.0)
    assert by_pair.link(0, 1) == ps.Link(0.3, 25.0)
    assert by_pair.link(1, 0) == ps.Link(0.0, 25.0)
    assert ps.Link(0.0, 25.0).wire_ms(25 * 10**6) == 1.0


def test_a_device_divides_by_its_speed_and_adds_its_overhead():
    pipe = ps.Pipeline.from_costs([4.0, 4.0], speed=[2.0, 1.0], overhead_ms=[0.0, 0.5])
    run = ps.simulate(pipe, "gpipe_forward", 1)
    assert run.spans.end.tolist() == [2.0, 6.5]


def test_a_backward_is_whole_or_the_sum_of_its_parts():
    parts = ps.Pipeline.from_costs([1, 1], input_grad=[1, 2], weight_grad=0.5)
    whole = ps.Pipeline.from_costs([1, 1], [1.5, 2.5])
    assert ps.simulate(parts, "1f1b", 4).makespan == ps.simulate(whole, "1f1b", 4).makespan


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"forward": [1, -1]}, "stage 1: forward_ms = -1"),
        ({"forward": [float("nan"), 1]}, "stage 0: forward_ms = nan"),
        ({"forward": [1, float("inf")]}, "stage 1: forward_ms = inf"),
        ({"forward": [1, "a"]}, "is not a number"),
        ({"forward": [1, 1], "backward": [1]}, "backward_ms has 1 values for 2 stages"),
        ({"forward": [[1, 2], [1, 2], [1, 2]], "stages": 2}, r"shape \(3, 2\)"),
        ({"forward": [[1, 2], [1, 2]], "backward": [[1], [1]]}, r"micro-batches: \[1, 2\]"),
        ({"forward": 1.0}, "say how many stages"),
        (
            {"forward": [1, 1], "ranks": 3},
            "2 stages on 3 ranks: the linear placement needs as many ranks",
        ),
        ({"forward": [1, 1], "placement": "spiral"}, "'spiral' is unknown; known: linear, looped"),
        ({"forward": [1, 1], "latency_ms": [1, 1]}, "latency_ms has 2 values for 1 stage bound"),
        ({"forward": [1, 1], "latency_ms": -1}, "latency_ms = -1"),
        ({"forward": [1, 1], "latency_ms": {(0, 5): 1}}, "link 0->5 names a rank outside 0..1"),
        ({"forward": [1, 1], "bandwidth_gb_s": 0}, "bandwidth_gb_s = 0 is not a number from"),
        ({"forward": [1, 1], "speed": 0}, "speed = 0"),
        ({"forward": [1, 1], "stash_bytes": 1.5}, "stash_bytes = 1.5 is not a whole number"),
        ({"forward": [1, 1], "stash_bytes": 10**16}, "is not a whole number from 0 to 10"),
        ({"forward": [1, 1], "bandwidth_gb_s": "5"}, "bandwidth_gb_s = '5' is not a number"),
        ({"forward": [1, 1], "speed": "1"}, "speed = '1' is not a number from"),
        ({"forward": ["1", "2"]}, "is not a number, a list or a table"),
        ({"forward": [True, False]}, "is not a number, a list or a table"),
        ({"forward": [[1, 2], [1]]}, "forward_ms has rows of different lengths"),
        ({"forward": []}, "stages = 0"),
        ({"forward": 1.0, "stages": 4.7}, "stages = 4.7 is not a whole number"),
        ({"forward": 1.0, "stages": -1}, "stages = -1 is not a whole number"),
        ({"forward": 1.0, "stages": True}, "stages = True is not a whole number"),
        ({"forward": [1, 1], "input_grad": 1}, "give both or none"),
        ({"forward": [1], "backward": 1, "input_grad": 1, "weight_grad": 1}, "given twice"),
        ({"forward": [1, 1], "names": ["a"]}, "names has 1 entries for 2 stages"),
    ],
)
def test_bad_pipelines_are_refused_with_the_value(arguments, message):
    with pytest.raises(ValueError, match=message):
        ps.Pipeline.from_costs(**arguments)


def test_a_pipeline_prints_as_a_table():
    pipe = ps.Pipeline.from_costs(
        [[1, 2], [3, 3]], 2.0, names=["head", "tail"], speed=[1, 2], latency_ms=0.5, title="mine"
    )
    assert str(pipe).splitlines() == [
        "mine: 2 stages on 2 ranks (linear), latency 0.5 ms",
        "stage  rank  name  forward_ms  backward_ms  speed  overhead_ms",
        "    0     0  head      1 to 2            2      1            0",
        "    1     1  tail           3            2      2            0",
    ]


def test_nouns_can_be_copied_and_sent_to_other_processes():
    pipe = ps.Pipeline.from_costs([1, 2], [2, 4], latency_ms=0.5)
    run = ps.simulate(pipe, "1f1b", 4)
    again = pickle.loads(pickle.dumps(run))
    assert again.pipeline == pipe == copy.deepcopy(pipe)
    assert again.schedule == run.schedule
    assert again.summary() == run.summary()


def test_regrouping_merges_neighbours():
    pipe = ps.Pipeline.from_costs(
        [1, 2, 3, 4, 5, 6, 7, 8],
        input_grad=1.0,
        weight_grad=[0.5] * 8,
        ranks=4,
        stash_bytes=10,
        param_bytes=[1, 2, 3, 4, 5, 6, 7, 8],
        output_bytes=[11, 12, 13, 14, 15, 16, 17, 18],
        latency_ms=0.5,
        names=list("abcdefgh"),
    )
    one = pipe.regroup(chunks=1)
    assert [stage.forward_ms for stage in one.stages] == [3, 7, 11, 15]
    assert [stage.input_grad_ms for stage in one.stages] == [2.0] * 4
    assert [stage.stash_bytes for stage in one.stages] == [20] * 4
    assert [stage.param_bytes for stage in one.stages] == [3, 7, 11, 15]
    assert [stage.output_bytes for stage in one.stages] == [12, 14, 16, 18]  # what leaves
    assert [stage.name for stage in one.stages] == ["a+b", "c+d", "e+f", "g+h"]
    assert one.link(1, 2).latency_ms == 0.5
    assert pipe.regroup(chunks=2).stages == pipe.stages
    with pytest.raises(ValueError, match="8 stages cannot be merged to 12, 3 a rank"):
        pipe.regroup(chunks=3)


def test_placements_print_as_tables():
    tables = {
        ps.looped_placement(8, 4): "rank 0: stages 0, 4\nrank 1: stages 1, 5\n",
        ps.v_placement(8, 4): "rank 0: stages 0, 7\nrank 1: stages 1, 6\nrank 2: stages 2, 5\n",
        ps.wave_placement(16, 4): "rank 0: stages 0, 7, 8, 15\nrank 1: stages 1, 6, 9, 14\n",
        ps.bidirectional_placement(4, 4): "rank 0: stages 0, 3'\nrank 1: stages 1, 2'\n",
    }
    for placement, table in tables.items():
        assert table in str(placement)
    both = ps.bidirectional_placement(4, 4)
    assert both.table.tolist() == [[0, 1, 2, 3], [3, 2, 1, 0]]
