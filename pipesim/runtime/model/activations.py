"""Activations between layers: a tensor, or tensors in tuples, lists and dictionaries."""

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only


def copied(activation: Any) -> Any:
    """Return a clone of an activation, which a layer may change in place, as it is no leaf."""
    return tree_map_only(torch.Tensor, torch.clone, activation)


def fresh(activation: Any) -> Any:
    """Return a detached copy of an activation, as if it had just arrived from another rank.

    Autograd can work with it, even if the activation was made in inference mode.
    """
    with torch.inference_mode(False):
        return tree_map_only(
            torch.Tensor, lambda x: x.detach().clone().requires_grad_(x.requires_grad), activation
        )


def cut_off(activation: Any) -> Any:
    """Return an activation as leaf tensors, detached from the graph that has made it."""
    return tree_map_only(
        torch.Tensor, lambda x: x.detach().requires_grad_(x.requires_grad), activation
    )


def tensors_of(activation: Any) -> list[torch.Tensor]:
    """Return the tensors of an activation."""
    return [leaf for leaf in tree_leaves(activation) if isinstance(leaf, torch.Tensor)]


def needing_grad(activation: Any) -> list[torch.Tensor]:
    """Return the tensors of an activation that require a gradient."""
    return [tensor for tensor in tensors_of(activation) if tensor.requires_grad]


def shape_text(activation: Any) -> str:
    """Return the tensors of an activation as text: 8x128 float32."""
    return ", ".join(
        f"{'x'.join(map(str, leaf.shape)) or 'scalar'} {str(leaf.dtype).removeprefix('torch.')}"
        if isinstance(leaf, torch.Tensor)
        else type(leaf).__name__
        for leaf in tree_leaves(activation)
    )
