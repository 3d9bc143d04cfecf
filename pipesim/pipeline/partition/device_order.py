"""Splits for devices that may be put into any order: which device runs which stage?

Equal devices are one kind. From the last stage to the first, over how many devices of each kind
are taken already,

    least[taken, i] = min over kinds k in taken, and j > i, of
                      max(load of items i..j-1 on a device of kind k, least[taken - k, j])

is exact. It has as many rows as there are numbers of devices of each kind: 2^8 for 8 devices that
all differ, 33 x 33 for 32 of one kind and 32 of another.
"""

from collections.abc import Callable, Sequence
from itertools import combinations, product
from math import prod
from typing import TypeAlias

import numpy as np

from pipesim.base.types import FloatArray
from pipesim.pipeline.components import Device
from pipesim.pipeline.layers import LayerProfile
from pipesim.pipeline.partition.fair import nothing_fits, solve
from pipesim.pipeline.partition.loads import SplitProblem, make_problem, stage_loads
from pipesim.pipeline.partition.min_max import SLACK, Loads, part_ends
from pipesim.pipeline.placement import Placement
from pipesim.pipeline.training import Training

MOST_ROWS = 2048  # of the exact table; all cases of 8 devices, and of many devices of few kinds

# Stage and kind -> the sums and tops of what a device of that kind comes to as that stage.
LoadsOf: TypeAlias = Callable[[int, int], tuple[FloatArray, FloatArray]]
Found: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]


def device_order(
    profile: LayerProfile,
    placement: Placement,
    devices: Sequence[Device],
    *,
    by: str = "time",
    in_flight: Sequence[float] | None = None,
    training: Training | None = None,
) -> Found:
    """Return the number of the device to put on each rank, and the layers of every stage.

    The largest stage is then as small as any order and split allow. Exact where every rank has
    one stage, up to 8 devices, or more where many are equal. Beyond that devices change places
    two by two as long as the largest stage gets smaller, from the given order, the fastest first
    and the slowest first; each order is split by `fair_split`.

    Of equally good orders it is the one that keeps the devices as they are given the longest.
    Links between ranks play no part.

    Parameters
    ----------
    profile
        The layers.
    placement
        Stage -> rank.
    devices
        As many as ranks.
    by, in_flight, training
        As for `partition`.

    Raises
    ------
    ValueError
        As `partition`.

    Examples
    --------
    >>> from pipesim.pipeline.placement import linear_placement
    >>> profile = LayerProfile(forward_ms=(1, 1, 1, 1, 4))
    >>> device_order(profile, linear_placement(3), [Device(2.0), Device(1.0), Device(1.0)])
    ((1, 2, 0), (2, 2, 1))
    """
    problem = make_problem(profile, placement, devices, by, in_flight, training)
    by_device = stage_loads(profile, by, devices)
    kinds = list(dict.fromkeys(devices))
    members = [[n for n, device in enumerate(devices) if device == kind] for kind in kinds]
    one_each = placement.stages == placement.ranks
    if one_each and prod(len(group) + 1 for group in members) <= MOST_ROWS:
        return _exact(problem, by_device, members)
    return _swapped(problem, by_device, devices)


def _exact(problem: SplitProblem, by_device: Loads, members: list[list[int]]) -> Found:
    first_of = [group[0] for group in members]
    held, memory = problem.held, problem.memory[first_of]

    def load(stage: int, kind: int) -> tuple[FloatArray, FloatArray]:
        return by_device.before[first_of[kind]], by_device.top[first_of[kind]]

    def filled(stage: int, kind: int) -> tuple[FloatArray, FloatArray]:
        room = max(memory[kind], 1)
        return held.before[stage] / room, held.top[stage] / room

    numbers = tuple(map(len, members))
    found = _least(numbers, load, held, memory)
    nearest = found or _least(numbers, filled, held, np.full(len(members), np.inf))
    assert nearest is not None
    sequence, counts = nearest
    left = [iter(group) for group in members]
    order = [0] * len(sequence)
    for stage, kind in enumerate(sequence):
        order[problem.rank_of[stage]] = next(left[kind])
    ordered = _in_order(problem, by_device, order)
    if found is None:
        what = f"with the devices in the order {order} the least that any split needs is"
        raise ValueError(nothing_fits(ordered, counts, what))
    return tuple(order), solve(ordered)


def _least(
    numbers: tuple[int, ...], loads: LoadsOf, held: Loads, memory: FloatArray
) -> Found | None:
    """Return the kind of every stage's device and its layers; None if nothing fits.

    `numbers` has how many devices there are of each kind, `memory` what each can hold.
    """
    from pipesim.pipeline.partition.kernels import fill_row

    stages, items = held.top.shape
    rows: dict[tuple[int, ...], FloatArray] = {}
    for taken in product(*(range(number + 1) for number in numbers)):
        row = np.full(items + 1, np.inf)
        if not any(taken):
            row[items] = 0.0
        stage = stages - sum(taken)
        for kind in np.flatnonzero(taken).tolist():
            own = held.before[stage], held.top[stage], memory[kind]
            fill_row(*loads(stage, kind), *own, rows[_without(taken, kind)], row)
        rows[taken] = row
    largest = rows[numbers][0]
    if largest == np.inf:
        return None
    left, first = numbers, 0
    kinds, counts = [], []
    for stage in range(stages):
        for kind in np.flatnonzero(left).tolist():
            own = held.before[stage], held.top[stage], memory[kind]
            ends, _ = part_ends(*loads(stage, kind), *own, largest, first)
            fits = ends[rows[_without(left, kind)][ends] <= largest * (1 + SLACK)]
            if fits.size:
                break
        kinds.append(kind)
        counts.append(int(fits.max()) - first)
        left, first = _without(left, kind), int(fits.max())
    return tuple(kinds), tuple(counts)


def _without(taken: tuple[int, ...], kind: int) -> tuple[int, ...]:
    return (*taken[:kind], taken[kind] - 1, *taken[kind + 1 :])


def _in_order(problem: SplitProblem, by_device: Loads, order: Sequence[int]) -> SplitProblem:
    """Return the problem with the devices in another order."""
    rows = np.array(order)[problem.rank_of]
    loads = Loads(by_device.before[rows], by_device.top[rows])
    return problem._replace(loads=loads, memory=problem.memory[list(order)])


def _swapped(problem: SplitProblem, by_device: Loads, devices: Sequence[Device]) -> Found:
    """Return the best order found by letting two devices at a time change places."""

    def split(order: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        ordered = _in_order(problem, by_device, order)
        try:
            counts = solve(ordered)
        except ValueError:
            return np.inf, ()
        return float(ordered.loads.of_splits(np.array([counts])).max()), counts

    given = tuple(range(len(devices)))
    by_speed = sorted(given, key=lambda number: -devices[number].speed)
    found = []
    for order in (given, tuple(by_speed), tuple(reversed(by_speed))):
        least, counts = split(order)
        better = True
        while better:
            better = False
            for a, b in combinations(given, 2):
                if devices[order[a]] == devices[order[b]]:
                    continue
                changed = list(order)
                changed[a], changed[b] = order[b], order[a]
                load, other = split(tuple(changed))
                if load < least * (1 - SLACK):
                    least, counts, order, better = load, other, tuple(changed), True
        found.append((least, order, counts))
    least, order, counts = min(found, key=lambda entry: entry[0])
    if least == np.inf:
        solve(problem)  # says what the given order needs at the least
    return order, counts
