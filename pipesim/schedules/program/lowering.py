"""Lowering a schedule to instructions: where each rank sends and receives, under a protocol.

Between two ops of rank r, a send (of the op before) and a receive (for the op after):

    rendezvous        send, receive                  each blocks until both ends are there
    odd_even          even: send, receive            the same, odd ranks the other way round
                      odd:  receive, send
    paired            send & receive                 both start together, and block
    posted            sends where they arise; a      none blocks: an op waits for its message
                      receive where its send arises
    posted_blocking   the same places                receives block

`eager` has no instructions: messages leave by themselves. A schedule from a file that lists
sends and receives keeps them where they are under `rendezvous` and the two `posted`.

A receive that is posted takes effect when its rank comes to it, as a kernel on a stream waits for
those before it; the message leaves when both ends are there.

`odd_even` and `paired` would hang if a receive waits, through whatever ranks, for something that
follows from the send beside it, as when GPipe turns from forwards to backwards: there the send
goes first. Beyond these two they order nothing, so that under both, orders with several
chunks a rank hang. `paired` is what Megatron-LM does for 1F1B; where it interleaves, it exchanges
once for a forward and a backward, which is none of these.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np

from pipesim.base.checks import hint
from pipesim.base.ops import COMPUTE_KINDS, Kind
from pipesim.schedules.order.dataflow import producers
from pipesim.schedules.order.listed_actions import Actions
from pipesim.schedules.order.schedule import Schedule
from pipesim.schedules.program.program import Program, bare_program
from pipesim.schedules.program.text import COMPUTE, RECV, SEND

AS_LISTED = ("rendezvous", "posted", "posted_blocking")  # these take the transfers of a file
PROTOCOLS = ("eager", "rendezvous", "odd_even", "paired", "posted", "posted_blocking")

BLOCKING = {
    "rendezvous": (SEND, RECV),
    "odd_even": (SEND, RECV),
    "paired": (SEND, RECV),
    "posted": (),
    "posted_blocking": (RECV,),
}

Item = tuple[int, int]  # an action and its number
Instruction = tuple[Item, ...]


def lower(schedule: Schedule, protocol: str = "rendezvous") -> Program:
    """Return the program of a schedule under a protocol: the instructions of every rank.

    Parameters
    ----------
    schedule
        The order of the ops.
    protocol
        "eager", "rendezvous", "odd_even", "paired", "posted" or "posted_blocking".

    Raises
    ------
    ValueError
        If the protocol is unknown.

    Examples
    --------
    >>> print(lower(Schedule.from_orders(["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]), "paired"))
    rank 0 | 0F0      | 0SEND_F0 | 0F1 | 0SEND_F1&0RECV_B0 | 0B0 | 0RECV_B1 | 0B1
    rank 1 | 1RECV_F0 | 1F0      | 1B0 | 1SEND_B0&1RECV_F1 | 1F1 | 1B1      | 1SEND_B1
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol {protocol!r} is unknown; {hint(protocol, PROTOCOLS)}")
    if protocol == "eager":
        return bare_program(schedule)
    if schedule.listed is not None and protocol in AS_LISTED:
        return _as_listed(schedule, schedule.listed, protocol)
    steps = _steps(schedule)
    rows = _posted(steps) if protocol.startswith("posted") else _between(steps, protocol)
    return program_of(steps.bare, rows, protocol)


def program_of(bare: Program, rows: list[list[Instruction]], protocol: str) -> Program:
    """Return the program of a schedule with given instructions.

    Parameters
    ----------
    bare
        The program of the schedule's ops alone.
    rows
        The instructions of every rank.
    protocol
        Name of the protocol; under "posted" no transfer blocks, under "posted_blocking" receives
        do.
    """
    instructions = [instruction for row in rows for instruction in row]
    items = [item for instruction in instructions for item in instruction]
    action = np.array([action for action, _ in items], dtype=np.int8)
    item_offsets = np.cumsum([0, *map(len, instructions)], dtype=np.int64)
    first = action[item_offsets[:-1]]
    return replace(
        bare,
        protocol=protocol,
        offsets=np.cumsum([0, *map(len, rows)], dtype=np.int64),
        item_offsets=item_offsets,
        action=action,
        number=np.array([number for _, number in items], dtype=np.int32),
        blocking=np.isin(first, BLOCKING[protocol]),
    )


def _as_listed(schedule: Schedule, listed: Actions, protocol: str) -> Program:
    """Return the program with the instructions that a file lists, one a cell."""
    numbers = schedule.numbers()
    forward, backward = numbers[Kind.F], np.maximum(numbers[Kind.B], numbers[Kind.I])
    unit = listed.microbatch * schedule.slices + listed.slice
    made = np.empty(len(listed), dtype=np.int32)  # the op itself, or the op that makes the message
    for kinds, table, step in (
        (COMPUTE_KINDS, None, 0),
        ((Kind.SEND_F,), forward, 0),
        ((Kind.RECV_F,), forward, -1),
        ((Kind.SEND_B,), backward, 0),
        ((Kind.RECV_B,), backward, 1),
    ):
        of = np.isin(listed.kind, kinds)
        stage, units = listed.stage[of] + step, unit[of]
        made[of] = numbers[listed.kind[of], stage, units] if table is None else table[stage, units]
    receives = np.isin(listed.kind, (Kind.RECV_F, Kind.RECV_B))
    action = np.where(listed.computes, COMPUTE, np.where(receives, RECV, SEND)).astype(np.int8)
    first = np.ones(len(listed), dtype=bool)
    first[1:] = (np.diff(listed.rank) != 0) | (np.diff(listed.cell) != 0)
    if protocol != "rendezvous":  # transfers in one cell are instructions of their own
        first |= ~listed.computes
    starts = np.flatnonzero(first)
    return replace(
        bare_program(schedule),
        protocol=protocol,
        offsets=np.searchsorted(listed.rank[starts], np.arange(schedule.ranks + 1)),
        item_offsets=np.append(starts, len(listed)),
        action=action,
        number=made,
        blocking=np.isin(action[starts], BLOCKING[protocol]),
    )


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps of every rank, each an op or an overlapped pair, with the messages they need."""

    bare: Program
    computes: list[Instruction]
    sends: list[list[Item]]  # after the step
    receives: list[list[Item]]  # before it
    step_of: list[int]  # the step that computes each op
    needs: list[list[int]]  # ops on other stages whose output the step takes

    def of_rank(self, rank: int) -> range:
        return range(self.bare.offsets[rank], self.bare.offsets[rank + 1])


def _steps(schedule: Schedule) -> _Steps:
    bare = bare_program(schedule)
    source, feeder = bare.source.tolist(), producers(schedule).tolist()
    computes, sends, receives, needs = [], [], [], []
    for step in range(len(bare)):
        ops = bare.items(step)
        computes.append(tuple((COMPUTE, op) for op in ops))
        sends.append([(SEND, op) for op in ops if source[op] >= 0])
        fed = [feeder[op] for op in ops if feeder[op] >= 0]
        receives.append([(RECV, op) for op in fed if source[op] >= 0])
        needs.append(fed)
    step_of = bare.instruction_of_item.tolist()
    return _Steps(bare, computes, sends, receives, step_of, needs)


def _between(steps: _Steps, protocol: str) -> list[list[Instruction]]:
    """Return the instructions of every rank under a protocol that orders transfers between ops."""
    follows = set() if protocol == "rendezvous" else _following(steps)
    rows = []
    for rank in range(steps.bare.ranks):
        row: list[Instruction] = []
        sends: list[Item] = []
        for step in steps.of_rank(rank):
            receives = steps.receives[step]
            late = [r for r in receives if any((r[1], s[1]) in follows for s in sends)]
            early = [r for r in receives if r not in late]
            if protocol == "paired":
                row += [tuple(group) for group in (sends + early, late) if group]
            elif protocol == "odd_even" and rank % 2:
                row += [(item,) for item in (*early, *sends, *late)]
            else:
                row += [(item,) for item in (*sends, *receives)]
            row.append(steps.computes[step])
            sends = steps.sends[step]
        row += [tuple(sends)] if sends and protocol == "paired" else [(item,) for item in sends]
        rows.append(row)
    return rows


def _posted(steps: _Steps) -> list[list[Instruction]]:
    """Return the instructions of every rank with each receive posted where its send arises."""
    rows: list[list[Instruction]] = [[] for _ in range(steps.bare.ranks)]
    rank_of, target = steps.bare.rank.tolist(), steps.bare.target.tolist()
    for step in _walk(steps):
        row = rows[rank_of[step]]
        row.append(steps.computes[step])
        for send in steps.sends[step]:
            row.append((send,))
            rows[target[send[1]]].append(((RECV, send[1]),))
    return rows


def _walk(steps: _Steps) -> Iterator[int]:
    """Yield all steps, each after those that it needs: in rounds, the next one of every rank.

    Steps that can never run come last.
    """
    left = [iter(steps.of_rank(rank)) for rank in range(steps.bare.ranks)]
    done = [False] * len(steps.computes)
    waiting: dict[int, list[tuple[int, int]]] = {}  # step -> [(rank that waits, its step)]
    turns = [(0, rank, next(left[rank])) for rank in range(steps.bare.ranks)]
    while turns:
        turn, rank, step = heappop(turns)
        needed = [steps.step_of[op] for op in steps.needs[step]]
        missing = next((other for other in needed if not done[other]), None)
        if missing is not None and missing != step:
            waiting.setdefault(missing, []).append((rank, step))
            continue
        yield step
        done[step] = True
        for other, waiter in waiting.pop(step, ()):
            heappush(turns, (turn if other > rank else turn + 1, other, waiter))
        following = next(left[rank], None)
        if following is not None:
            heappush(turns, (turn + 1, rank, following))
    yield from (step for step, reached in enumerate(done) if not reached)


def _following(steps: _Steps) -> set[tuple[int, int]]:
    """Return the pairs (received, sent) between two ops of which the first follows from the second.

    A message follows from another if the op that makes it comes, on its rank or through
    messages between ranks, after the op that takes the other.
    """
    bare = steps.bare
    rank_of, consumer = bare.rank.tolist(), bare.consumer.tolist()
    order = list(_walk(steps))
    place = dict(zip(order, range(len(order)), strict=True))
    found = set()
    asked: dict[int, list[tuple[int, int, int]]] = {}  # step -> pairs to look up after it
    for rank in range(bare.ranks):
        before: list[Item] = []
        for step in steps.of_rank(rank):
            for _, received in steps.receives[step]:
                for _, sent in before:
                    maker, taker = steps.step_of[received], steps.step_of[consumer[sent]]
                    if rank_of[maker] == rank_of[taker]:
                        if maker >= taker:
                            found.add((received, sent))
                    elif place[maker] > place[taker]:
                        asked.setdefault(maker, []).append((received, sent, taker))
            before = steps.sends[step]
    if not asked:
        return found
    # step -> the last step of each rank that it comes after; kept as long as it is needed.
    latest: dict[int, np.ndarray] = {}
    uses = [0] * len(order)
    for fed in steps.needs:
        for op in fed:
            uses[steps.step_of[op]] += 1
    newest: list[np.ndarray] = [np.full(bare.ranks, -1)] * bare.ranks
    for step in order:
        rank = rank_of[step]
        now = newest[rank].copy()
        for op in steps.needs[step]:
            source = steps.step_of[op]
            if source in latest:
                np.maximum(now, latest[source], out=now)
                uses[source] -= 1
                if not uses[source]:
                    del latest[source]
        now[rank] = step
        newest[rank] = now
        if uses[step]:
            latest[step] = now
        for received, sent, taker in asked.get(step, ()):
            if now[rank_of[taker]] >= taker:
                found.add((received, sent))
    return found
