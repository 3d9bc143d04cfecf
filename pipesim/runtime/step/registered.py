"""Checking that a backward misses no gradient: all that want one are known parameters."""

from collections.abc import Iterable

from torch import Tensor
from torch.autograd.graph import GradientEdge

from pipesim.runtime.step.split_backward import inputs_first, leaf_of


def check_registered(name: str, outputs: Iterable[GradientEdge], known: Iterable[Tensor]) -> None:
    """Check that a graph leads to no tensors but known ones.

    Parameters
    ----------
    name
        Name of what has the graph, for the error.
    outputs
        Edges at which the graph ends.
    known
        Inputs and parameters. The gradient of any other tensor would be lost.

    Raises
    ------
    ValueError
        If it leads to another tensor that requires a gradient.

    Examples
    --------
    >>> import torch
    >>> x, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    >>> check_registered("stage 3", [torch.autograd.graph.get_gradient_edge(x * w)], [x])
    Traceback (most recent call last):
    ValueError: stage 3 uses a tensor (2,) that requires a gradient and is no parameter of its...
    """
    numbers = {id(tensor) for tensor in known}
    for node in inputs_first(output.node for output in outputs):
        leaf = leaf_of(node)
        if leaf is not None and id(leaf) not in numbers:
            raise ValueError(
                f"{name} uses a tensor {tuple(leaf.shape)} that requires a gradient and is no "
                "parameter of its modules: register it there (self.weight = embedding.weight), or "
                "detach it"
            )
