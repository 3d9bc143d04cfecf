"""Deadlocks of a program: the ranks that wait for each other, and a swap that would help.

The instruction at which a stuck rank stands waits for one that another rank has not come to;
that rank stands at an instruction before it, and so on, until the ranks close a cycle:

    rank 0, instruction 2, 0SEND_F0 to rank 1: waits until rank 1 comes to 1RECV_F0, ...
    rank 1, instruction 1, 1SEND_B0 to rank 0: waits until rank 0 comes to 0RECV_B0, ...
"""

from dataclasses import dataclass

import numpy as np

from pipesim.base.checks import check_amount, check_count
from pipesim.base.errors import DeadlockError, Standing
from pipesim.base.ops import Kind
from pipesim.base.text import count_text
from pipesim.base.types import BoolArray
from pipesim.engine.graph.event_graph import EventGraph, event_graph
from pipesim.engine.graph.marks import START, TRANSFER
from pipesim.schedules.order.dataflow import producers
from pipesim.schedules.program.program import Program
from pipesim.schedules.program.text import COMPUTE, SEND

SHOWN = 16  # ranks in the message
BEFORE, BEHIND = 4, 3  # instructions shown around the stuck ones
MOST_TRIED = 1_000_000  # instructions in all the programs that are tried for a swap


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank that never goes on: the instruction it stands at, and the one it waits for.

    `instruction` and `awaited` are numbers in the program; `messages` are those held up between
    the two, by the numbers of the ops that make them; `for_room` is true if a queue is full.
    """

    rank: int
    instruction: int
    awaited: int
    messages: tuple[int, ...]
    for_room: bool


def check_deadlock(
    program: Program, *, queue_capacity: int | None = None, eager_limit_bytes: int | None = None
) -> None:
    """Check, without running it, that a program does not hang.

    Parameters
    ----------
    program
        The instructions of every rank.
    queue_capacity
        Messages that fit between two stages on different ranks, in each direction; None: any.
    eager_limit_bytes
        For a program written by hand: messages up to this size never wait for their receivers.

    Raises
    ------
    DeadlockError
        If it hangs; the error says which rank waits for which.
    ValueError
        If a limit is no count or size, or the program does not say how large its messages are.

    Examples
    --------
    >>> check_deadlock(Program.from_lists(["send x to 1, recv y from 1",
    ...                                    "recv x from 0, send y to 0"]))
    """
    meets = None
    if queue_capacity is not None:
        check_count("queue_capacity", queue_capacity)
    if eager_limit_bytes is not None:
        check_amount("eager_limit_bytes", eager_limit_bytes)
        if program.sizes is None:
            raise ValueError(f"{program.name} has no sizes for eager_limit_bytes to go by")
        meets = program.sizes > eager_limit_bytes
    graph = event_graph(program, queue_capacity=queue_capacity, meets=meets)
    if graph.stuck().any():
        raise deadlock_error(graph)


def deadlock_error(graph: EventGraph) -> DeadlockError:
    """Return the error that names the ranks of a program that wait for each other.

    It holds the cycle, draws where every rank stands, and says which swap of two neighbouring
    instructions breaks it, if one does.
    """
    program = graph.program
    stuck = graph.stuck()
    stands = _standing(graph, stuck)
    cycle = _cycle(graph, stuck, stands)
    ranks = ", ".join(str(wait.rank) for wait in cycle[:SHOWN])
    ranks += ", ..." if len(cycle) > SHOWN else ""
    who = (
        f"ranks {ranks} wait for each other" if len(cycle) > 1 else f"rank {ranks} waits for itself"
    )
    lines = [f"{program.title} cannot go on: {who}"]
    lines += [f"  {_wait_text(program, wait)}" for wait in cycle[:SHOWN]]
    if len(cycle) > SHOWN:
        lines.append(f"  and {len(cycle) - SHOWN} more ranks, back to rank {cycle[0].rank}")
    behind = len(stands) - len(cycle)
    if behind:
        lines.append(f"  {count_text(behind, 'more rank')} cannot go on for that reason")
    lines += [*_picture(program, stands, cycle), _way_out(graph, cycle)]
    standing = [
        Standing(
            wait.rank,
            wait.instruction - int(program.offsets[wait.rank]),
            program.text(wait.instruction),
            program.text(wait.awaited),
        )
        for wait in cycle
    ]
    return DeadlockError("\n".join(lines), standing)


def _standing(graph: EventGraph, stuck: BoolArray) -> dict[int, int]:
    """Return the instruction at which each stuck rank stands."""
    rank = graph.program.rank
    where = np.flatnonzero(stuck[graph.leave])
    _, first = np.unique(rank[where], return_index=True)
    return {int(rank[i]): i for i in where[first].tolist()}


def _cycle(graph: EventGraph, stuck: BoolArray, stands: dict[int, int]) -> list[Wait]:
    """Return the cycle of waits: each rank waits for the next one, the last for the first.

    The cycle is turned so that its lowest rank comes first.
    """
    rank_of = graph.program.rank
    waits: dict[int, Wait] = {}
    rank = min(stands)
    while rank not in waits:
        waits[rank] = _wait(graph, stuck, rank, stands[rank])
        rank = int(rank_of[waits[rank].awaited])
    path = list(waits.values())
    ring = path[next(place for place, wait in enumerate(path) if wait.rank == rank) :]
    lowest = min(range(len(ring)), key=lambda place: ring[place].rank)
    return ring[lowest:] + ring[:lowest]


def _wait(graph: EventGraph, stuck: BoolArray, rank: int, instruction: int) -> Wait:
    """Return the wait of a rank at an instruction."""
    node = int(graph.enter[instruction])
    if not stuck[node]:
        node = int(graph.leave[instruction])
    messages = []
    while True:
        edges = graph.awaited[graph.offsets[node] : graph.offsets[node + 1]]
        node, time = divmod(int(edges[stuck[edges // 3]][0]), 3)
        if graph.cost_kind[node] != TRANSFER:
            break
        messages.append(int(graph.cost_index[node]))
    awaited = int(graph.instruction[node])
    return Wait(rank, instruction, awaited, tuple(messages), time == START)


def _reason(program: Program, wait: Wait) -> str:
    """Return the reason of a wait as text."""
    instruction, awaited, schedule = wait.instruction, wait.awaited, program.schedule
    rank = int(program.rank[awaited])
    own = rank == wait.rank
    number = awaited - int(program.offsets[rank]) + 1
    noun = _noun(program)
    place = f"its own {noun} {number}" if own else f"{noun} {number} of rank {rank}"
    text = f"{program.text(awaited)}, {place}"
    if schedule is None or not program.computes[instruction]:
        return text
    if wait.for_room:
        taken = program.number[program.items(awaited)]
        fed = taken[program.source[producers(schedule)[taken]] == program.rank[instruction]]
        to = int(schedule.stage[fed[0]])
        start = int(schedule.stage[producers(schedule)[fed[0]]])
        return f"room in the queue from stage {start} to stage {to}, until {text}, starts"
    op = wait.messages[0] if wait.messages else int(program.number[program.items(awaited)[0]])
    carried = "activation" if schedule.kind[op] == Kind.F else "gradient"
    if program.computes[awaited] and op in program.number[program.items(awaited)]:
        return f"the {carried} from {text}"
    return f"the {carried} from {schedule.op(op)}, held up until {text}"


def _noun(program: Program) -> str:
    return "instruction" if program.listed else "op"


def _wait_text(program: Program, wait: Wait) -> str:
    first, last = program.offsets[[wait.rank, wait.rank + 1]].tolist()
    where = f"{_noun(program)} {wait.instruction - first + 1} of its {last - first}"
    text = program.text(wait.instruction)
    return f"rank {wait.rank} at {text}, {where}: waits for {_reason(program, wait)}"


def _picture(program: Program, stands: dict[int, int], cycle: list[Wait]) -> list[str]:
    """Return the lines of the instructions around the stuck ones, which are marked; one a rank."""
    shown = sorted({wait.rank for wait in cycle[:SHOWN]} | set(sorted(stands)[:SHOWN]))
    margin = len(str(max(shown)))
    grid = []
    for rank in shown:
        first, last = program.offsets[[rank, rank + 1]].tolist()
        here = stands[rank]
        row = [
            program.text(i) for i in range(max(first, here - BEFORE), min(last, here + BEHIND + 1))
        ]
        missing = BEFORE - (here - max(first, here - BEFORE))
        row = [""] * missing + row
        row[BEFORE] = f">{row[BEFORE]}<"
        more = " ..." if here + BEHIND + 1 < last else ""
        grid.append((rank, "..." if here - BEFORE > first else "", row, more))
    columns = max(len(row) for _, _, row, _ in grid)
    widths = [
        max(len(row[column]) for _, _, row, _ in grid if column < len(row))
        for column in range(columns)
    ]
    return [
        f"  rank {rank:>{margin}} | {cut:3} "
        + "  ".join(
            text.ljust(width) for text, width in zip(row, widths, strict=False) if width
        ).rstrip()
        + more
        for rank, cut, row, more in grid
    ]


def _way_out(graph: EventGraph, cycle: list[Wait]) -> str:
    """Return the text of a swap of two neighbouring instructions that lets the program go on.

    Only a swap in the cycle can break it: one of an instruction at which a rank stands or that it
    waits for, or of the send of a message that is held up. The text also says if none was found.
    """
    program = graph.program
    rank_of = program.rank
    concerned = {i for wait in cycle for i in (wait.instruction, wait.awaited)}
    held_up = [message for wait in cycle for message in wait.messages]
    sent = program.action == (SEND if program.listed else COMPUTE)
    concerned.update(program.instruction_of_item[sent & np.isin(program.number, held_up)].tolist())
    firsts = sorted({i - back for i in concerned for back in (0, 1)})
    swaps = [i for i in firsts if 0 <= i < len(program) - 1 and rank_of[i] == rank_of[i + 1]]
    tried = swaps[: max(1, MOST_TRIED // len(program))]
    for swap in tried:
        if not event_graph(program.swapped(swap), **graph.rules).stuck().any():
            rank = int(rank_of[swap])
            number = swap - int(program.offsets[rank]) + 1
            return (
                f"  it would go on with {program.text(swap)} and {program.text(swap + 1)} "
                f"swapped ({_noun(program)}s {number} and {number + 1} of rank {rank})"
            )
    if len(tried) < len(swaps):
        tries = count_text(len(tried), "swap")
        return f"  {tries} of neighbours tried, of {len(swaps)}: it still hangs"
    return f"  no swap of two neighbouring {_noun(program)}s lets it go on"
