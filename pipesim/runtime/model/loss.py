"""The loss of a micro-batch: its checks, and the loss as the last layer of a profile."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class LossLayer(nn.Module):
    """A loss as a layer, which holds the targets and takes the output of the model.

    Parameters
    ----------
    loss_fn
        (output, targets) -> loss, or (output) -> loss if there are no targets.
    targets
        Targets of one micro-batch, or None. They are no buffer, so that what autograd keeps of them
        counts as kept.

    Examples
    --------
    >>> import torch
    >>> loss = LossLayer(nn.functional.mse_loss, torch.zeros(2, 8))
    >>> loss(torch.ones(2, 8)), loss.kind
    (tensor(1.), 'mse_loss')
    """

    def __init__(self, loss_fn: Callable[..., Tensor], targets: Any) -> None:
        super().__init__()
        self.loss_fn = loss_fn
        self.arguments = () if targets is None else (targets,)
        self.kind = getattr(loss_fn, "__name__", type(loss_fn).__name__)

    def forward(self, output: Any) -> Tensor:
        """Return the loss."""
        return self.loss_fn(output, *self.arguments)


def check_loss(loss_fn: Any) -> None:
    """Check that a loss has no parameters to train, as no stage would hold their gradients.

    Raises
    ------
    ValueError
        If it has parameters that are not frozen.
    """
    if isinstance(loss_fn, nn.Module) and any(p.requires_grad for p in loss_fn.parameters()):
        raise ValueError("loss_fn has parameters of its own: put them into the last stage")


def layer_kind(layer: nn.Module) -> str:
    """Return the kind of a layer: the name of its class, or of the function that is the loss.

    Examples
    --------
    >>> layer_kind(nn.ReLU()), layer_kind(LossLayer(nn.functional.mse_loss, None))
    ('ReLU', 'mse_loss')
    """
    return layer.kind if isinstance(layer, LossLayer) else type(layer).__name__


def single(loss: Any) -> Tensor:
    """Return a loss as a tensor without dimensions.

    Raises
    ------
    TypeError
        If it is anything but a tensor with a single number.
    """
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss.reshape(())
    found = (
        f"a tensor {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
    )
    raise TypeError(f"loss_fn gives {found}: give a tensor with a single number, mean or sum")
