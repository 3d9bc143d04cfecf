"""Time layers as they run in training: all forwards in order, then all backwards in reverse.

Each layer is cut off from its neighbours. There are two passes a repeat, one with the whole
backward and one with the gradients of the inputs alone, so that both find the caches as training
leaves them. The gradients of parameters are added to what is there, as with each micro-batch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from pipesim.base.types import Progress
from pipesim.runtime.model.activations import copied, cut_off, needing_grad
from pipesim.runtime.step.clock import Clock, clock_of


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
    trained = {p for layer in layers for p in needing_grad(list(layer.parameters()))}
    sums = {parameter: torch.zeros_like(parameter) for parameter in trained}
    forward: list[list[float]] = []
    backward: tuple[list[list[float]], list[list[float]]] = ([], [])
    total = 2 * (warmup + repeats)
    for number in range(total):
        times = _pass(layers, sample, clock, sums if number % 2 == 0 else {})
        if number >= 2 * warmup:
            forward.append(times[0])
            backward[number % 2].append(times[1])
        if progress is not None:
            progress(number + 1, total)
    return forward, *backward


def _pass(
    layers: Sequence[nn.Module], sample: Any, clock: Clock, sums: dict[torch.Tensor, torch.Tensor]
) -> tuple[list[float], list[float]]:
    """Return the times of one forward and one backward through all layers, by layer [ms].

    The backward is whole, and its gradients are added to the `sums` of parameters; or, if there
    are no sums, it is for the gradients of the inputs alone.
    """
    graphs, forward, backward = [], [], []
    activation = sample
    for layer in layers:
        received = cut_off(activation)
        copy = copied(received)
        start = clock.mark()
        activation = layer(copy)
        forward.append((start, clock.mark()))
        graphs.append((layer, received, activation))
    del activation, copy, received
    while graphs:
        layer, received, activation = graphs.pop()
        outputs, wanted = needing_grad(activation), needing_grad(received)
        own = [p for p in needing_grad(list(layer.parameters())) if p in sums]
        gradients = [torch.ones_like(output) for output in outputs]
        start = clock.mark()
        if outputs and [*wanted, *own]:
            found = torch.autograd.grad(
                outputs, [*wanted, *own], gradients, retain_graph=not sums, allow_unused=True
            )
            for parameter, gradient in zip(own, found[len(wanted) :], strict=True):
                if gradient is not None:
                    sums[parameter] += gradient
            backward.append((start, clock.mark()))
        else:
            backward.append((start, start))
    backward.reverse()
    return [clock.between(*pair) for pair in forward], [clock.between(*pair) for pair in backward]
