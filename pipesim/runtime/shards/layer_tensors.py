"""The tensors of the layers of stages: their keys, whether they can be stored, and ties."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache

import torch
from safetensors.torch import save
from torch import nn

from pipesim.runtime.model.stage import PipelineStage

Layers = Mapping[str, Mapping[str, torch.Tensor]]


def tensors_by_layer(stages: Sequence[PipelineStage]) -> tuple[Layers, list[str]]:
    """Return each layer's tensors by name, and the faults that keep tensors from being saved.

    Raises
    ------
    TypeError
        If the stages do not know the names of their layers.

    Examples
    --------
    >>> layers, faults = tensors_by_layer([PipelineStage([nn.Linear(2, 1), nn.ReLU()])])
    >>> list(layers["0"]), list(layers["1"]), faults
    (['weight', 'bias'], [], [])
    """
    if not isinstance(stages, Iterable) or any(not isinstance(s, PipelineStage) for s in stages):
        raise TypeError(
            "shards go by the names of layers: make the stages with split_model, or each a "
            "PipelineStage"
        )
    layers: dict[str, Mapping[str, torch.Tensor]] = {}
    stage_of: dict[str, int] = {}
    faults: list[str] = []
    for number, stage in enumerate(stages):
        for name, layer in zip(stage.names, stage.layers, strict=True):
            if name in layers:
                faults.append(
                    f"layer {name!r}: in stage {stage_of[name]} and in stage {number}; layers "
                    "need names of their own, such as split_model gives"
                )
                continue
            stage_of[name] = number
            layers[name] = _kept_tensors(layer)
            faults += (f"layer {name!r}: {fault}" for fault in _faults(layer, layers[name]))
    return layers, faults + list(_ambiguous_keys(layers))


def tensor_key(layer: str, tensor: str) -> str:
    """Return the key of a layer's tensor in the whole model's state_dict, and in a shard.

    Examples
    --------
    >>> tensor_key("blocks.0", "norm.weight")
    'blocks.0.norm.weight'
    """
    return f"{layer}.{tensor}"


def tensors_by_key(layers: Layers) -> dict[str, torch.Tensor]:
    """Return all tensors of all layers by their keys."""
    return {
        tensor_key(layer, name): tensor
        for layer, tensors in layers.items()
        for name, tensor in tensors.items()
    }


def unfit(tensor: torch.Tensor) -> str | None:
    """Return the reason that a tensor cannot be saved and loaded; None if it can."""
    if nn.parameter.is_lazy(tensor):
        return "has no shape yet; run the layer once"
    if tensor.is_meta:
        return "has no values on the device meta; move the layer with to_empty(device=...)"
    if tensor.layout is not torch.strided:
        return f"has the layout {tensor.layout}, which safetensors cannot hold"
    if not _can_hold(tensor.dtype):
        return f"has the dtype {dtype_name(tensor)}, which safetensors cannot hold"
    if any(
        step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)
    ):
        return "is expanded, its elements share memory; give the layer tensor.contiguous()"
    return None


def dtype_name(tensor: torch.Tensor) -> str:
    """Return the name of a tensor's dtype, such as "float32"."""
    return str(tensor.dtype).removeprefix("torch.")


def memory(tensor: torch.Tensor) -> Hashable:
    """Return a key that is equal for tied tensors: those of one memory, shape and strides."""
    if tensor.numel() == 0:  # empty tensors have no memory to tell them apart
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def first_alike(values: Mapping[str, Hashable]) -> dict[str, str]:
    """Return for every key the first key of the same value.

    Examples
    --------
    >>> first_alike({"a": 1, "b": 2, "c": 1})
    {'a': 'a', 'b': 'b', 'c': 'a'}
    """
    first: dict[Hashable, str] = {}
    return {key: first.setdefault(value, key) for key, value in values.items()}


def _kept_tensors(layer: nn.Module) -> dict[str, torch.Tensor]:
    """Return a layer's parameters and persistent buffers by name; tied ones under all names."""
    kept = layer.state_dict().keys()
    named = [
        *layer.named_parameters(remove_duplicate=False),
        *layer.named_buffers(remove_duplicate=False),
    ]
    return {name: tensor for name, tensor in named if name in kept}


def _faults(layer: nn.Module, tensors: Mapping[str, torch.Tensor]) -> Iterator[str]:
    for name, tensor in tensors.items():
        if fault := unfit(tensor):
            yield f"tensor {name!r}: {fault}"
    for name in layer.state_dict():
        if name not in tensors:
            yield f"{name!r} in its state_dict is no parameter or buffer"


def _ambiguous_keys(layers: Layers) -> Iterator[str]:
    """Yield keys that two layers have, such as "a" with "b.weight" and "a.b" with "weight"."""
    owner: dict[str, str] = {}
    for layer, tensors in layers.items():
        for name in tensors:
            key = tensor_key(layer, name)
            if owner.setdefault(key, layer) != layer:
                yield f"layers {owner[key]!r} and {layer!r}: both have a tensor {key!r}"


@cache
def _can_hold(dtype: torch.dtype) -> bool:
    try:
        save({"": torch.empty(0, dtype=dtype)})
    except KeyError:
        return False
    return True
