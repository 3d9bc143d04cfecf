"""A schedule: for every rank an order of ops, and no times.

    rank 0 | F0 F1 .  B0 B1        the grid of two micro-batches on two stages, every op one
    rank 1 | .  F0 B0 F1 B1 .      slot long: a picture of the order, not of a run

The ops of all ranks lie in flat arrays, see `op_columns.py`. Times come from an engine only.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from pipesim.base.errors import ScheduleError
from pipesim.base.ops import Kind, Op
from pipesim.base.text import count_text
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.placement import Placement
from pipesim.schedules.order.dataflow import closes, opens, peak_by_rank, peak_by_stage
from pipesim.schedules.order.grid import text_grid
from pipesim.schedules.order.listed_actions import Actions
from pipesim.schedules.order.op_columns import OP_COLUMNS, OpColumns
from pipesim.schedules.order.op_text import implied_placement, order_columns, parse_order
from pipesim.schedules.order.validity import check_order

Column: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]
# The ops of a rank: stages, kinds, micro-batches; then slices and pairs if there are any.
RankOps: TypeAlias = tuple[Column, ...]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Schedule(OpColumns):
    """An order of ops for each rank, with the placement and the number of micro-batches.

    Made by `build_schedule`, by `Schedule.from_orders`, or by a function of one's own. It is
    checked when it is made: every stage runs F of every micro-batch (and slice) once and on its
    own rank; its backward is B, or I and W, each once, after F and I before W; or there is no
    backward at all. Between F and B or I there may be R, which rebuilds what F has not kept.
    Whether the order can be run across ranks shows only in a run.

    Parameters
    ----------
    name
        Shown on figures and in reports.
    placement
        (stage, direction) -> rank.
    microbatches
        Number of micro-batches m.
    stage, kind, microbatch
        The ops, arrays (ops,), rank after rank and in order within a rank.
    offsets
        Array (ranks + 1,): the ops of rank r are those from offsets[r] up to offsets[r + 1].
    slice
        Slice of each op's micro-batch along the sequence, array (ops,); by default all 0.
    group
        Two neighbours with the same number from 0 on run as one overlapped pair of a forward
        and a backward, array (ops,); by default all -1.
    fractions
        Share of a stage's cost that each slice takes; their number is the number of slices k.
    directions
        Direction of each micro-batch, array (m,) of 0 and 1; by default all 0.
    weight_versions
        Number of versions of its parameters that each stage keeps; by default one.
    separate_recompute
        Whether what forwards have not kept is rebuilt by R, and B and I take no time for it: then
        a micro-batch without R has kept all. True wherever there is any R.
    family
        Name of its family in `pipesim schedules`, whose formulas then hold; "" for an order of
        one's own.
    remake
        Pipeline -> Schedule for its costs, if the order depends on the costs; else None.
    listed
        The ops and the sends and receives among them, if a file lists them all.

    Raises
    ------
    ScheduleError
        If an op is missing, doubled, out of range, on the wrong rank or out of order.
    """

    name: str
    weight_versions: tuple[int, ...] = ()
    separate_recompute: bool = False
    family: str = ""
    remake: "Callable[[Pipeline], Schedule] | None" = None
    listed: Actions | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.weight_versions:
            object.__setattr__(self, "weight_versions", (1,) * self.stages)
        if not self.separate_recompute:
            object.__setattr__(self, "separate_recompute", bool((self.kind == Kind.R).any()))
        check_order(self.name, self)
        versions = self.weight_versions
        if len(versions) != self.stages or min(versions) < 1:
            raise ScheduleError(f"{self.name}: weight_versions must be one count a stage")

    @classmethod
    def from_rank_ops(
        cls,
        name: str,
        placement: Placement,
        microbatches: int,
        rank_ops: Iterable[RankOps],
        **more: Any,
    ) -> Self:
        """Return the schedule of the ops of each rank, given as columns.

        Parameters
        ----------
        name, placement, microbatches
            As for the class.
        rank_ops
            Stages, kinds and micro-batches of every rank, and if there are any its slices and the
            numbers of its pairs, which count anew on each rank.
        more
            Further fields of the class: fractions, directions, weight_versions, ...

        Raises
        ------
        ScheduleError
            If the ops do not make a schedule (see the class).
        """
        columns = list(zip(*rank_ops, strict=True))
        arrays: dict[str, Any] = {
            column: np.concatenate([np.asarray(part, dtype=dtype) for part in parts])
            for (column, dtype), parts in zip(OP_COLUMNS.items(), columns, strict=False)
        }
        offsets = np.cumsum([0, *(len(part) for part in columns[0])], dtype=np.int64)
        if "group" in arrays:  # number the pairs of all ranks one after the other
            seconds = np.zeros(len(arrays["group"]), dtype=np.int32)
            seconds[1:] = (arrays["group"][1:] >= 0) & (arrays["group"][1:] == arrays["group"][:-1])
            seconds[offsets[1:-1]] = 0
            paired = arrays["group"] >= 0
            arrays["group"] = np.where(paired, np.cumsum(paired & (seconds == 0)) - 1, -1)
        return cls(
            name=name,
            placement=placement,
            microbatches=microbatches,
            offsets=offsets,
            **arrays,
            **more,
        )

    @classmethod
    def from_orders(
        cls,
        orders: Sequence[str | Iterable[str | Op]],
        *,
        placement: Placement | None = None,
        microbatches: int | None = None,
        directions: Sequence[int] | None = None,
        fractions: tuple[float, ...] = (),
        name: str = "custom",
    ) -> Self:
        """Return the schedule of the orders written out for each rank.

        Parameters
        ----------
        orders
            The ops of every rank in order: ops, their texts, or one text with spaces between;
            `2F1&0B0` is an overlapped pair, `2F1.3` slice 3 of a micro-batch.
        placement
            Stage -> rank; by default each stage belongs to the rank whose order names it first.
        microbatches
            Number of micro-batches m; by default the largest number of one plus 1.
        directions
            Direction of each micro-batch, for a bidirectional placement; by default all 0.
        fractions
            The share of a stage's cost that each slice takes; by default equal shares.
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
        parsed = [list(parse_order(order)) for order in orders]
        ops = [op for order in parsed for op, _ in order]
        if not ops:
            raise ScheduleError(f"{name}: there is no op in any rank's order")
        if placement is None:
            placement = implied_placement(parsed, name)
        if placement.ranks != len(parsed):
            raise ScheduleError(
                f"{name}: {len(parsed)} orders for a placement on {placement.ranks} ranks"
            )
        slices = max(op.slice for op in ops) + 1
        return cls.from_rank_ops(
            name,
            placement,
            max(op.microbatch for op in ops) + 1 if microbatches is None else microbatches,
            map(order_columns, parsed),
            fractions=fractions or (1.0 / slices,) * slices,
            directions=None if directions is None else np.asarray(directions, dtype=np.int8),
        )

    def made_for(self, pipe: Pipeline) -> "Schedule":
        """Return the schedule for other costs: another order only if it depends on the costs."""
        return self if self.remake is None else self.remake(pipe)

    def relabelled(
        self,
        *,
        name: str | None = None,
        family: str | None = None,
        remake: "Callable[[Pipeline], Schedule] | None" = None,
    ) -> Self:
        """Return the same order under another name or of another family.

        Without a `remake` the order stays as it is for any costs.
        """
        other = copy(self)  # the ops have been checked
        object.__setattr__(other, "name", name or self.name)
        object.__setattr__(other, "family", self.family if family is None else family)
        object.__setattr__(other, "remake", remake)
        return other

    def peak_in_flight(self) -> tuple[int, ...]:
        """Return the peak of (stage, micro-batch) pairs, or slices of them, in flight on each rank.

        Examples
        --------
        >>> Schedule.from_orders(["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]).peak_in_flight()
        (2, 1)
        """
        return peak_by_rank(self, opens(self).astype(np.int32), closes(self).astype(np.int32))

    def peak_in_flight_by_stage(self) -> tuple[int, ...]:
        """Return the peak of micro-batches, or slices of them, in flight on each stage.

        If a rank has several stages, their peaks need not come at the same time: their sum is at
        least the `peak_in_flight` of the rank.

        Examples
        --------
        >>> orders = ["0F0 2F0 2B0 0F1 0B0 2F1 2B1 0B1", "1F0 1B0 1F1 1B1"]
        >>> schedule = Schedule.from_orders(orders)
        >>> schedule.peak_in_flight_by_stage(), schedule.peak_in_flight()
        ((2, 1, 1), (2, 1))
        """
        return peak_by_stage(self)

    def grid(self, width: int | None = None) -> str:
        """Return the order as text: one row a rank, one column a slot, `.` for an idle slot.

        Parameters
        ----------
        width
            Characters after which rows are cut, with a mark; by default they are whole.
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
            and self.fractions == other.fractions
            and self.weight_versions == other.weight_versions
            and self.separate_recompute == other.separate_recompute
            and self.listed == other.listed
            and all(
                np.array_equal(getattr(self, name), getattr(other, name))
                for name in (*OP_COLUMNS, "offsets", "directions")
            )
        )

    __hash__ = None  # type: ignore[assignment]  # equal by its arrays, which have no hash
