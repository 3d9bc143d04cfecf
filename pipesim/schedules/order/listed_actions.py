"""The actions of a schedule file: ops, and the sends and receives among them."""

from dataclasses import dataclass

import numpy as np

from pipesim.base.ops import COMPUTE_KINDS
from pipesim.base.types import BoolArray, Int8Array, Int32Array, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Actions:
    """The computes, sends and receives in the cells of a schedule file, in file order.

    All arrays are (actions,). Actions in the same cell belong together.

    Parameters
    ----------
    rank, cell
        Row and place in the row, both from 0.
    kind
        Codes of `Kind`: F, B, I, W, R, SEND_F, SEND_B, RECV_F, RECV_B.
    stage
        Stage of the op; for a send the stage whose output it sends, for a receive the stage
        whose input it receives.
    microbatch, slice
        The micro-batch and slice that flow.
    group
        Number of an op's overlapped pair, from 0 on over the file; -1 for all others.
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
        """Return whether both have the same actions in the same order; blank cells do not count."""
        if not isinstance(other, Actions):
            return NotImplemented
        names = ("rank", "kind", "stage", "microbatch", "slice", "group")
        return all(np.array_equal(getattr(self, n), getattr(other, n)) for n in names)

    __hash__ = None  # type: ignore[assignment]  # equal by its arrays, which have no hash

    @property
    def transfers(self) -> bool:
        """Whether any of the actions is a send or a receive."""
        return bool((~self.computes).any())

    @property
    def computes(self) -> BoolArray:
        """Whether each action is an op, array (actions,)."""
        return np.isin(self.kind, COMPUTE_KINDS)
