"""Layers -> stages: contiguous splits with the smallest possible largest stage.

By any of `WEIGHTS`, on equal or unequal devices, in a given order or in any, within what each rank
can hold.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipesim.base.checks import check_amount, check_count
from pipesim.pipeline.layers import LayerProfile
from pipesim.pipeline.partition.device_order import device_order
from pipesim.pipeline.partition.fair import fair_split
from pipesim.pipeline.partition.loads import WEIGHTS, check_enough, layer_weights
from pipesim.pipeline.partition.min_max import Loads, least_split
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.training import Training

__all__ = [
    "WEIGHTS",
    "device_order",
    "fair_split",
    "layer_weights",
    "min_max_split",
    "partition",
]

DEVICE_OPTIONS = ("ranks", "placement", "speed", "overhead_ms", "memory_bytes")


def min_max_split(weights: Sequence[float], parts: int) -> tuple[int, ...]:
    """Return how many items each part gets so that the heaviest part is as light as it can be.

    Parts are contiguous and none is empty. Of all best splits, it is the most even one, with the
    least sum of squares, and of those the one whose earlier parts are the largest: with few
    micro-batches a slow stage costs less the earlier it sits.
    Exact, by dynamic programming over the parts from the last.

    Parameters
    ----------
    weights
        One number of at least 0 an item.
    parts
        Number of parts, at most the number of items.

    Raises
    ------
    ValueError
        If there are fewer items than parts, or a weight is negative, NaN or infinite.

    Examples
    --------
    >>> min_max_split([1, 1, 1, 1, 4], parts=3)
    (2, 2, 1)
    """
    parts = check_count("parts", parts)
    check_enough(len(weights), parts)
    for item, weight in enumerate(weights):
        check_amount(f"weights[{item}]", weight)
    table = np.broadcast_to(np.asarray(weights, dtype=np.float64), (parts, len(weights)))
    split = least_split(Loads.of_items(table, np.zeros(1)))
    assert split is not None  # nothing limits the parts
    return split


def partition(
    profile: LayerProfile,
    stages: int,
    *,
    by: str = "time",
    in_flight: Sequence[float] | None = None,
    training: Training | None = None,
    free_order: bool = False,
    **options: Any,
) -> Pipeline:
    """Return the pipeline whose largest stage is as small as a contiguous split allows.

    The smallest slowest stage is the best split as the number of micro-batches grows; with few,
    `refine_split` finds a better one by simulation.

    With one stage a rank this is exact. Several stages share what their rank holds: the split is
    exact where it fits, or else found by moving single layers between stages until none helps.

    Parameters
    ----------
    profile
        The layers.
    stages
        Number of stages.
    by
        What to balance: "time" (forward plus backward, on the stage's device), "layers" (their
        number), "stash_bytes" or "param_bytes".
    in_flight
        The most micro-batches that each stage holds, such as `Schedule.peak_in_flight()` where
        each rank has one stage and `Schedule.peak_in_flight_by_stage()` elsewhere; of sliced
        micro-batches divided by the number of slices. Needed with `memory_bytes`, for what no
        rank may exceed. Several stages count with the sum of their peaks, which may be a little
        more than the rank ever holds.
    training
        What is held for the parameters besides themselves; by default nothing.
    free_order
        Whether the devices may be put into any order, by `device_order`; the pipeline has them
        in the order found.
    options
        Handed to `Pipeline.from_costs`: ranks, placement, speed, overhead_ms, memory_bytes,
        latency_ms, bandwidth_gb_s, title, ...

    Raises
    ------
    ValueError
        If there are fewer layers than stages, the profile lacks what is to be balanced, or
        nothing fits into the memory: the message has the split that comes nearest.

    Examples
    --------
    >>> profile = LayerProfile(forward_ms=(1, 1, 1, 1, 4), backward_ms=(2, 2, 2, 2, 8))
    >>> print(partition(profile, 3))
    pipeline: 3 stages on 3 ranks (linear)
    stage  rank  name  forward_ms  backward_ms
        0     0  0..1           2            4
        1     1  2..3           2            4
        2     2  4              4            8

    One device is four times as fast as the others, and all hold at most four layers:

    >>> profile = LayerProfile(forward_ms=(1,) * 8, stash_bytes=(10,) * 8)
    >>> pipe = partition(profile, 3, speed=[4, 1, 1], memory_bytes=40, in_flight=[1, 1, 1])
    >>> [stage.name for stage in pipe.stages]
    ['0..3', '4..5', '6..7']
    """
    places = stage_places(stages, options)
    placement, devices = places.placement, places.devices
    how: dict[str, Any] = {"by": by, "in_flight": in_flight, "training": training}
    if free_order:
        order, counts = device_order(profile, placement, devices, **how)
        devices = tuple(devices[number] for number in order)
        options |= {name: [getattr(d, name) for d in devices] for name in ("speed", "overhead_ms")}
        if "memory_bytes" in options:
            options["memory_bytes"] = [device.memory_bytes for device in devices]
    else:
        counts = fair_split(profile, placement, devices, **how)
    return profile.split(counts, **options)


def stage_places(stages: int, options: Mapping[str, Any]) -> Pipeline:
    """Return a pipeline without costs, for the devices and the placement of its stages.

    `options` are those of `Pipeline.from_costs`; what is not about devices plays no part.

    Raises
    ------
    ValueError
        If they do not fit the number of stages.
    """
    chosen = {name: options[name] for name in DEVICE_OPTIONS if name in options}
    return Pipeline.from_costs(0.0, stages=stages, **chosen)
