"""Instructions as texts: `0F0`, `0SEND_F0`, `1RECV_F0`; written by hand, `send x to 1`."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pipesim.base.checks import check_amount
from pipesim.base.errors import ScheduleError
from pipesim.base.ops import Kind

COMPUTE, SEND, RECV = 0, 1, 2  # actions of an instruction's items

_TRANSFER = re.compile(r"(?:(send) (\S+) to|(recv) (\S+) from) (\d+)")
_MEANT = re.compile(r"(send|recv|receive)\b", re.IGNORECASE)


def transfer_kind(action: int, made_by: Kind) -> Kind:
    """Return the kind of a transfer, from its action and the kind of op whose output it moves.

    Examples
    --------
    >>> transfer_kind(RECV, Kind.I).name
    'RECV_B'
    """
    forward = made_by == Kind.F
    if action == SEND:
        return Kind.SEND_F if forward else Kind.SEND_B
    return Kind.RECV_F if forward else Kind.RECV_B


def aligned_rows(rows: Sequence[Sequence[str]]) -> str:
    """Return the texts of every rank as aligned lines, one a rank.

    Examples
    --------
    >>> print(aligned_rows([["0F0", "0SEND_F0"], ["1RECV_F0", "1F0"]]))
    rank 0 | 0F0      | 0SEND_F0
    rank 1 | 1RECV_F0 | 1F0
    """
    margin = len(str(len(rows) - 1))
    columns = max(map(len, rows), default=0)
    widths = [max(len(row[c]) for row in rows if c < len(row)) for c in range(columns)]
    lines = []
    for rank, row in enumerate(rows):
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=False)]
        lines.append(" | ".join([f"rank {rank:>{margin}}", *cells]).rstrip())
    return "\n".join(lines)


def parse_lists(
    lists: Sequence[str | Iterable[str]], sizes: Mapping[str, int], name: str
) -> dict[str, Any]:
    """Return the columns of a program that is written out by hand; see `Program.from_lists`.

    Raises
    ------
    ScheduleError
        If a message lacks an end, has one twice, or its ends disagree.
    """
    if isinstance(lists, str):
        raise ScheduleError(f"{name}: {lists!r} is one list; give a list of them, one a rank")
    rows = [_texts(row) for row in lists]
    instructions = [text.split(" & ") for row in rows for text in row]
    rank = [rank for rank, row in enumerate(rows) for _ in row]
    numbers: dict[str, int] = {}
    ends: dict[tuple[str, int], tuple[int, int]] = {}  # (message, action) -> (rank, peer)
    action, number, computed = [], [], 0
    for place, parts in zip(rank, instructions, strict=True):
        for part in parts:
            match = _TRANSFER.fullmatch(part)
            if match is None:
                if _MEANT.match(part):
                    raise ScheduleError(
                        f"{name}: rank {place}: {part!r} is no transfer; write 'send x to 1' or "
                        "'recv x from 0'"
                    )
                if len(parts) > 1:
                    raise ScheduleError(f"{name}: {part!r} among {' & '.join(parts)!r}")
                action.append(COMPUTE)
                number.append(computed)
                computed += 1
                continue
            message, end = match[2] or match[4], SEND if match[1] else RECV
            if (message, end) in ends:
                raise ScheduleError(f"{name}: rank {place}: {part!r} is there twice")
            ends[message, end] = place, int(match[5])
            action.append(end)
            number.append(numbers.setdefault(message, len(numbers)))
    for message in numbers:
        sent, received = ends.get((message, SEND)), ends.get((message, RECV))
        if sent is None or received is None or sent != received[::-1]:
            raise ScheduleError(
                f"{name}: the ends of message {message!r} do not meet: "
                f"{_end_text('sent', 'to', sent)}, {_end_text('received', 'from', received)}"
            )
    for message, size in sizes.items():
        if message not in numbers:
            raise ScheduleError(f"{name}: sizes: there is no message {message!r}")
        check_amount(f"{name}: sizes[{message!r}]", size)
    return {
        "source": np.array([ends[message, SEND][0] for message in numbers], dtype=np.int32),
        "target": np.array([ends[message, SEND][1] for message in numbers], dtype=np.int32),
        "consumer": np.full(len(numbers), -1, dtype=np.int32),
        "offsets": np.cumsum([0, *map(len, rows)], dtype=np.int64),
        "item_offsets": np.cumsum([0, *map(len, instructions)], dtype=np.int64),
        "action": np.array(action, dtype=np.int8),
        "number": np.array(number, dtype=np.int32),
        "blocking": np.ones(len(instructions), dtype=bool),
        "labels": tuple(part for parts in instructions for part in parts),
        "sizes": np.array([sizes.get(message, 0) for message in numbers], dtype=np.float64),
    }


def _texts(row: str | Iterable[str]) -> list[str]:
    texts = row.split(",") if isinstance(row, str) else row
    spaced = (" ".join(text.replace("&", " & ").split()) for text in texts)
    return [text for text in spaced if text]


def _end_text(verb: str, preposition: str, end: tuple[int, int] | None) -> str:
    return f"never {verb}" if end is None else f"{verb} by {end[0]} {preposition} {end[1]}"
