"""Time layers as they run in training: all forwards in order, then all backwards in reverse.

Each layer is cut off from its neighbours. There are two passes a repeat, one with the whole
backward and one with the gradients of the inputs alone, so that both find the caches as training
leaves them.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from pipesim.progress import Progress
from pipesim.runtime.activations import copied, needing_grad


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


def timed_passes(
    layers: Sequence[nn.Module],
    sample: Any,
    device: torch.device,
    repeats: int,
    warmup: int,
    progress: Progress | None,
) -> tuple[list[list[float]], list[list[float]], list[list[float]]]:
    """Return the times of all passes by layer [ms]: forward, whole backward, input gradient.

    There are two passes a repeat, so that there are two forwards to each of the backwards.
    """
    clock = clock_of(device)
    forward: list[list[float]] = []
    backward: tuple[list[list[float]], list[list[float]]] = ([], [])
    total = 2 * (warmup + repeats)
    for number in range(total):
        times = _pass(layers, sample, clock, whole=number % 2 == 0)
        if number >= 2 * warmup:
            forward.append(times[0])
            backward[number % 2].append(times[1])
        if progress is not None:
            progress(number + 1, total)
    return forward, *backward


def _pass(
    layers: Sequence[nn.Module], sample: Any, clock: Clock, *, whole: bool
) -> tuple[list[float], list[float]]:
    """Return the times of one forward and one backward through all layers, by layer [ms].

    The backward is whole, or for the gradients of the inputs alone.
    """
    graphs, forward, backward = [], [], []
    activation = sample
    for layer in layers:
        received = tree_map_only(
            torch.Tensor, lambda x: x.detach().requires_grad_(x.requires_grad), activation
        )
        copy = copied(received)
        start = clock.mark()
        activation = layer(copy)
        forward.append((start, clock.mark()))
        graphs.append((layer, received, activation))
    del activation, copy, received
    while graphs:
        layer, received, activation = graphs.pop()
        outputs, wanted = needing_grad(activation), needing_grad(received)
        if whole:
            wanted += needing_grad(list(layer.parameters()))
        gradients = [torch.ones_like(output) for output in outputs]
        start = clock.mark()
        if outputs and wanted:
            torch.autograd.grad(
                outputs, wanted, gradients, retain_graph=not whole, allow_unused=True
            )
            backward.append((start, clock.mark()))
        else:
            backward.append((start, start))
    backward.reverse()
    return [clock.between(*pair) for pair in forward], [clock.between(*pair) for pair in backward]
