"""The placement of a schedule file's stages, found from the rows that name them.

A stage lives on one row, except in bidirectional schedules: there every micro-batch goes either
by one map of stages to rows or by its mirror image, so that a stage is on two rows.
"""

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from pipesim.base.ops import COMPUTE_KINDS
from pipesim.base.types import Int8Array, Int32Array, IntArray
from pipesim.files.schedule_csv.op_faults import Finding
from pipesim.files.schedule_csv.schedule_file import Fault
from pipesim.files.schedule_csv.table import Table
from pipesim.pipeline.placement import Placement, named_placement

Maps: TypeAlias = tuple[IntArray, IntArray]  # rank of every stage; direction of every micro-batch


def find_placement(
    table: Table, numbers: Int32Array
) -> tuple[Placement | None, Int8Array | None, list[Finding]]:
    """Return the placement, the directions of the micro-batches, and the ops on wrong rows.

    The placement is None if a stage is on no row or on wrong rows; the directions are None if
    there is only one.
    """
    ops = table.only(table.compute)
    low, high = np.full(table.stages, len(table.rows)), np.full(table.stages, -1)
    np.minimum.at(low, ops.stage, ops.rank)
    np.maximum.at(high, ops.stage, ops.rank)
    if (high < 0).any():
        return None, None, list(_on_two_ranks(table))
    if (low == high).all():
        return _placement(low, None), None, []
    maps = _two_maps(table, numbers)
    if maps is None:
        return None, None, list(_on_two_ranks(table))
    rank_of, direction = maps
    table_of = np.stack([rank_of, rank_of[::-1]])
    owner = table_of[direction[table.microbatch], table.stage]
    wrong = np.flatnonzero((table.rank != owner) & table.compute)

    def describe(number: int) -> Fault:
        way = f"micro-batch {table.microbatch[number]} has stage {table.stage[number]}"
        return table.fault(number, f"is on the wrong row: {way} on rank {owner[number]}")

    placement = None if wrong.size else _placement(rank_of, rank_of[::-1])
    return placement, direction.astype(np.int8), [(wrong, describe)]


def _placement(rank_of: IntArray, reverse: IntArray | None) -> Placement | None:
    try:
        other = None if reverse is None else reverse.tolist()
        return named_placement(rank_of.tolist(), other)
    except ValueError:  # a row without ops, which `check_rows` finds
        return None


def _two_maps(table: Table, numbers: Int32Array) -> Maps | None:
    """Return the rank of every stage for micro-batch 0, and the direction of every micro-batch.

    Direction 1 is the mirror image of that map. None if the rows do not follow two such maps;
    single ops on wrong rows do not matter.
    """
    compute = numbers[list(COMPUTE_KINDS)].max(axis=0).reshape(table.stages, -1, table.slices)
    number = compute[..., 0]
    ranks = np.where(number >= 0, table.rank[number], -1).T
    known, count = np.unique(ranks[(ranks >= 0).all(axis=1)], axis=0, return_counts=True)
    found = {tuple(known[index].tolist()) for index in range(len(known))}
    for index in np.argsort(-count, kind="stable")[:2]:
        rank_of = known[index]
        mirrored = rank_of[::-1]
        if tuple(mirrored.tolist()) in found and not np.array_equal(rank_of, mirrored):
            direction = (ranks == mirrored).sum(axis=1) > (ranks == rank_of).sum(axis=1)
            if direction[0]:
                return mirrored, ~direction * 1
            return rank_of, direction * 1
    return None


def _on_two_ranks(table: Table) -> Iterator[Finding]:
    """Yield a stage's first op on every rank but the one that has most of the stage's ops."""
    ops = np.flatnonzero(table.compute)
    if not ops.size:
        return
    key = table.stage[ops] * len(table.rows) + table.rank[ops]
    keys, first, count = np.unique(key, return_index=True, return_counts=True)
    stage = keys // len(table.rows)
    most_first = np.lexsort((keys, -count, stage))
    owner = most_first[np.append(True, np.diff(stage[most_first]) > 0)]
    home = dict(zip(stage[owner].tolist(), ops[first[owner]].tolist(), strict=True))
    strays = np.setdiff1d(np.arange(len(keys)), owner)
    more = dict(zip(ops[first[strays]].tolist(), (count[strays] - 1).tolist(), strict=True))

    def describe(number: int) -> Fault:
        stage = int(table.stage[number])
        others = f" (and {more[number]} more there)" if more[number] else ""
        lives = table.place(home[stage])
        return table.fault(number, f"puts stage {stage} on two ranks: it lives on {lives}{others}")

    yield np.sort(ops[first[strays]]), describe
