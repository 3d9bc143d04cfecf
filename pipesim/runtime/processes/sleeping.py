"""Stages that sleep for their costs: a pipeline that runs in real time and needs no processor.

More processes than cores can then run truly side by side, and what a step takes beyond its costs
is what PyTorch and the transfers add.
"""

import time
from typing import Any

import torch
from torch import nn

from pipesim.pipeline.components import Stage


class SleepingStage(nn.Module):
    """A stage whose forward and backward sleep for given times, and pass on what they take.

    The weight gradient is apart: call `weight_grad` as the second part of a split backward, or
    right after a whole one.

    Parameters
    ----------
    forward_ms, input_grad_ms, weight_grad_ms
        Time of F, I and W [ms]; B takes both of the latter.

    Examples
    --------
    >>> stage = SleepingStage(forward_ms=1, input_grad_ms=1)
    >>> stage(torch.ones(2, 1)).sum().backward()
    """

    def __init__(
        self, forward_ms: float, input_grad_ms: float, weight_grad_ms: float = 0.0
    ) -> None:
        super().__init__()
        self.forward_ms, self.input_grad_ms = forward_ms, input_grad_ms
        self.weight_grad_ms = weight_grad_ms
        self.scale = nn.Parameter(torch.ones(()))  # so that the first stage has a backward, too

    def forward(self, activation: torch.Tensor) -> Any:
        """Return the activation after `forward_ms`."""
        return _Sleep.apply(activation, self.scale, self.forward_ms, self.input_grad_ms)

    def weight_grad(self) -> None:
        """Sleep for as long as the weight gradient takes."""
        sleep(self.weight_grad_ms)


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, activation: torch.Tensor, scale: torch.Tensor, forward_ms: float, back_ms: float
    ) -> torch.Tensor:
        ctx.back_ms = back_ms
        sleep(forward_ms)
        return activation * scale

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        sleep(ctx.back_ms)
        return grads[0], torch.zeros(()), None, None


def sleep(milliseconds: float) -> None:
    """Sleep for a time [ms]."""
    if milliseconds > 0:
        time.sleep(milliseconds / 1000)


def sleeping_stage(stage: Stage, number: int) -> SleepingStage:
    """Return the sleeping stage with the costs of a pipeline's stage.

    Raises
    ------
    ValueError
        If it has no backward, or its costs vary over the micro-batches.
    """
    whole = stage.backward_ms
    first = stage.input_grad_ms if whole is None else whole
    second = stage.weight_grad_ms if whole is None else 0.0
    if first is None or second is None:
        raise ValueError(f"stage {number} has no backward: give backward_ms, 0 where it is frozen")
    if isinstance(stage.forward_ms, tuple) or isinstance(first, tuple) or isinstance(second, tuple):
        raise ValueError(f"stage {number} has costs by micro-batch: sleeping stages take one")
    return SleepingStage(float(stage.forward_ms), float(first), float(second))
