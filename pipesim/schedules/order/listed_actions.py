"""The cells of a schedule file: ops, and the sends and receives that stand among them."""

from dataclasses import dataclass

import numpy as np

from pipesim.base.ops import COMPUTE_KINDS
from pipesim.base.types import BoolArray, Int8Array, Int32Array, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Actions:
    """What every cell of a schedule file does that computes, sends or receives, in file order.

    All arrays are (actions,). Actions in the same cell go together.

    Parameters
    ----------
    rank, cell
        Row and place in the row, both from 0.
    kind
        Codes of `Kind`: F, B, I, W, R, SEND_F, SEND_B, RECV_F, RECV_B.
    stage
        Of the op; of a send the stage whose output it sends, of a receive the stage whose input
        it receives.
    microbatch, slice
        What flows.
    group
        Number of the overlapped pair of a compute op, from 0 on over the file, else -1.
    """

    rank: Int32Array
    cell: IntArray
    kind: Int8Array
    stage: Int32Array
    microbatch: Int32Array
    slice: Int32Array
    group: Int32Array

    def __len__(self) -> int:
        return len(self.rank)

    def __eq__(self, other: object) -> bool:
        """Two are equal if they do the same in the same order, wherever blank cells stand."""
        if not isinstance(other, Actions):
            return NotImplemented
        names = ("rank", "kind", "stage", "microbatch", "slice", "group")
        return all(np.array_equal(getattr(self, n), getattr(other, n)) for n in names)

    __hash__ = None  # type: ignore[assignment]  # equal by its arrays, which have no hash

    @property
    def transfers(self) -> bool:
        """Whether any of them sends or receives."""
        return bool((~self.computes).any())

    @property
    def computes(self) -> BoolArray:
        """Which of them are ops, array (actions,)."""
        return np.isin(self.kind, COMPUTE_KINDS)
