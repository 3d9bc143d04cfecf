"""An order drawn as text, every op one slot long.

    rank 0 | F0 F1 .  B0 .  B1        two micro-batches, one forward and one backward in turn,
    rank 1 | .  F0 B0 F1 B1 .         on two stages

The slots show what must come before what; they are no times.
"""

from typing import TYPE_CHECKING

import numpy as np

from pipesim.arrays import IntArray
from pipesim.dataflow import local_inputs, producers, second_of_pair
from pipesim.order_text import op_text

if TYPE_CHECKING:
    from pipesim.schedule import Schedule


def unit_slots(schedule: "Schedule") -> IntArray:
    """Return the earliest slot of every op if each took one slot; -1 for ops never reached.

    Array (ops,).
    """
    slot = np.full(len(schedule), -1, dtype=np.int64)
    inputs = np.stack([producers(schedule), local_inputs(schedule)])
    # Of an overlapped pair each op waits for the inputs of both.
    partner = np.arange(len(schedule))
    second = np.flatnonzero(second_of_pair(schedule))
    partner[second], partner[second - 1] = second - 1, second
    inputs = np.concatenate([inputs, inputs[:, partner]])
    rank = schedule.rank
    following = schedule.offsets[:-1].copy()
    for now in range(len(schedule)):
        # All ranks decide on what was done before this slot, so none sees another's op in it.
        candidates = following[following < schedule.offsets[1:]]
        needed = inputs[:, candidates]
        starting = candidates[((needed < 0) | (slot[needed] >= 0)).all(axis=0)]
        if starting.size == 0:
            break
        slot[starting] = slot[partner[starting]] = now
        following[rank[starting]] = np.maximum(starting, partner[starting]) + 1
    return slot


def text_grid(schedule: "Schedule", width: int | None = None) -> str:
    """Return the order as text: one row a rank, one column a slot, `.` for an idle slot.

    The stage is left out of the labels where each rank has one, and so is the slice.
    """
    several = schedule.stages > schedule.ranks or schedule.placement.directions > 1
    sliced = schedule.slices > 1
    labels = [op_text(schedule.op(n), several, sliced) for n in range(len(schedule))]
    for number in np.flatnonzero(second_of_pair(schedule)).tolist():
        labels[number - 1] = labels[number] = f"{labels[number - 1]}&{labels[number]}"
    slot = unit_slots(schedule)
    cell = max(map(len, labels)) + 1
    columns = int(slot.max()) + 1
    shown = columns if width is None else min(columns, max(1, width // cell))
    margin = len(str(schedule.ranks - 1))
    lines = []
    for rank in range(schedule.ranks):
        numbers = range(schedule.offsets[rank], schedule.offsets[rank + 1])
        cells = ["."] * columns
        for number in numbers:
            if slot[number] >= 0:
                cells[slot[number]] = labels[number]
        row = "".join(text.ljust(cell) for text in cells[:shown]).rstrip()
        more = " ..." if shown < columns else ""
        stuck = next((labels[number] for number in numbers if slot[number] < 0), None)
        never = "" if stuck is None else f"  never reached: {stuck}"
        lines.append(f"rank {rank:>{margin}} | {row}{more}{never}")
    return "\n".join(lines)
