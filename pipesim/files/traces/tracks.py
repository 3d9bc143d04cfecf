"""Tracks of a trace viewer: a thread for every slice, such that no two of a thread overlap."""

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from pipesim.base.types import Int32Array, IntArray
from pipesim.engine.trace import RESOURCES

LINK = RESOURCES.index("link")


class Track(NamedTuple):
    """A thread of a process in a trace viewer.

    The threads of every process are numbered from the number of processes plus 1: to viewers
    thread 0 is special, and a thread with the number of its process comes before all others.
    """

    process: int
    thread: int
    name: str


def tracks_of(
    columns: Mapping[str, Any], target: Int32Array, processes: int
) -> tuple[IntArray, tuple[Track, ...]]:
    """Return the number of every slice's track, array (slices,), and the tracks.

    The order in a process: compute, its links by the rank they lead to, exchange, network.

    Parameters
    ----------
    columns
        `process`, `resource` (codes), `start` and `end` of all slices by start and end, arrays
        (slices,).
    target
        The rank that a slice of a link leads to, array (slices,); -1 for the others.
    processes
        Number of processes.
    """
    targets = int(target.max()) + 2
    places = (columns["process"] * len(RESOURCES) + columns["resource"]) * targets + target + 1
    found, group = np.unique(places, return_inverse=True)
    lane = _lanes_of_groups(group, columns["start"], columns["end"])
    lanes = np.zeros(len(found), dtype=np.int64)
    np.maximum.at(lanes, group, lane + 1)
    first = np.cumsum(lanes) - lanes
    tracks: list[Track] = []
    for place, count in zip(found.tolist(), lanes.tolist(), strict=True):
        process, resource = divmod(place // targets, len(RESOURCES))
        name = RESOURCES[resource] if resource != LINK else f"to rank {place % targets - 1}"
        for number in range(1, count + 1):
            own = bool(tracks) and tracks[-1].process == process
            thread = (tracks[-1].thread if own else processes) + 1
            tracks.append(Track(process, thread, f"{name} ({number})" if number > 1 else name))
    return first[group] + lane, tuple(tracks)


def _lanes_of_groups(group: IntArray, start: IntArray, end: IntArray) -> IntArray:
    """Return the lane of every span within its group, array (spans,); sorted by start, end."""
    order = np.argsort(group, kind="stable")
    own, start, end = group[order], start[order], end[order]
    overlaps = (own[1:] == own[:-1]) & (start[1:] < end[:-1])
    lane = np.zeros(len(group), dtype=np.int64)
    for number in np.unique(own[1:][overlaps]).tolist():
        part = slice(*np.searchsorted(own, (number, number + 1)))
        lane[order[part]] = lanes(start[part].tolist(), end[part].tolist())
    return lane


def lanes(starts: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Return the lane of every span, the lowest that is free when it starts; in n log n time.

    No two spans of a lane overlap, but one may start where another ends. There are as few lanes
    as there can be.

    Parameters
    ----------
    starts, ends
        Start and end of every span, sorted by start and then end.

    Examples
    --------
    >>> lanes([0, 1, 4, 5], [4, 5, 6, 6])
    [0, 1, 0, 1]
    """
    free: list[int] = []
    taken: list[tuple[int, int]] = []  # a heap of (end, lane)
    chosen = []
    for start, end in zip(starts, ends, strict=True):
        while taken and taken[0][0] <= start:
            heappush(free, heappop(taken)[1])
        lane = heappop(free) if free else len(taken)
        heappush(taken, (end, lane))
        chosen.append(lane)
    return chosen
