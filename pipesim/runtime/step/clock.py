"""How long something takes on a device: on the CPU by its clock, on a GPU by events of its own."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class Clock(NamedTuple):
    """What is noted before and after, and the time between two notes [ms]."""

    mark: Callable[[], Any]
    between: Callable[[Any, Any], float]


def clock_of(device: torch.device) -> Clock:
    """Return the clock of a device: its own events on a GPU, which runs behind the program."""
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
