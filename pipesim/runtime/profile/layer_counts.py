"""The counted columns of a layer profile: bytes kept and put out, floating-point operations."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.flop_counter import FlopCounterMode

from pipesim.runtime.model.activations import copied, cut_off, needing_grad, shape_text, tensors_of
from pipesim.runtime.model.loss import LossLayer, layer_kind, single
from pipesim.runtime.step.registered import check_registered
from pipesim.runtime.step.saved_bytes import (
    Storages,
    activation_storages,
    kept_at_ends,
    kept_bytes,
    noted_storages,
    saved_storages,
    storages_of,
)


class _Counted(NamedTuple):
    """The counts of one layer.

    Parameters
    ----------
    output
        The output of the layer.
    saved, noted
        The storages that autograd keeps of its forward, and those of the gradients that I notes
        for W.
    gflop
        Floating-point operations of the forward.
    """

    output: Any
    saved: Storages
    noted: Storages
    gflop: float


def layer_text(number: int, name: str, layer: nn.Module) -> str:
    """Return the name of a layer in errors.

    Examples
    --------
    >>> layer_text(1, "head", nn.Linear(8, 16))
    'layer 1 (head, Linear)'
    """
    return f"layer {number} ({name}, {layer_kind(layer)})"


def counted_columns(layers: Sequence[tuple[str, nn.Module]], sample: Any) -> dict[str, Any]:
    """Return the columns of a layer profile that are counted and not timed, one value a layer.

    Parameters
    ----------
    layers
        Names and modules, in forward order.
    sample
        The input of the first layer.

    Raises
    ------
    ValueError
        If a layer fails, puts out no tensor, or uses a tensor that requires a gradient and is no
        parameter of its own.
    TypeError
        If a loss is anything but a single number.

    Examples
    --------
    >>> import torch
    >>> columns = counted_columns([("head", nn.Linear(8, 16))], torch.zeros(2, 8))
    >>> columns["param_bytes"], columns["output_bytes"], columns["stash_bytes"]
    ([576], [128], [64])
    """
    excluded = storages_of(layer for _, layer in layers)
    activation = copied(sample)  # alone in its storage
    seen: set[int] = set()
    between = [activation_storages(activation)]
    params, outputs, counted = [], [], []
    for number, (name, layer) in enumerate(layers):
        counted.append(_count_one(layer_text(number, name, layer), layer, activation, excluded))
        activation = counted[-1].output
        own = {id(parameter): parameter.nbytes for parameter in layer.parameters()}
        params.append(sum(own[key] for key in own if key not in seen))
        seen.update(own)
        between.append(activation_storages(activation))
        outputs.append(sum(tensor.nbytes for tensor in tensors_of(activation)))
    saved, noted = [each.saved for each in counted], [each.noted for each in counted]
    training = max((number for number, gradients in enumerate(noted) if gradients), default=-1) + 1
    for_weights = [kept | more for kept, more in zip(saved[:training], noted, strict=False)]
    first, last = kept_at_ends(saved, between)
    return {
        "stash_bytes": kept_bytes(saved),
        "wgrad_stash_bytes": kept_bytes(for_weights) + [0] * (len(layers) - training),
        "first_stash_bytes": first if any(first) else None,
        "last_stash_bytes": last if any(last) else None,
        "param_bytes": params,
        "output_bytes": outputs,
        "forward_gflop": [each.gflop for each in counted],
    }


def _count_one(which: str, layer: nn.Module, activation: Any, excluded: set[int]) -> _Counted:
    """Return the counts of a layer on an activation; `which` names it in errors."""
    received = cut_off(activation)
    fails = f"{which} fails on {shape_text(activation)}"
    with _explained(f"{fails}, in its forward"), FlopCounterMode(display=False) as counter:
        output = layer(copied(received))
    with _explained(f"{fails}, in its backward"):
        noted = noted_storages(layer, received, output)
    ends = map(get_gradient_edge, needing_grad(output))
    check_registered(which, ends, [*tensors_of(received), *layer.parameters()])
    with _explained(f"{fails}, in its second forward"):
        output, saved = saved_storages(layer, activation, excluded=excluded)
    if isinstance(layer, LossLayer):
        single(output)
    if not tensors_of(output):
        raise ValueError(
            f"{which} puts out an object of class {type(output).__name__}, in which no tensor is "
            "found: give tensors in tuples, lists or dicts, or register it with "
            "torch.utils._pytree"
        )
    return _Counted(output, saved, noted, counter.get_total_flops() / 1e9)


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Raise errors with what has failed, `what`, before their message."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{what}: {error}") from error
