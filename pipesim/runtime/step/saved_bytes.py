"""Bytes that autograd keeps from the forward to the backward, counted by saved-tensor hooks.

Counted are whole storages, each once, for that is what stays in memory when a part of one is
saved. Parameters and buffers are there anyway and do not count. A tensor that two layers save,
such as a ReLU's output that is the input of the next layer, is kept once and counted at the later
one, as the input that it is there. So what layers that follow each other keep adds up to what a
stage of them keeps, but at its ends: it keeps its input, be it saved or not, and an output that
its last layer has saved, although that counts at the layer after it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge, saved_tensors_hooks

from pipesim.runtime.model.activations import needing_grad, tensors_of
from pipesim.runtime.step.split_backward import input_gradient

Storages: TypeAlias = dict[int, torch.UntypedStorage]  # by address


def saved_storages(
    forward: Callable[..., Any], *arguments: Any, excluded: Iterable[int] = ()
) -> tuple[Any, Storages]:
    """Return the output of a forward, and the storages that autograd keeps of it, by address.

    There can be no backward after it. As long as the storages are held no other gets their address.

    Examples
    --------
    >>> layer, sample = nn.Linear(8, 16), torch.zeros(2, 8)
    >>> _, saved = saved_storages(layer, sample, excluded=storages_of([layer]))
    >>> [storage.nbytes() for storage in saved.values()]
    [64]
    """
    saved: Storages = {}
    excluded = set(excluded)

    def pack(tensor: torch.Tensor) -> None:
        address = storage_address(tensor)
        if address not in excluded:
            saved[address] = tensor.untyped_storage()

    with saved_tensors_hooks(pack, lambda nothing: nothing):
        return forward(*arguments), saved


def activation_storages(activation: Any) -> Storages:
    """Return the storages of the tensors of an activation, by address."""
    return {storage_address(each): each.untyped_storage() for each in tensors_of(activation)}


def noted_storages(layer: nn.Module, received: Any, output: Any) -> Storages:
    """Return the storages of the gradients that a layer's I notes for its W, by address.

    Parameters
    ----------
    received, output
        The input of the layer, as leaves, and its output.

    Examples
    --------
    >>> layer, sample = nn.Linear(8, 16), torch.zeros(2, 8, requires_grad=True)
    >>> noted = noted_storages(layer, sample, layer(sample).relu())
    >>> [storage.nbytes() for storage in noted.values()]
    [128]
    """
    outputs = needing_grad(output)
    if not outputs:
        return {}
    edges, gradients = map(get_gradient_edge, outputs), map(torch.ones_like, outputs)
    trained = needing_grad(list(layer.parameters()))
    _, parts = input_gradient([*edges], [*gradients], needing_grad(received), trained)
    noted = (gradient for part in parts for gradient in part.gradients)
    return {storage_address(gradient): gradient.untyped_storage() for gradient in noted}


def storages_of(layers: Iterable[nn.Module]) -> set[int]:
    """Return the addresses of the storages of the layers' parameters and buffers."""
    return {
        storage_address(tensor)
        for layer in layers
        for tensor in (*layer.parameters(), *layer.buffers())
    }


def storage_address(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's storage, which no other live storage has."""
    address: int = tensor.untyped_storage().data_ptr()
    return address


def kept_bytes(saved: Sequence[Storages]) -> list[int]:
    """Return the bytes that each layer keeps; a storage counts at the last layer that saved it.

    Examples
    --------
    >>> kept = torch.zeros(4).untyped_storage()
    >>> kept_bytes([{1: kept}, {1: kept}])
    [0, 16]
    """
    kept = [0] * len(saved)
    for address, number in _owners(saved).items():
        kept[number] += saved[number][address].nbytes()
    return kept


def kept_at_ends(
    saved: Sequence[Storages], between: Sequence[Storages]
) -> tuple[list[int], list[int]]:
    """Return the extra bytes that a stage keeps at its ends, by first layer and by last layer.

    Parameters
    ----------
    saved
        The storages that each layer has saved.
    between
        The storages of each layer's input, and of the last one's output.

    Examples
    --------
    A layer that saves what it puts out, one that saves what it gets, one that saves nothing:

    >>> a, b, c, d = (torch.zeros(size).untyped_storage() for size in (1, 2, 3, 4))
    >>> kept_at_ends([{2: b}, {2: b}, {}], [{1: a}, {2: b}, {3: c}, {4: d}])
    ([4, 0, 12], [8, 0, 0])
    """
    owner, savers = _owners(saved), _owners(saved[::-1])
    first, last = [0] * len(saved), [0] * len(saved)
    for number in range(len(saved)):
        for address, storage in between[number].items():
            if owner.get(address, -1) < number:
                first[number] += storage.nbytes()
        for address, storage in between[number + 1].items():
            earliest = len(saved) - 1 - savers.get(address, -1)
            if earliest <= number < owner.get(address, -1):
                last[number] += storage.nbytes()
    return first, last


def _owners(saved: Sequence[Storages]) -> dict[int, int]:
    """Return the number of the last layer that has saved each storage, by address."""
    return {address: number for number, storages in enumerate(saved) for address in storages}
