"""What a split balances and what it must keep to, as a table with a row for every stage.

A stage's bytes on its rank are

    parameters, and with a `Training` their gradients and optimizer state
    + micro-batches in flight x stash of its layers
    + what the largest of its layers rebuilds
    + micro-batches in flight x what layers at the ends of a stage keep at most
"""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import numpy as np

from pipesim.base.checks import check_amount, hint
from pipesim.base.types import FloatArray, IntArray
from pipesim.pipeline.components import Device
from pipesim.pipeline.costs import on_device
from pipesim.pipeline.layers import LayerProfile
from pipesim.pipeline.partition.min_max import Loads
from pipesim.pipeline.placement import Placement
from pipesim.pipeline.training import Training

WEIGHTS = ("time", "layers", "stash_bytes", "param_bytes")


class SplitProblem(NamedTuple):
    """What a split is to balance, and what it must keep to.

    Parameters
    ----------
    loads
        What is to be small, of every stage.
    held
        Bytes of every stage on its rank.
    memory
        Bytes that each rank can hold, array (ranks,); infinite without a limit.
    rank_of
        The rank of every stage, array (stages,).
    """

    loads: Loads
    held: Loads
    memory: FloatArray
    rank_of: IntArray

    def filled(self) -> Loads:
        """Return what part of its rank's memory each stage takes."""
        return self.held.scaled(1 / np.maximum(self.memory, 1)[self.rank_of])

    def bytes_of(self, counts: IntArray) -> FloatArray:
        """Return the bytes on every rank in each of some splits, array (splits, ranks)."""
        ranks = np.zeros((len(counts), len(self.memory)))
        for stage, held in enumerate(self.held.of_splits(counts).T):
            ranks[:, self.rank_of[stage]] += held
        return ranks

    def kept_by(self, counts: Sequence[int]) -> bool:
        """Say whether a split keeps every rank within its memory."""
        return bool((self.bytes_of(np.array([counts]))[0] <= self.memory).all())


def make_problem(
    profile: LayerProfile,
    placement: Placement,
    devices: Sequence[Device],
    by: str,
    in_flight: Sequence[float] | None,
    training: Training | None,
) -> SplitProblem:
    """Return the problem of `partition` as tables.

    Raises
    ------
    ValueError
        If there are fewer layers than stages, the profile lacks what is to be balanced, or it is
        not known how many micro-batches are held.
    """
    stages = placement.stages
    check_enough(len(profile), stages)
    memory = [np.inf if d.memory_bytes is None else float(d.memory_bytes) for d in devices]
    if in_flight is None:
        if min(memory) < np.inf:
            raise ValueError(
                "memory_bytes without in_flight: give how many micro-batches each stage holds, "
                "such as build_schedule('1f1b', 4, 8).peak_in_flight()"
            )
        in_flight = [0.0] * stages
    if len(in_flight) != stages:
        raise ValueError(f"in_flight has {len(in_flight)} values for {stages} stages")
    for stage, count in enumerate(in_flight):
        check_amount(f"in_flight[{stage}]", count)
    if placement.reverse is not None and (len(set(devices)) > 1 or min(memory) < np.inf):
        raise ValueError(
            f"the {placement.name} placement has every stage on two ranks: it is split for equal "
            "devices without limits only; refine_split simulates what it takes and holds"
        )
    rank_of = np.array(placement.rank_of)
    loads = stage_loads(profile, by, [devices[rank] for rank in placement.rank_of])
    return SplitProblem(loads, stage_bytes(profile, in_flight, training), np.array(memory), rank_of)


def stage_loads(profile: LayerProfile, by: str, devices: Sequence[Device]) -> Loads:
    """Return what is balanced, where each stage runs on the device given for it.

    By "time" a layer counts with its time on the device, and a stage with the device's overhead
    for its forward and for its backward, whole; by anything else devices make no difference.
    """
    weights = np.asarray(layer_weights(profile, by), dtype=np.float64)
    if by != "time":
        return Loads.of_items(np.tile(weights, (len(devices), 1)), np.zeros(1))
    speed = np.array([[device.speed] for device in devices], dtype=np.float64)
    ops = 1 if profile.backward_ms is None and profile.input_grad_ms is None else 2
    overhead = np.array([[ops * device.overhead_ms] for device in devices])
    return Loads.of_items(on_device(weights, speed), overhead)


def stage_bytes(
    profile: LayerProfile, in_flight: Sequence[float], training: Training | None
) -> Loads:
    """Return the bytes that each stage holds on its rank with its micro-batches in flight.

    Parts of a byte are rounded up for every layer. What a stage keeps for having a layer as its
    first or last is taken at its largest, whichever that is: never too little.
    """
    none = (0,) * len(profile)
    params, stash = profile.param_bytes or none, profile.stash_bytes or none
    state = params if training is None else [sum(training.state(size)) for size in params]
    table = [
        [kept + ceil(count * size) for kept, size in zip(state, stash, strict=True)]
        for count in in_flight
    ]
    rebuilt = np.asarray(profile.rebuilt_bytes or none, dtype=np.float64)
    ends = max(profile.first_stash_bytes or none) + max(profile.last_stash_bytes or none)
    once = rebuilt + np.array([[ceil(count * ends)] for count in in_flight])
    return Loads.of_items(np.array(table, dtype=np.float64), once)


def layer_weights(profile: LayerProfile, by: str) -> Sequence[float]:
    """Return what a split by "time", "layers", "stash_bytes" or "param_bytes" balances.

    Raises
    ------
    ValueError
        If `by` is none of these, or the profile lacks it.
    """
    if by == "time":
        return list(map(float, profile.total_ms()))
    if by == "layers":
        return [1.0] * len(profile)
    if by not in WEIGHTS:
        raise ValueError(f"by = {by!r} is unknown; {hint(by, WEIGHTS)}")
    weights: Sequence[float] | None = getattr(profile, by)
    if weights is None:
        raise ValueError(f"the profile gives no {by}")
    return weights


def check_enough(layers: int, stages: int) -> None:
    """Check that no stage stays empty.

    Raises
    ------
    ValueError
        If there are fewer layers than stages.
    """
    if layers < stages:
        raise ValueError(
            f"{layers} layers cannot fill {stages} stages; {layers} stages are the most"
        )
