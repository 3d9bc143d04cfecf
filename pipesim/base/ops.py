"""The vocabulary of a schedule: kinds of work, and ops in the text notation `2F0`."""

import re
from enum import IntEnum
from typing import NamedTuple


class Kind(IntEnum):
    """The kind of an op, or of what an instruction sends or receives."""

    F = 0  # forward
    B = 1  # full backward
    I = 2  # its input-gradient part
    W = 3  # its weight-gradient part
    R = 4  # rebuilding what the forward has not kept, ahead of the backward
    SEND_F = 5  # an activation on its way to the next stage
    SEND_B = 6  # a gradient on its way to the stage before
    RECV_F = 7  # an activation from the stage before
    RECV_B = 8  # a gradient from the next stage


COMPUTE_KINDS = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.R)
# The kinds as plain numbers, for compiled code.
F, B, I, W, R = map(int, COMPUTE_KINDS)
KINDS = len(COMPUTE_KINDS)

_OP = re.compile(r"(\d+)([FBIWR])(\d+)(?:\.(\d+))?")


class Op(NamedTuple):
    """One micro-batch's work of one kind on one stage; prints as `2F0`, or with its slice `2F0.1`.

    >>> str(Op(stage=2, kind=Kind.F, microbatch=0))
    '2F0'
    """

    stage: int
    kind: Kind
    microbatch: int
    slice: int = 0

    def __str__(self) -> str:
        slice_text = f".{self.slice}" if self.slice else ""
        return f"{self.stage}{self.kind.name}{self.microbatch}{slice_text}"


def parse_op(text: str) -> Op:
    """Return the op that a text such as `2F0` or `2F0.1` names: stage, kind, micro-batch, slice.

    Raises
    ------
    ValueError
        If the text is anything else.

    Examples
    --------
    >>> parse_op("2F0")
    Op(stage=2, kind=<Kind.F: 0>, microbatch=0, slice=0)
    """
    match = _OP.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"{text!r} is no op; write stage, kind (F, B, I, W or R), micro-batch: '2F0'"
        )
    stage, kind, microbatch, slice_ = match.groups()
    return Op(int(stage), Kind[kind], int(microbatch), int(slice_ or 0))
