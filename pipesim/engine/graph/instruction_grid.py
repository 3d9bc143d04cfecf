"""Instruction lists side by side, one column a rank, to show which rank waits for which.

    slot  rank 0    rank 1
       1  0F0       .
       2  0SEND_F0  1RECV_F0      the two ends of a transfer that blocks stand in one row
       3  0F1       1F0

Every instruction takes one slot, transfers that start together that of the last of them; slots
are no times.
"""

from collections.abc import Callable

import numpy as np

from pipesim.base.ops import Kind
from pipesim.base.text import text_table
from pipesim.base.types import IntArray
from pipesim.engine.graph.event_graph import EventGraph
from pipesim.schedules.program.program import Program

DEEPSPEED_NAMES = {
    Kind.F: "ForwardPass",
    Kind.B: "BackwardPass",
    Kind.I: "BackwardInput",  # DeepSpeed does not split the backward
    Kind.W: "BackwardWeight",
    Kind.R: "Recompute",  # DeepSpeed rebuilds within the backward
    Kind.SEND_F: "SendActivation",
    Kind.SEND_B: "SendGrad",
    Kind.RECV_F: "RecvActivation",
    Kind.RECV_B: "RecvGrad",
}


def instruction_slots(graph: EventGraph) -> IntArray:
    """Return the slot of every instruction from 0 on, array (instructions,); -1 if it is stuck.

    Every instruction takes one slot; a transfer that blocks takes the slot in which both of its
    ends are there.
    """
    one = np.zeros(len(graph))
    one[graph.leave] = 1.0
    start = graph.times(one, 0 * one)[graph.leave, 0]
    return np.where(np.isnan(start), -1, np.nan_to_num(start)).astype(np.int64)


def instruction_grid(graph: EventGraph, named: Callable[[Program, int], str]) -> str:
    """Return the instruction lists as text, one column a rank, one row a slot.

    Parameters
    ----------
    graph
        Event graph of the program. If a rank is stuck, the first instruction that it never
        passes is marked `>..<` and the rest is left out.
    named
        (program, instruction) -> text of the instruction.
    """
    program, slots = graph.program, instruction_slots(graph)
    rows = int(slots.max()) + 1
    columns = {"slot": [str(slot + 1) for slot in range(rows)]}
    stuck = []
    for rank in range(program.ranks):
        cells = ["."] * rows
        for instruction in range(program.offsets[rank], program.offsets[rank + 1]):
            text = named(program, instruction)
            if slots[instruction] < 0:
                stuck.append((rank, f">{text}<"))
                break
            cells[slots[instruction]] = text
        columns[f"rank {rank}"] = cells
    if stuck:
        columns["slot"].append("stuck")
        marks = dict(stuck)
        for rank in range(program.ranks):
            columns[f"rank {rank}"].append(marks.get(rank, "."))
    return text_table(columns, left=[name for name in columns if name != "slot"])


def plain_name(program: Program, instruction: int) -> str:
    """Return an instruction in the notation of PyTorch's schedule files: `0F0`, `0SEND_F0`."""
    return program.text(instruction)


def deepspeed_name(program: Program, instruction: int) -> str:
    """Return an instruction under DeepSpeed's names: `ForwardPass 0`, `SendActivation 0`.

    The number is that of the micro-batch; the stage is added if ranks have several.
    """
    several = program.order.stages > program.ranks or program.order.placement.directions > 1
    texts = []
    for item in program.items(instruction):
        op = program.op_of_item(item)
        stage = f" of stage {op.stage}" if several else ""
        part = f".{op.slice}" if program.order.slices > 1 else ""
        texts.append(f"{DEEPSPEED_NAMES[op.kind]} {op.microbatch}{part}{stage}")
    return " & ".join(texts)


NAMES = {"pytorch": plain_name, "deepspeed": deepspeed_name}
