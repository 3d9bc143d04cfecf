"""Clocks of devices: the CPU's clock, and events of its own on a GPU."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class Clock(NamedTuple):
    """The clock of a device: `mark` notes a moment, `between` gives the time of two marks [ms]."""

    mark: Callable[[], Any]
    between: Callable[[Any, Any], float]


def clock_of(device: torch.device) -> Clock:
    """Return the clock of a device; a GPU, which runs behind the program, has its own events."""
    if device.type != "cuda":
        return Clock(time.perf_counter, lambda start, end: 1000.0 * (end - start))

    def mark() -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(device))
        return event

    def between(start: Any, end: Any) -> float:
        end.synchronize()
        return float(start.elapsed_time(end))

    return Clock(mark, between)
