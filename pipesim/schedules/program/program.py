"""Programs: a list of instructions for each rank, with sends and receives among its ops.

    rank 0 | 0F0  0SEND_F0  0F1  0SEND_F1  0RECV_B0  0B0  ...
    rank 1 | 1RECV_F0  1F0  1B0  1SEND_B0  1RECV_F1  1F1  ...

An instruction computes an op (or an overlapped pair), or it is one or several sends and
receives of messages. A program has the order on each rank, and no times. If its
transfers are no instructions (the protocol eager), messages leave by themselves.

The message with the output of an op has the number of that op.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from pipesim.base.errors import ScheduleError
from pipesim.base.ops import Op
from pipesim.base.types import BoolArray, FloatArray, Int8Array, Int32Array, IntArray
from pipesim.schedules.order.dataflow import consumers, has_pairs, second_of_pair
from pipesim.schedules.order.schedule import Schedule
from pipesim.schedules.program.text import COMPUTE, RECV, aligned_rows, parse_lists, transfer_kind


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Program:
    """A list of instructions for each rank; made by `lower` or by `Program.from_lists`.

    Parameters
    ----------
    name
        Shown in messages.
    protocol
        The protocol, which orders the transfers.
    source, target
        The ranks that send and receive each message, arrays (messages,); -1 for no message.
    consumer
        The op that takes the output of each op, on whatever rank, array (messages,); -1 for none.
    offsets
        Array (ranks + 1,): the instructions of rank r go from offsets[r] up to offsets[r + 1].
    item_offsets
        Array (instructions + 1,): the items of an instruction, likewise.
    action, number
        Action and number of every item, arrays (items,): COMPUTE and an op, or SEND or RECV and a
        message.
    blocking
        Whether a rank waits until the transfers of the instruction are done, array
        (instructions,).
    schedule
        The order of the ops; None for a program written by hand.
    labels, sizes
        For a program written by hand, the text of every item, and the bytes of every message,
        array (messages,).
    """

    name: str
    protocol: str
    source: Int32Array
    target: Int32Array
    consumer: Int32Array
    offsets: IntArray
    item_offsets: IntArray
    action: Int8Array
    number: Int32Array
    blocking: BoolArray
    schedule: Schedule | None = None
    labels: tuple[str, ...] = ()
    sizes: FloatArray | None = None

    @classmethod
    def from_lists(
        cls,
        lists: Sequence[str | Iterable[str]],
        *,
        sizes: Mapping[str, int] | None = None,
        name: str = "program",
    ) -> Self:
        """Return the program of the lists of instructions written out for each rank.

        `send x to 1` and `recv x from 0` are the two ends of the message x, which block; several
        joined by `&` start together; any other text is a compute.

        Parameters
        ----------
        lists
            The instructions of every rank in order, or one text with commas between.
        sizes
            Bytes of the messages by name, for an eager limit, up to which they do not block; by
            default 0.
        name
            Shown in messages.

        Raises
        ------
        ScheduleError
            If a message lacks an end, has one twice, or its ends disagree.

        Examples
        --------
        >>> print(Program.from_lists(["send x to 1, recv y from 1", "recv x from 0, send y to 0"]))
        rank 0 | send x to 1   | recv y from 1
        rank 1 | recv x from 0 | send y to 0
        """
        return cls(name=name, protocol="as written", **parse_lists(lists, sizes or {}, name))

    @property
    def order(self) -> Schedule:
        """The schedule that the program was made from.

        Raises
        ------
        ScheduleError
            If it was written by hand.
        """
        if self.schedule is None:
            raise ScheduleError(f"{self.name} was written by hand and has no ops")
        return self.schedule

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.offsets) - 1

    @property
    def rank(self) -> Int32Array:
        """The rank of every instruction, array (instructions,)."""
        return np.repeat(np.arange(self.ranks, dtype=np.int32), np.diff(self.offsets))

    @property
    def instruction_of_item(self) -> IntArray:
        """The number of every item's instruction, array (items,)."""
        return np.repeat(np.arange(len(self)), np.diff(self.item_offsets))

    @property
    def instruction_of_op(self) -> IntArray:
        """The number of the instruction that computes each op, array (ops,)."""
        computing = np.flatnonzero(self.action == COMPUTE)
        found = np.empty(len(computing), dtype=np.int64)
        found[self.number[computing]] = self.instruction_of_item[computing]
        return found

    @property
    def computes(self) -> BoolArray:
        """Whether each instruction computes, array (instructions,)."""
        first: BoolArray = self.action[self.item_offsets[:-1]] == COMPUTE
        return first

    @property
    def title(self) -> str:
        """Name of the program, with its protocol if that orders transfers: `1f1b under paired`."""
        own = self.listed and self.schedule is not None
        return f"{self.name} under {self.protocol}" if own else self.name

    @property
    def listed(self) -> bool:
        """Whether transfers are instructions; else messages leave by themselves."""
        return bool((self.action != COMPUTE).any())

    def __len__(self) -> int:
        return len(self.item_offsets) - 1

    def items(self, instruction: int) -> range:
        """Return the numbers of the items of an instruction."""
        return range(self.item_offsets[instruction], self.item_offsets[instruction + 1])

    def op_of_item(self, item: int) -> Op:
        """Return an item as an op; a transfer has the kind SEND_F, SEND_B, RECV_F or RECV_B.

        Its stage is the one that computes, sends or receives.
        """
        action, number = int(self.action[item]), int(self.number[item])
        op = self.order.op(number)
        if action == COMPUTE:
            return op
        place = self.consumer[number] if action == RECV else number
        return Op(
            int(self.order.stage[place]), transfer_kind(action, op.kind), op.microbatch, op.slice
        )

    def item_text(self, item: int) -> str:
        """Return an item as text: `0F0`, `0SEND_F0`, `1RECV_F0`."""
        return self.labels[item] if self.schedule is None else str(self.op_of_item(item))

    def text(self, instruction: int) -> str:
        """Return an instruction as text, its items joined by `&`."""
        return "&".join(map(self.item_text, self.items(instruction)))

    def swapped(self, instruction: int) -> Self:
        """Return the program with an instruction swapped with the one after it."""
        order = np.arange(len(self))
        order[[instruction, instruction + 1]] = instruction + 1, instruction
        items = np.concatenate([np.array(self.items(i), dtype=np.int64) for i in order.tolist()])
        return replace(
            self,
            item_offsets=np.cumsum([0, *np.diff(self.item_offsets)[order]], dtype=np.int64),
            action=self.action[items],
            number=self.number[items],
            blocking=self.blocking[order],
            labels=tuple(self.labels[i] for i in items.tolist()) if self.labels else (),
        )

    def __str__(self) -> str:
        rows = [
            [self.text(i) for i in range(self.offsets[rank], self.offsets[rank + 1])]
            for rank in range(self.ranks)
        ]
        return aligned_rows(rows)


def bare_program(schedule: Schedule) -> Program:
    """Return the program of a schedule's ops alone, whose messages leave by themselves.

    Examples
    --------
    >>> print(bare_program(Schedule.from_orders(["0F0 0B0", "1F0 1B0"])))
    rank 0 | 0F0 | 0B0
    rank 1 | 1F0 | 1B0
    """
    ops = len(schedule)
    if has_pairs(schedule):
        item_offsets = np.append(np.flatnonzero(~second_of_pair(schedule)), ops)
        offsets = np.searchsorted(item_offsets, schedule.offsets).astype(np.int64)
    else:
        item_offsets, offsets = np.arange(ops + 1), schedule.offsets
    consumer, rank = consumers(schedule), schedule.rank
    crosses = (consumer >= 0) & (rank[consumer] != rank)
    return Program(
        name=schedule.name,
        protocol="eager",
        source=np.where(crosses, rank, np.int32(-1)),
        target=np.where(crosses, rank[consumer], np.int32(-1)),
        consumer=consumer,
        offsets=offsets,
        item_offsets=item_offsets,
        action=np.zeros(ops, dtype=np.int8),
        number=np.arange(ops, dtype=np.int32),
        blocking=np.zeros(len(item_offsets) - 1, dtype=bool),
        schedule=schedule,
    )
