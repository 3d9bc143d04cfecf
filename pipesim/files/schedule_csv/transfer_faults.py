"""Faults of the sends and receives in a schedule file with transfers.

A message from one stage to a neighbour on another rank is sent once and received once: sent after
the op that makes it, received before the op that takes it, each on the rank of that op.

    3SEND_F1  the output of stage 3, to stage 4       3RECV_F1  the input of stage 3, from stage 2
    3SEND_B1  the gradient for stage 2, from stage 3  3RECV_B1  the gradient that stage 4 sends
"""

from collections.abc import Iterator

import numpy as np

from pipesim.base.ops import Kind
from pipesim.base.types import Int32Array
from pipesim.files.schedule_csv.op_faults import Finding
from pipesim.files.schedule_csv.schedule_file import Fault
from pipesim.files.schedule_csv.table import Table

TRANSFERS = (Kind.SEND_F, Kind.SEND_B, Kind.RECV_F, Kind.RECV_B)


def has_transfers(table: Table) -> bool:
    """Return whether a file has any send or receive."""
    return bool(np.isin(table.kind, TRANSFERS).any())


def check_transfers(table: Table, numbers: Int32Array) -> Iterator[Finding]:
    """Yield sends and receives that are missing, too many or in the wrong place."""
    forward, backward = numbers[Kind.F], np.maximum(numbers[Kind.B], numbers[Kind.I])
    for kind in TRANSFERS:
        own = forward if kind in (Kind.SEND_F, Kind.RECV_F) else backward
        # An activation comes from the stage before and goes to the next; gradients run back.
        step = 1 if kind in (Kind.SEND_F, Kind.RECV_B) else -1
        other = np.full_like(own, -1)
        if step == 1:
            other[:-1] = own[1:]
        else:
            other[1:] = own[:-1]
        yield from _of_kind(table, numbers[kind], kind, own, other, step)


def _of_kind(
    table: Table, there: Int32Array, kind: Kind, own: Int32Array, other: Int32Array, step: int
) -> Iterator[Finding]:
    """Yield the transfers of one kind that are missing, needless, misplaced, or of no op.

    `own` has the number of the op that each transfer belongs to, `other` that of the op on the
    neighbouring stage.
    """
    sends = kind in (Kind.SEND_F, Kind.SEND_B)

    def missing(pair: int) -> Fault:
        stage, unit = divmod(pair, there.shape[1])
        microbatch, part = divmod(unit, table.slices)
        text = f"{stage}{kind.name}{microbatch}" + (f".{part}" if part else "")
        what = "its output is never sent" if sends else "its input is never received"
        return table.fault(int(own[stage, unit]), f"has no {text}: {what}")

    def needless(number: int) -> Fault:
        stage = int(table.stage[number])
        where = f"stages {stage} and {stage + step} are on one rank and hand over there"
        if not 0 <= stage + step < table.stages:
            where = f"there is no stage {'after' if step == 1 else 'before'} stage {stage}"
        return table.fault(number, f"is needless: {where}")

    def misplaced(number: int) -> Fault:
        op = int(own[table.stage[number], table.unit[number]])
        at = f"{table.text(op)} is in {table.place(op)}"
        if table.rank[op] != table.rank[number]:
            return table.fault(number, f"is on the wrong row: {at}")
        if sends:
            return table.fault(number, f"comes before the op whose output it sends: {at}")
        return table.fault(number, f"comes after the op that needs it: {at}")

    def homeless(number: int) -> Fault:
        stage, microbatch = int(table.stage[number]), int(table.microbatch[number])
        what = f"stage {stage} does nothing with micro-batch {microbatch}"
        return table.fault(number, f"belongs to no op: {what}")

    # The transfers of a missing op are not checked: `check_ops` finds the missing op itself.
    complete = (own >= 0) & (other >= 0)
    crosses = complete & (table.rank[own] != table.rank[other])
    given = there >= 0
    yield np.flatnonzero(crosses & ~given), missing
    at, op = there[given].astype(np.int64), own[given]
    neighbour = table.stage[at] + step
    outside = (neighbour < 0) | (neighbour >= table.stages)
    yield np.sort(at[outside | (complete & ~crosses)[given]]), needless
    yield np.sort(at[(op < 0) & ~outside]), homeless
    early_or_late = (at < op) if sends else (at > op)
    wrong = crosses[given] & ((table.rank[at] != table.rank[op]) | early_or_late)
    yield np.sort(at[wrong]), misplaced
