"""Our orders against PyTorch's, op for op. Run by `make test-torch`, skipped without PyTorch.

PyTorch's schedule objects are made here without a process group, with stand-ins for the stages.
Left out of the comparison are its padding (empty slots) and its REDUCE_GRAD actions, which are no
compute. Its 1F1B numbers the forwards of the last rank from 1 (there the number of the warm-up's
last forward is taken for the first of the steady phase, though the last rank has no warm-up),
which is mended before the comparison; m < p it refuses, which is left out.
"""

from unittest import mock

import pytest

import pipesim as ps
from pipesim.files.schedule_csv.read import read_torch_schedule
from pipesim.schedules.families.registry import FAMILIES

schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

LOOPED = [
    (2, 2, 4),
    (2, 3, 2),
    (2, 4, 8),
    (3, 2, 6),
    (4, 2, 8),
    (4, 2, 10),  # groups of 5
    (4, 2, 3),  # one group of 3
    (4, 3, 12),
    (8, 2, 16),
    (8, 4, 24),
]
SINGLE = [(p, 1, m) for p, m in [(1, 1), (1, 4), (2, 1), (2, 5), (3, 8), (4, 3)]]
SINGLE += [(p, 1, m) for p, m in [(4, 8), (5, 16), (6, 6), (7, 20), (8, 8), (16, 32)]]
SHAPED = [(p, 2, m) for p, m in [(1, 2), (1, 5), (2, 4), (2, 7), (3, 6), (3, 9)]]
SHAPED += [(p, 2, m) for p, m in [(4, 8), (4, 13), (6, 12), (8, 32)]]
FEWER = [(2, 2, 1), (3, 2, 2), (4, 2, 3), (4, 2, 6)]  # below 2p-1: ZB-V leaves ops out


def their_order(class_name, p, v, m):
    """Return PyTorch's order, one list of texts a rank."""
    stage = mock.create_autospec(schedules._PipelineStageBase, instance=True)
    stage.group_rank, stage.group_size, stage.submod = 0, p, None
    stage.num_stages, stage.has_backward = p * v, True
    single = issubclass(getattr(schedules, class_name), schedules.PipelineScheduleSingle)
    made = getattr(schedules, class_name)(stage if single else [stage] * v, m)
    order = made._get_pipeline_order() if single else made.pipeline_order
    return [list(texts(order[rank])) for rank in range(p)]


def texts(actions):
    kinds = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
    for action in actions:
        if action is None or action.computation_type.name == "REDUCE_GRAD":
            continue
        parts = action.sub_actions or (action,)
        yield "&".join(
            f"{part.stage_index}{kinds[part.computation_type.name]}{part.microbatch_index}"
            for part in parts
        )


def our_order(schedule):
    ranks = []
    for rank in range(schedule.ranks):
        first, last = schedule.offsets[rank], schedule.offsets[rank + 1]
        order = []
        for number in range(first, last):
            pair = schedule.group[number] >= 0 and number > first
            if pair and schedule.group[number] == schedule.group[number - 1]:
                order[-1] += f"&{schedule.op(number)}"
            else:
                order.append(str(schedule.op(number)))
        ranks.append(order)
    return ranks


@pytest.mark.parametrize(("p", "v", "m"), LOOPED)
def test_interleaved(p, v, m):
    ours = ps.build_schedule("interleaved", p, m, chunks=v, grouping="pytorch")
    assert our_order(ours) == their_order("ScheduleInterleaved1F1B", p, v, m)


@pytest.mark.parametrize(("p", "v", "m"), LOOPED)
def test_interleaved_zero_bubble(p, v, m):
    ours = ps.build_schedule("interleaved_zb", p, m, chunks=v)
    assert our_order(ours) == their_order("ScheduleInterleavedZeroBubble", p, v, m)


@pytest.mark.parametrize(("p", "v", "m"), LOOPED)
def test_looped_breadth_first(p, v, m):
    ours = ps.build_schedule("looped_bfs", p, m, chunks=v)
    assert our_order(ours) == their_order("ScheduleLoopedBFS", p, v, m)


@pytest.mark.parametrize(("p", "v", "m"), SHAPED + FEWER)
def test_zb_v(p, v, m):
    ours = ps.build_schedule("zb_v", p, m)
    assert our_order(ours) == their_order("ScheduleZBVZeroBubble", p, v, m)


@pytest.mark.parametrize(("p", "v", "m"), SHAPED)
def test_dualpipe_v(p, v, m):
    ours = ps.build_schedule("dualpipe_v", p, m)
    assert our_order(ours) == their_order("ScheduleDualPipeV", p, v, m)


@pytest.mark.parametrize(("p", "v", "m"), SINGLE)
def test_gpipe(p, v, m):
    ours = ps.build_schedule("gpipe", p, m, order="fifo")
    assert our_order(ours) == their_order("ScheduleGPipe", p, v, m)


@pytest.mark.parametrize(("p", "v", "m"), [case for case in SINGLE if case[2] >= case[0]])
def test_one_f_one_b(p, v, m):
    theirs = their_order("Schedule1F1B", p, v, m)
    last = p - 1
    if theirs[last][0] == f"{last}F1":  # numbered from 1, see above
        theirs[last] = [
            f"{last}F{int(text.partition('F')[2]) - 1}" if "F" in text else text
            for text in theirs[last]
        ]
    assert our_order(ps.build_schedule("1f1b", p, m)) == theirs


def torch_runtime(ranks, stages, microbatches):
    """Return PyTorch's object that loads and dumps schedule files, with stand-ins for stages."""
    runtime = object.__new__(schedules._PipelineScheduleRuntime)
    runtime.pp_group_size, runtime._num_stages = ranks, stages
    runtime._n_microbatches, runtime._stages = microbatches, []
    runtime._defer_pp_recv, runtime.pipeline_order = False, {}
    return runtime


EXPORTED = [
    (name, {"chunks": 2} if family.chunks is None else {})
    for name, family in FAMILIES.items()
    if family.backward != "none" and family.placement != "bidirectional"
    if "slices" not in family.options
]


@pytest.mark.parametrize(("name", "options"), EXPORTED)
@pytest.mark.parametrize("written", ["compute_only", "compute_comms"])
def test_files_go_to_pytorch_and_back(tmp_path, name, options, written):
    ours = ps.build_schedule(name, 4, 8, **options)
    ps.write_schedule(ours, tmp_path / "ours.csv")
    runtime = torch_runtime(ours.ranks, ours.stages, ours.microbatches)
    runtime._load_csv(tmp_path / "ours.csv", format="compute_only")
    runtime._dump_csv(tmp_path / "theirs.csv", format=written)
    file = read_torch_schedule(tmp_path / "theirs.csv")
    assert file.faults == ()
    assert (file.schedule.listed is not None) == (written == "compute_comms")
    assert file.schedule.placement == ours.placement
    assert our_order(file.schedule) == our_order(ours)


def test_pytorch_refuses_what_the_notes_say(tmp_path):
    ours = ps.build_schedule("dualpipe", 4, 8)
    ps.write_schedule(ours, tmp_path / "ours.csv")
    runtime = torch_runtime(ours.ranks, ours.stages, ours.microbatches)
    with pytest.raises(AssertionError, match="is assigned to both rank"):
        runtime._load_csv(tmp_path / "ours.csv", format="compute_only")
