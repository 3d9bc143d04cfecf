"""Faults of the ops in a schedule file: missing, doubled, or out of order on their rank."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from pipesim.base.ops import Kind
from pipesim.base.types import Int32Array, IntArray
from pipesim.files.schedule_csv.schedule_file import Fault
from pipesim.files.schedule_csv.table import NOUNS, Table

# The numbers of the faulty actions (or rows, values, pairs), and number -> its fault.
Finding: TypeAlias = tuple[IntArray, Callable[[int], Fault]]
SPARSE = 4  # stages x micro-batches over the pairs that have ops: beyond it a number is wrong


def check_rows(table: Table) -> Iterator[Finding]:
    """Yield the finding of rows without any op."""
    ops = np.bincount(table.rank[table.compute], minlength=len(table.rows))
    what = "has no op; every rank runs at least one stage: delete the row or fill it"
    yield np.flatnonzero(ops == 0), lambda rank: Fault(what, rank)


def check_numbers(table: Table) -> tuple[list[Finding], bool]:
    """Return the gaps in the numbers, and whether these are dense enough for the other checks."""
    findings = []
    for name, noun in NOUNS.items():
        values = np.unique(getattr(table, name))
        before = np.append(-1, values[:-1])
        findings.append(_gaps(table, name, noun, before, values))
    pairs = np.unique(table.stage * table.microbatches + table.microbatch)
    seldom = _seldom_slices(table, len(pairs))
    findings.append(seldom)
    size, units = table.stages * table.microbatches, len(pairs) * table.slices
    gaps_in_slices = len(findings[-2][0]) > 0
    dense = not gaps_in_slices and not len(seldom[0]) and size <= SPARSE * len(pairs) + 1000
    if size > SPARSE * len(pairs) + 1000 and not any(len(numbers) for numbers, _ in findings):
        what = (
            f"{len(pairs):,} of the {size:,} pairs of {table.stages:,} stages and "
            f"{table.microbatches:,} micro-batches have ops: is a number wrong?"
        )
        findings.append((np.zeros(1, dtype=np.int64), lambda _: Fault(what)))
    return findings, dense and units > 0


def _gaps(table: Table, name: str, noun: str, before: IntArray, values: IntArray) -> Finding:
    """Return the finding of values after a gap: the values right below are named nowhere."""
    after_gap = np.flatnonzero(values - before > 1)

    def describe(index: int) -> Fault:
        value, low, high = int(values[index]), int(before[index]) + 1, int(values[index]) - 1
        missing = f"{noun} {low} is" if low == high else f"{noun}{_es(noun)} {low} to {high} are"
        number = int(np.argmax(getattr(table, name) == value))
        return table.fault(number, f"names {noun} {value}, but {missing} nowhere")

    return after_gap, describe


def _seldom_slices(table: Table, pairs: int) -> Finding:
    """Return the finding of slices that fewer than half of all micro-batches have."""
    size = table.stages * table.microbatches * table.slices
    if table.slices == 1 or size > 2**62:
        return np.zeros(0, dtype=np.int64), lambda part: Fault("")
    keys = np.unique(
        (table.stage * table.microbatches + table.microbatch) * table.slices + table.slice
    )
    had = np.bincount(keys % table.slices, minlength=table.slices)

    def describe(part: int) -> Fault:
        number = int(np.argmax(table.slice == part))
        return table.fault(number, f"names slice {part}, which most micro-batches do not have")

    return np.flatnonzero((had > 0) & (had < pairs / 2)), describe


def check_ops(table: Table, numbers: Int32Array) -> Iterator[Finding]:
    """Yield ops that are doubled, missing or out of order; `numbers` is `Table.numbers()`."""
    own = numbers[table.kind, table.stage, table.unit]

    def twice(number: int) -> Fault:
        return table.fault(number, f"is there twice, first in {table.place(own[number])}")

    yield np.flatnonzero(own != np.arange(len(table))), twice
    yield from _missing_ops(table, numbers)
    yield from _early_ops(table, numbers)
    if table.slices > 1:
        yield from _unordered_slices(table, numbers)


def _missing_ops(table: Table, numbers: Int32Array) -> Iterator[Finding]:
    there = numbers >= 0
    forward, whole, split_i, split_w = (there[kind] for kind in (Kind.F, Kind.B, Kind.I, Kind.W))
    split = split_i | split_w
    no_backward = not (whole.any() or split.any())
    # Stages and micro-batches without any op are gaps in the numbers, which `_gaps` finds.
    any_op = forward | whole | split
    known = any_op.any(axis=1)[:, np.newaxis] & any_op.any(axis=0)
    for faulty, near, what in (
        (~forward & (whole | split), (Kind.B, Kind.I, Kind.W), "has no forward {F}"),
        (~any_op & known, (), "has no forward {F}"),
        (whole & split, (Kind.I, Kind.W), "is too much beside {B}; give B, or I and W"),
        (split_i & ~split_w & ~whole, (Kind.I,), "has no {W}: I and W go together"),
        (split_w & ~split_i & ~whole, (Kind.W,), "has no {I}: I and W go together"),
        (forward & ~(whole | split | no_backward), (Kind.F,), "has no backward {B}"),
    ):
        yield np.flatnonzero(faulty), _describe_pair(table, numbers, near, what)


def _describe_pair(
    table: Table, numbers: Int32Array, near: tuple[Kind, ...], what: str
) -> Callable[[int], Fault]:
    """Return (stage, unit) pair -> fault `what`, placed at the pair's first op of kinds `near`."""

    def describe(pair: int) -> Fault:
        stage, unit = divmod(pair, numbers.shape[2])
        microbatch, part = divmod(unit, table.slices)
        tail = f"{microbatch}.{part}" if part else f"{microbatch}"
        names = {
            kind.name: f"{stage}{kind.name}{tail}" for kind in (Kind.F, Kind.B, Kind.I, Kind.W)
        }
        text = what.format(**names)
        for kind in near:
            number = int(numbers[kind, stage, unit])
            if number >= 0:
                return table.fault(number, text)
        rank = int(table.rank[np.argmax(table.stage == stage)])
        return Fault(f"stage {stage} {text}", rank)

    return describe


def _early_ops(table: Table, numbers: Int32Array) -> Iterator[Finding]:
    """Yield the ops that come before the op of the same stage and rank that they need."""
    for kinds, needed in (((Kind.B, Kind.I), Kind.F), ((Kind.W,), Kind.I)):
        at = np.flatnonzero(np.isin(table.kind, kinds))
        source = numbers[needed, table.stage[at], table.unit[at]]
        comparable = (source >= 0) & (table.rank[source] == table.rank[at])
        together = (table.group[at] >= 0) & (table.group[source] == table.group[at])
        by_op = dict(zip(at.tolist(), source.tolist(), strict=True))

        def early(number: int, by_op: dict[int, int] = by_op) -> Fault:
            source = by_op[number]
            text = f"comes before {table.text(source)} in {table.place(source)}, which it needs"
            return table.fault(number, text)

        def paired(number: int) -> Fault:
            return table.fault(number, "cannot run at once: the backward needs the forward")

        yield at[comparable & ~together & (source > at)], early
        yield at[comparable & together], paired


def _unordered_slices(table: Table, numbers: Int32Array) -> Iterator[Finding]:
    """Yield the slices out of order: forwards go from first to last, backwards in reverse."""
    by_slice = numbers.reshape(*numbers.shape[:2], -1, table.slices)
    for kind, turned in ((Kind.F, 1), (Kind.B, -1), (Kind.I, -1)):
        ordered = by_slice[kind][..., ::turned]
        first, second = ordered[..., :-1], ordered[..., 1:]
        late = (first >= 0) & (second >= 0) & (second < first)
        order = "slices go forward in order" if turned == 1 else "and backward in reverse order"

        def describe(number: int, order: str = order) -> Fault:
            return table.fault(number, f"is out of order: {order.removeprefix('and ')}")

        yield np.sort(second[late]).astype(np.int64), describe


def _es(noun: str) -> str:
    return "es" if noun.endswith("ch") else "s"
