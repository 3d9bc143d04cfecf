"""A schedule: for every rank an order of ops, and no times.

    rank 0 | F0 F1 .  B0 B1        the grid of two micro-batches on two stages, every op one
    rank 1 | .  F0 B0 F1 B1 .      slot long: a picture of the order, not of a run

The ops of all ranks lie in flat arrays, rank after rank, so that a schedule of millions of ops
is a few arrays and not millions of objects. An op's index in these arrays is its number for
the engines, too. Times come from an engine only.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from pipesim.arrays import BoolArray, Int8Array, Int32Array, IntArray
from pipesim.errors import ScheduleError
from pipesim.ops import COMPUTE_KINDS, Kind, Op, parse_op
from pipesim.placement import Placement, linear_placement
from pipesim.schedule_checks import check_schedule
from pipesim.text_grid import text_grid
from pipesim.text_table import count_text

RankOps = tuple[Sequence[int] | IntArray, Sequence[int] | IntArray, Sequence[int] | IntArray]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Schedule:
    """Per rank an order of ops; owns the placement and the number of micro-batches.

    Made by `build_schedule`, by `Schedule.from_orders`, or by a function of one's own. What is
    checked when it is made: every stage runs F of every micro-batch once and on its own rank;
    its backward is B, or I and W, each once, after F and I before W; or there is no backward
    at all. That the order can be run, across ranks, only a run tells.

    Parameters
    ----------
    name
        Shown on figures and in reports.
    placement
        Stage -> rank.
    microbatches
        Number of micro-batches m.
    stage, kind, microbatch
        The ops, arrays (ops,), rank after rank and in order within a rank.
    offsets
        Array (ranks + 1,): the ops of rank r are those from offsets[r] up to offsets[r + 1].
    family
        The name in `pipesim schedules` of what built it, whose formulas then hold; "" for an
        order of one's own.

    Raises
    ------
    ScheduleError
        If an op is missing, doubled, out of range, on the wrong rank or out of order.
    """

    name: str
    placement: Placement
    microbatches: int
    stage: Int32Array
    kind: Int8Array
    microbatch: Int32Array
    offsets: IntArray
    family: str = ""

    def __post_init__(self) -> None:
        for name in ("stage", "kind", "microbatch", "offsets"):
            array = getattr(self, name).copy()
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        check_schedule(self)

    @classmethod
    def from_rank_ops(
        cls, name: str, placement: Placement, microbatches: int, rank_ops: Iterable[RankOps]
    ) -> Self:
        """Return the schedule of one (stages, kinds, micro-batches) triple of arrays a rank.

        Raises
        ------
        ScheduleError
            If the ops do not make a schedule (see the class).
        """
        columns = list(zip(*rank_ops, strict=True))
        stage, kind, microbatch = (
            np.concatenate([np.asarray(part, dtype=dtype) for part in column])
            for column, dtype in zip(columns, (np.int32, np.int8, np.int32), strict=True)
        )
        offsets = np.cumsum([0, *(len(part) for part in columns[1])], dtype=np.int64)
        return cls(name, placement, microbatches, stage, kind, microbatch, offsets)

    @classmethod
    def from_orders(
        cls,
        orders: Sequence[str | Iterable[str | Op]],
        *,
        placement: Placement | None = None,
        microbatches: int | None = None,
        name: str = "custom",
    ) -> Self:
        """Return the schedule that one order a rank spells out.

        Parameters
        ----------
        orders
            For every rank its ops in order: ops, their texts, or one text with spaces between.
        placement
            Stage -> rank; by default each stage belongs to the rank whose order names it first.
        microbatches
            By default the largest micro-batch number plus one.
        name
            Shown on figures and in reports.

        Raises
        ------
        ScheduleError
            If the ops do not make a schedule (see the class).
        ValueError
            If a text is no op.

        Examples
        --------
        >>> print(Schedule.from_orders(["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"], name="mine"))
        mine: 2 ranks, 2 micro-batches
        rank 0 | F0 F1 .  B0 .  B1
        rank 1 | .  F0 B0 F1 B1 .
        """
        parsed = [list(_parse_order(order)) for order in orders]
        if not any(parsed):
            raise ScheduleError(f"{name}: there is no op in any rank's order")
        if placement is None:
            placement = _implied_placement(parsed, name)
        if microbatches is None:
            microbatches = max(op.microbatch for order in parsed for op in order) + 1
        if placement.ranks != len(parsed):
            raise ScheduleError(
                f"{name}: {len(parsed)} orders for a placement on {placement.ranks} ranks"
            )
        triples = [
            ([op.stage for op in order], [op.kind for op in order], [op.microbatch for op in order])
            for order in parsed
        ]
        return cls.from_rank_ops(name, placement, microbatches, triples)

    @property
    def ranks(self) -> int:
        """Number of ranks p."""
        return self.placement.ranks

    @property
    def stages(self) -> int:
        """Number of stages S."""
        return self.placement.stages

    @property
    def rank(self) -> Int32Array:
        """The rank of every op, array (ops,)."""
        return np.repeat(np.arange(self.ranks, dtype=np.int32), np.diff(self.offsets))

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of op that occur."""
        return frozenset(Kind(kind) for kind in np.unique(self.kind))

    def __len__(self) -> int:
        return len(self.stage)

    def op(self, index: int) -> Op:
        """Return the op with this number in the flat arrays."""
        return Op(int(self.stage[index]), Kind(int(self.kind[index])), int(self.microbatch[index]))

    def order(self, rank: int) -> tuple[Op, ...]:
        """Return the ops of one rank in order."""
        return tuple(map(self.op, range(self.offsets[rank], self.offsets[rank + 1])))

    def op_numbers(self) -> Int32Array:
        """Return the number of every op, array (kinds, stages, micro-batches), -1 where none is.

        Its first axis goes F, B, I, W.
        """
        numbers = np.full((len(COMPUTE_KINDS), self.stages, self.microbatches), -1, dtype=np.int32)
        numbers[self.kind, self.stage, self.microbatch] = np.arange(len(self), dtype=np.int32)
        return numbers

    def consumers(self) -> Int32Array:
        """Return for every op the number of the op on the next stage that takes its output.

        An activation goes from F of stage s to F of s+1, a gradient from B or I of s to B or I
        of s-1; -1 where nothing is passed on. Array (ops,).
        """
        numbers = self.op_numbers()
        taken = np.full_like(numbers, -1)
        backward = np.maximum(numbers[Kind.B], numbers[Kind.I])
        taken[Kind.F, :-1] = numbers[Kind.F, 1:]
        taken[Kind.B, 1:] = backward[:-1]
        taken[Kind.I, 1:] = backward[:-1]
        return taken[self.kind, self.stage, self.microbatch]

    def producers(self) -> Int32Array:
        """Return for every op the number of the op whose output it takes, -1 where none.

        The inverse of `consumers`. Array (ops,).
        """
        taken_by = self.consumers()
        source = np.full_like(taken_by, -1)
        passing = np.flatnonzero(taken_by >= 0)
        source[taken_by[passing]] = passing
        return source

    def local_inputs(self) -> Int32Array:
        """Return for every op the number of the op of its own stage that must come first.

        B and I need the stage's own F, W needs I; -1 for F. Array (ops,).
        """
        numbers = self.op_numbers()
        needed = np.full_like(numbers, -1)
        needed[Kind.B] = needed[Kind.I] = numbers[Kind.F]
        needed[Kind.W] = numbers[Kind.I]
        return needed[self.kind, self.stage, self.microbatch]

    def opens(self) -> BoolArray:
        """Return which ops put a (stage, micro-batch) pair in flight: the forwards; (ops,)."""
        return np.equal(self.kind, Kind.F)

    def closes(self) -> BoolArray:
        """Return which ops end a pair's flight, array (ops,): B, or W when split, or a lone F."""
        if Kind.B in self.kinds or Kind.W in self.kinds:
            return np.isin(self.kind, (Kind.B, Kind.W))
        return np.equal(self.kind, Kind.F)

    def peak_in_flight(self) -> tuple[int, ...]:
        """Return the most (stage, micro-batch) pairs that each rank holds at once.

        Examples
        --------
        >>> Schedule.from_orders(["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]).peak_in_flight()
        (2, 1)
        """
        opened, closed = np.cumsum(self.opens()), np.cumsum(self.closes())
        held = opened - closed + self.closes()  # while the op runs; each rank starts from none
        return tuple(int(most) for most in np.maximum.reduceat(held, self.offsets[:-1]))

    def grid(self, width: int | None = None) -> str:
        """Return the order as text: one row a rank, one column a slot, `.` for an idle slot.

        Parameters
        ----------
        width
            Cut the rows after about so many characters, with a mark; by default they are whole.
        """
        return text_grid(self, width)

    def __str__(self) -> str:
        size = f"{count_text(self.ranks, 'rank')}, {count_text(self.microbatches, 'micro-batch')}"
        return f"{self.name}: {size}\n{self.grid(width=150)}"

    def __repr__(self) -> str:
        return (
            f"Schedule({self.name!r}, ranks={self.ranks}, stages={self.stages}, "
            f"microbatches={self.microbatches}, ops={len(self)})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return (
            self.placement == other.placement
            and self.microbatches == other.microbatches
            and all(
                np.array_equal(getattr(self, name), getattr(other, name))
                for name in ("offsets", "stage", "kind", "microbatch")
            )
        )

    __hash__ = None  # type: ignore[assignment]  # equal by its arrays, which have no hash


def _parse_order(order: str | Iterable[str | Op]) -> Iterator[Op]:
    for item in order.split() if isinstance(order, str) else order:
        yield parse_op(item) if isinstance(item, str) else item


def _implied_placement(orders: Sequence[Sequence[Op]], name: str) -> Placement:
    owner: dict[int, int] = {}
    for rank, order in enumerate(orders):
        for op in order:
            owner.setdefault(op.stage, rank)
    missing = set(range(max(owner) + 1)) - set(owner)
    if missing:
        raise ScheduleError(f"{name}: no rank runs stage {min(missing)}")
    rank_of = tuple(owner[stage] for stage in range(len(owner)))
    if rank_of == tuple(range(len(rank_of))):
        return linear_placement(len(rank_of))
    return Placement("custom", rank_of)
