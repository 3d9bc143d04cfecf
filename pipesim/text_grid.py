"""An order drawn as text, every op one slot long.

    rank 0 | F0 F1 .  B0 .  B1        two micro-batches, one forward and one backward in turn,
    rank 1 | .  F0 B0 F1 B1 .         on two stages

The slots show what must come before what; they are no times.
"""

from typing import TYPE_CHECKING

import numpy as np

from pipesim.arrays import IntArray

if TYPE_CHECKING:
    from pipesim.schedule import Schedule


def unit_slots(schedule: "Schedule") -> IntArray:
    """Return the earliest slot of every op if each took one slot; -1 for ops never reached.

    Array (ops,).
    """
    slot = np.full(len(schedule), -1, dtype=np.int64)
    inputs = np.stack([schedule.producers(), schedule.local_inputs()])
    rank = schedule.rank
    following = schedule.offsets[:-1].copy()
    for now in range(len(schedule)):
        # All ranks decide on what was done before this slot, so none sees another's op in it.
        candidates = following[following < schedule.offsets[1:]]
        needed = inputs[:, candidates]
        starting = candidates[((needed < 0) | (slot[needed] >= 0)).all(axis=0)]
        if starting.size == 0:
            break
        slot[starting] = now
        following[rank[starting]] += 1
    return slot


def text_grid(schedule: "Schedule", width: int | None = None) -> str:
    """Return the order as text: one row a rank, one column a slot, `.` for an idle slot.

    The stage is left out of the labels where each rank has one.
    """
    labels = [str(op) for op in map(schedule.op, range(len(schedule)))]
    if schedule.stages == schedule.ranks:
        labels = [label.lstrip("0123456789") for label in labels]
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
