"""An order drawn as text, every op one slot long.

    rank 0 | F0 F1 .  B0 .  B1        two micro-batches, one forward and one backward in turn,
    rank 1 | .  F0 B0 F1 B1 .         on two stages

The slots show what must come before what; they are no times.
"""

import numpy as np

from pipesim.base.types import BoolArray, IntArray
from pipesim.schedules.order.dataflow import local_inputs, producers, second_of_pair
from pipesim.schedules.order.op_columns import OpColumns
from pipesim.schedules.order.op_text import op_text

LEAST_CELL = 3  # characters: `F0` and a space


def unit_slots(ops: OpColumns) -> IntArray:
    """Return the earliest slot of every op if each takes one, array (ops,); -1 if never reached.

    A rank walks its order until an op lacks an input, and goes on when that input is there, so
    that the time is linear in the number of ops.
    """
    inputs = np.stack([producers(ops), local_inputs(ops)])
    offsets, second = ops.offsets, second_of_pair(ops)
    needs: list[list[int]] = inputs.tolist()
    items = len(ops)
    last_of_pair = np.arange(items)
    seconds = np.flatnonzero(second)
    last_of_pair[seconds - 1] = seconds
    last = last_of_pair.tolist()
    slot = [-1] * items
    following, end = offsets[:-1].tolist(), offsets[1:].tolist()
    free = [0] * len(end)  # the rank's first slot after its last item
    waiting: dict[int, list[int]] = {}  # item -> the ranks that wait for it
    going = list(range(len(end)))
    while going:
        rank = going.pop()
        now, number = free[rank], following[rank]
        while number < end[rank]:
            until = last[number] + 1  # both ops of a pair wait for the inputs of both
            lacking = -1
            for item in range(number, until):
                for needed in needs:
                    source = needed[item]
                    if source >= 0:
                        if slot[source] < 0:
                            lacking = source
                        elif slot[source] >= now:
                            now = slot[source] + 1
            if lacking >= 0:
                waiting.setdefault(lacking, []).append(rank)
                break
            for item in range(number, until):
                slot[item] = now
                if item in waiting:
                    going += waiting.pop(item)
            now += 1
            number = until
        free[rank], following[rank] = now, number
    return np.array(slot, dtype=np.int64)


def text_grid(ops: OpColumns, width: int | None = None) -> str:
    """Return the order as text: one row a rank, one column a slot, `.` for an idle slot.

    The labels have no stage if each rank has one, and no slice if nothing is sliced.
    """
    slot = unit_slots(ops)
    columns = int(slot.max()) + 1
    most = columns if width is None else min(columns, max(1, width // LEAST_CELL))
    labels = _labels(ops, (slot >= 0) & (slot < most) | _first_stuck(ops, slot))
    cell = max(map(len, labels.values())) + 1
    shown = columns if width is None else min(columns, max(1, width // cell))
    margin = len(str(ops.ranks - 1))
    lines = []
    for rank in range(ops.ranks):
        cells = ["."] * shown
        never = ""
        for number in range(ops.offsets[rank], ops.offsets[rank + 1]):
            if number not in labels:
                continue
            if slot[number] < 0:
                never = f"  never reached: {labels[number]}"
                break
            if slot[number] < shown:
                cells[slot[number]] = labels[number]
        row = "".join(text.ljust(cell) for text in cells).rstrip()
        more = " ..." if shown < columns else ""
        lines.append(f"rank {rank:>{margin}} | {row}{more}{never}")
    return "\n".join(lines)


def _labels(ops: OpColumns, wanted: BoolArray) -> dict[int, str]:
    """Return the labels of the wanted ops by number; a pair has one label, `F1&B0`."""
    several = ops.stages > ops.ranks or ops.placement.directions > 1
    sliced = ops.slices > 1
    second = second_of_pair(ops)
    before = np.append(second[1:] & wanted[1:], False)  # a pair is wanted if either op is
    wanted = wanted | before | second & np.append(False, wanted[:-1])
    labels: dict[int, str] = {}
    for number in np.flatnonzero(wanted).tolist():
        labels[number] = op_text(ops.op(number), several, sliced)
        if second[number]:
            labels[number - 1] = labels[number] = f"{labels[number - 1]}&{labels[number]}"
    return labels


def _first_stuck(ops: OpColumns, slot: IntArray) -> BoolArray:
    """Return whether each op is the first of its rank that is never reached, array (ops,)."""
    stuck = slot < 0
    first = stuck.copy()
    first[1:] &= ~stuck[:-1]
    starts = ops.offsets[:-1]
    first[starts] = stuck[starts]
    return first
