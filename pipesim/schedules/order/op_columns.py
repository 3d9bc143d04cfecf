"""The ops of all ranks in flat arrays, rank after rank, and arrays that follow from these.

    rank 0 | F0 F1 B0 B1        number      0  1  2  3  4  5  6  7
    rank 1 | F0 B0 F1 B1        kind        F  F  B  B  F  B  F  B
                                stage       0  0  0  0  1  1  1  1
                                microbatch  0  1  0  1  0  0  1  1
                                offsets     0           4           8

A schedule of millions of ops is a few arrays and not millions of objects. An op's index in these
arrays is its number for the engines, too.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipesim.base.ops import COMPUTE_KINDS, Kind, Op
from pipesim.base.types import Int8Array, Int32Array, IntArray
from pipesim.pipeline.placement import Placement

OP_COLUMNS = {
    "stage": np.int32,
    "kind": np.int8,
    "microbatch": np.int32,
    "slice": np.int32,
    "group": np.int32,
}
LARGE = 200_000  # ops from which compiled code checks the order first


class Flows(NamedTuple):
    """Consumers, producers and local inputs of ops, arrays (ops,) of numbers; see `dataflow.py`."""

    consumers: Int32Array
    producers: Int32Array
    local_inputs: Int32Array


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class OpColumns:
    """An order of ops for each rank, as columns; the parameters are those of `Schedule`."""

    placement: Placement
    microbatches: int
    stage: Int32Array
    kind: Int8Array
    microbatch: Int32Array
    offsets: IntArray
    slice: Int32Array = None  # type: ignore[assignment]  # filled in below
    group: Int32Array = None  # type: ignore[assignment]
    fractions: tuple[float, ...] = (1.0,)
    directions: Int8Array = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        ops = len(self.stage)
        # A single number broadcast to an array takes no memory.
        defaults: dict[str, npt.NDArray[Any]] = {
            "slice": np.broadcast_to(np.int32(0), ops),
            "group": np.broadcast_to(np.int32(-1), ops),
            "directions": np.zeros(self.microbatches, dtype=np.int8),
        }
        for name in (*OP_COLUMNS, "offsets", "directions"):
            given = getattr(self, name)
            array = defaults[name] if given is None else np.array(given)
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    @property
    def ranks(self) -> int:
        """Number of ranks p."""
        return self.placement.ranks

    @property
    def stages(self) -> int:
        """Number of stages S."""
        return self.placement.stages

    @property
    def slices(self) -> int:
        """Number of slices k of each micro-batch; 1 where it is not sliced."""
        return len(self.fractions)

    @property
    def unit(self) -> Int32Array:
        """The unit of each op, micro-batch x k + slice; array (ops,)."""
        if self.slices == 1:
            return self.microbatch
        unit: Int32Array = self.microbatch * np.int32(self.slices) + self.slice
        return unit

    @property
    def rank_table(self) -> Int32Array:
        """The rank on which each stage runs each micro-batch, array (stages, micro-batches)."""
        return np.ascontiguousarray(self.placement.table[self.directions].T)

    @property
    def rank(self) -> Int32Array:
        """The rank of every op, array (ops,)."""
        return np.repeat(np.arange(self.ranks, dtype=np.int32), np.diff(self.offsets))

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of ops in the order."""
        return frozenset(Kind(kind) for kind in np.unique(self.kind))

    def __len__(self) -> int:
        return len(self.stage)

    def op(self, index: int) -> Op:
        """Return the op with this number in the flat arrays."""
        stage, microbatch = int(self.stage[index]), int(self.microbatch[index])
        return Op(stage, Kind(int(self.kind[index])), microbatch, int(self.slice[index]))

    def order(self, rank: int) -> tuple[Op, ...]:
        """Return the ops of one rank in order."""
        return tuple(map(self.op, range(self.offsets[rank], self.offsets[rank + 1])))

    def numbers(self) -> Int32Array:
        """Return the number of every op, array (kinds, stages, units); -1 for no op.

        The first axis is F, B, I, W, R; a unit is a micro-batch, or a slice of it.
        """
        units = self.microbatches * self.slices
        numbers = np.full((len(COMPUTE_KINDS), self.stages, units), -1, dtype=np.int32)
        numbers[self.kind, self.stage, self.unit] = np.arange(len(self), dtype=np.int32)
        return numbers

    @cached_property
    def checked_flows(self) -> Flows | None:
        """The flows of a large order that compiled code finds valid; else None.

        Small orders, and those with slices or pairs, are not checked by it: None for these, too.
        """
        if len(self) < LARGE or self.slices > 1 or bool((self.group >= 0).any()):
            return None
        from pipesim.schedules.order.kernels import check_and_connect

        columns = self.kind, self.stage, self.unit, self.offsets
        right, *flows = check_and_connect(*columns, self.rank_table)
        return _read_only(Flows(*flows)) if right else None

    @cached_property
    def flows(self) -> Flows:
        """Consumers, producers and local inputs of all ops, worked out once."""
        if self.checked_flows is not None:
            return self.checked_flows
        numbers = self.numbers()
        where = self.kind, self.stage, self.unit
        backward = np.maximum(numbers[Kind.B], numbers[Kind.I])
        taken = np.full_like(numbers, -1)
        taken[Kind.F, :-1] = numbers[Kind.F, 1:]
        taken[Kind.B, 1:] = backward[:-1]
        taken[Kind.I, 1:] = backward[:-1]
        taken_by = taken[where]
        source = np.full_like(taken_by, -1)
        passing = np.flatnonzero(taken_by >= 0)
        source[taken_by[passing]] = passing
        needed = taken
        needed[Kind.F] = -1
        needed[Kind.R] = numbers[Kind.F]
        rebuilt = numbers[Kind.R]
        needed[Kind.B] = needed[Kind.I] = np.where(rebuilt >= 0, rebuilt, numbers[Kind.F])
        needed[Kind.W] = numbers[Kind.I]
        return _read_only(Flows(taken_by, source, needed[where]))


def _read_only(flows: Flows) -> Flows:
    for array in flows:
        array.flags.writeable = False
    return flows
