"""The links between ranks: bytes/bandwidth on the wire, one message after the other, then latency.

Bandwidth is in GB/s, 10^9 bytes a second; latency in milliseconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipesim.base.checks import LEAST_RATE, check_amount, is_number
from pipesim.pipeline.broadcast import per_rank_pair
from pipesim.pipeline.costs import wire_ms
from pipesim.pipeline.placement import Placement


@dataclass(frozen=True, slots=True)
class Link:
    """A directed wire between two ranks: bytes/bandwidth on the wire, then the latency.

    Parameters
    ----------
    latency_ms
        Time from leaving the wire to being there [ms].
    bandwidth_gb_s
        10^9 bytes a second; None: a message takes no time on the wire.

    Raises
    ------
    ValueError
        If the latency is no number from 0 to 10^15, or the bandwidth none from 10^-9 on.
    """

    latency_ms: float = 0.0
    bandwidth_gb_s: float | None = None

    def __post_init__(self) -> None:
        check_amount("latency_ms", self.latency_ms)
        bandwidth = self.bandwidth_gb_s
        if bandwidth is not None and not (is_number(bandwidth) and bandwidth >= LEAST_RATE):
            raise ValueError(f"bandwidth_gb_s = {bandwidth!r} is not a number from 10^-9 on")

    def wire_ms(self, size_bytes: float) -> float:
        """Return how long a message of this size occupies the wire [ms]."""
        return wire_ms(size_bytes, self.bandwidth_gb_s)

    def message_ms(self, size_bytes: float) -> float:
        """Return the time from leaving to being there of a message of this size [ms]."""
        return self.wire_ms(size_bytes) + self.latency_ms


def links_between(
    placement: Placement, latency: Any, bandwidth: Any
) -> dict[tuple[int, int], Link]:
    """Return the link of each directed pair of ranks that has one, as `from_costs` takes them."""
    if not any(isinstance(value, Mapping) or np.ndim(value) for value in (latency, bandwidth)):
        # One link for all pairs, made and checked once.
        same = Link(0.0 if latency is None else latency, bandwidth)
        return {} if same == Link() else dict.fromkeys(_by_pair("", 0.0, placement), same)
    latencies = _by_pair("latency_ms", latency, placement)
    bandwidths = _by_pair("bandwidth_gb_s", bandwidth, placement)
    links = {
        pair: Link(latencies.get(pair, 0.0), bandwidths.get(pair))
        for pair in sorted(latencies.keys() | bandwidths.keys())
    }
    return {pair: link for pair, link in links.items() if link != Link()}


def _by_pair(name: str, value: Any, placement: Placement) -> dict[tuple[int, int], Any]:
    """Return the value of each pair of ranks; one number holds for every pair there is.

    A schedule may bring another placement than the pipeline's, whose messages go other ways.
    """
    if value is None or isinstance(value, Mapping) or np.ndim(value) > 0:
        return per_rank_pair(name, value, placement.rank_of)
    ranks = range(placement.ranks)
    return {(near, far): value for near in ranks for far in ranks if near != far}
