"""Channels of messages between ops: mailboxes, wires, exchanges and bounded queues."""

from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, Protocol

import numpy as np
import simpy

from pipesim.engine.reference.run_state import RunState


class Inbox(Protocol):
    """A receiver of the inputs of ops."""

    def put(self, op: int) -> None:
        """Receive an input of an op."""


class Mailbox:
    """The mailbox of a rank: its inputs, by the number of the op that takes them."""

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self.arrived: dict[int, float] = {}
        self.awaited = -1
        self.bell = env.event()

    def put(self, op: int) -> None:
        """Receive the input of an op, and wake the rank if it waits for that input."""
        self.arrived[op] = self.env.now
        if op == self.awaited:
            self.bell.succeed()

    def wait_for(self, op: int) -> simpy.Event:
        """Return the event of the arrival of an op's input."""
        self.awaited = op
        self.bell = self.env.event()
        return self.bell


class Wire:
    """A directed link: messages leave one after the other, then travel for the latency."""

    def __init__(self, env: simpy.Environment, mailbox: Inbox, run: RunState) -> None:
        self.env, self.mailbox, self.run = env, mailbox, run
        self.busy = False
        self.backlog: deque[int] = deque()

    def send(self, op: int) -> None:
        """Put the output of an op on the wire, behind the messages already there."""
        if self.busy:
            self.backlog.append(op)
        else:
            self._depart(op)

    def _advance(self) -> None:
        while self.backlog and not self.busy:
            self._depart(self.backlog.popleft())

    def _depart(self, op: int) -> None:
        self.run.departure[op] = self.env.now
        if self.run.wire[op]:
            self.busy = True
            simpy.Timeout(self.env, self.run.wire[op], op).callbacks.append(self._off_the_wire)
        else:
            self._travel(op)

    def _off_the_wire(self, event: simpy.Event) -> None:
        op: Any = event.value
        self.busy = False
        self._travel(op)
        self._advance()

    def _travel(self, op: int) -> None:
        simpy.Timeout(self.env, self.run.latency[op], op).callbacks.append(self._arrive)

    def _arrive(self, event: simpy.Event) -> None:
        op: Any = event.value
        self.run.arrival[op] = self.env.now
        self.mailbox.put(self.run.consumer[op])


class MeetingWire(Wire):
    """A wire whose messages wait for their receivers, except those up to the eager limit."""

    def __init__(self, env: simpy.Environment, mailbox: Inbox, run: RunState) -> None:
        super().__init__(env, mailbox, run)
        self.expected: set[int] = set()

    def send(self, op: int) -> None:
        """Put a message into the line for the wire."""
        self.backlog.append(op)
        self._advance()

    def expect(self, op: int) -> None:
        """Note that the receiver of a message is ready."""
        self.expected.add(op)
        self._advance()

    def _advance(self) -> None:
        while self.backlog and not self.busy and self._may_depart(self.backlog[0]):
            self._depart(self.backlog.popleft())

    def _may_depart(self, op: int) -> bool:
        return op in self.expected or not self.run.meets[op]

    def _arrive(self, event: simpy.Event) -> None:
        super()._arrive(event)
        op: Any = event.value
        bell = self.run.bells.pop(op, None)
        if bell is not None:
            bell.succeed()


class Exchange:
    """An instruction of one rank: sends and receives that start together.

    Parameters
    ----------
    instruction
        Number of the instruction in the program.
    sends, receives
        Messages by the number of the op that makes them, each with its wire.
    awaited
        The messages that have to arrive before the rank goes on.
    """

    def __init__(
        self,
        env: simpy.Environment,
        instruction: int,
        sends: Sequence[tuple[MeetingWire, int]],
        receives: Sequence[tuple[MeetingWire, int]],
        awaited: Sequence[int],
        run: RunState,
    ) -> None:
        self.env, self.instruction, self.run = env, instruction, run
        self.sends, self.receives, self.awaited = sends, receives, awaited

    def perform(self) -> Generator[simpy.Event, None, None]:
        """Start all transfers, and wait for those that block."""
        self.run.enter[self.instruction] = self.env.now
        for wire, op in self.sends:
            wire.send(op)
        for wire, op in self.receives:
            wire.expect(op)
        for op in self.awaited:
            if np.isnan(self.run.arrival[op]):
                yield self.run.bells.setdefault(op, self.env.event())
        self.run.leave[self.instruction] = self.env.now


class Handover:
    """The way to a stage on the same rank: an output arrives at once."""

    def __init__(self, mailbox: Inbox, run: RunState) -> None:
        self.mailbox, self.run = mailbox, run

    def send(self, op: int) -> None:
        """Pass the output of an op on."""
        self.mailbox.put(self.run.consumer[op])


class Queue:
    """A bounded queue between two stages in one direction, for messages in transit or waiting."""

    def __init__(self, env: simpy.Environment, capacity: int) -> None:
        self.env = env
        self.free = capacity
        self.bell: simpy.Event | None = None

    def room(self) -> simpy.Event:
        """Return the event of room for one more message."""
        self.bell = self.env.event()
        return self.bell

    def take(self) -> None:
        """Reserve room for one message."""
        self.free -= 1

    def give_back(self) -> None:
        """Free the room of one message, and wake the rank that waits for it."""
        self.free += 1
        if self.bell is not None:
            self.bell.succeed()
            self.bell = None
