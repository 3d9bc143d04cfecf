"""Faults that keep a folder of shards from being loaded into a model, found before loading."""

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from pipesim.runtime.shards.layer_tensors import (
    Layers,
    dtype_name,
    first_alike,
    memory,
    tensor_key,
    tensors_by_key,
    unfit,
)
from pipesim.runtime.shards.manifest import MANIFEST, Manifest, Shard, file_sha256, own_tensors


def damages(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Yield the faults of shards that are not as they were saved, each with its file."""
    for number, shard in enumerate(manifest.shards):
        for fault in _file_faults(folder / shard.file, shard):
            layers = ", ".join(layer.name for layer in shard.layers) or "none"
            yield f"{shard.file} (stage {number}, layers {layers}): {fault}"


def differences(manifest: Manifest, layers: Layers) -> Iterator[str]:
    """Yield the differences of layers and tensors between the saved model and another model."""
    saved = manifest.layers()
    for layer, (shard, stored) in saved.items():
        place = f"{shard.file}: layer {layer!r}"
        if layer not in layers:
            yield f"{place}: saved, the model has no such layer"
            continue
        ours, theirs = layers[layer], {tensor.name: tensor for tensor in stored.tensors}
        for name, tensor in theirs.items():
            if name not in ours:
                yield f"{place}: tensor {name!r}: saved as {tensor}, the model has no such tensor"
            elif _has_shape(ours[name]) and _described(ours[name]) != str(tensor):
                was, wanted = str(tensor), _described(ours[name])
                yield f"{place}: tensor {name!r}: saved as {was}, the model's is {wanted}"
        for name in ours:
            if name not in theirs:
                yield f"{place}: tensor {name!r}: not saved, the model has it"
    for layer in layers:
        if layer not in saved:
            yield f"{MANIFEST}: layer {layer!r}: not saved, the model has it"


def other_ties(manifest: Manifest, layers: Layers) -> Iterator[str]:
    """Yield the tensors that are tied to different tensors in the folder and in the model."""
    saved = {
        tensor_key(layer.name, tensor.name): tensor.tied_to or tensor_key(layer.name, tensor.name)
        for shard in manifest.shards
        for layer in shard.layers
        for tensor in layer.tensors
    }
    ours = {
        key: tensor
        for key, tensor in tensors_by_key(layers).items()
        if key in saved and unfit(tensor) is None
    }
    in_folder = first_alike({key: saved[key] for key in ours})
    in_model = first_alike({key: memory(tensor) for key, tensor in ours.items()})
    for key in ours:
        if in_folder[key] != in_model[key]:
            was, wanted = _tie(key, in_folder[key]), _tie(key, in_model[key])
            yield f"{MANIFEST}: tensor {key!r}: saved {was}, the model's is {wanted}"


def _file_faults(path: Path, shard: Shard) -> Iterator[str]:
    try:
        size, sha256 = path.stat().st_size, file_sha256(path)
    except FileNotFoundError:
        yield "missing"
    except OSError as error:
        yield f"cannot be read: {error.strerror or error}"
    else:
        if size != shard.bytes:
            yield f"has {size} bytes, {shard.bytes} were saved"
        elif sha256 != shard.sha256:
            yield f"has the sha256 {sha256}, {shard.sha256} was saved"
        else:
            yield from _content_faults(path, shard)


def _content_faults(path: Path, shard: Shard) -> Iterator[str]:
    try:
        with safe_open(path, "pt") as file:
            there = {key: _described(file.get_tensor(key)) for key in list(file.keys())}
    except SafetensorError as error:
        yield f"is no safetensors file: {error}"
        return
    wanted = own_tensors(shard.layers)
    for key, (layer, tensor) in wanted.items():
        if there.get(key) != str(tensor):
            found = there.get(key, "nothing")
            yield f"layer {layer!r}: tensor {tensor.name!r}: {found}, {MANIFEST} says {tensor}"
    for key in there:
        if key not in wanted:
            yield f"tensor {key!r}: {there[key]}, {MANIFEST} does not know it"


def _described(tensor: torch.Tensor) -> str:
    """Return a tensor's dtype and shape as text, in the form of `str(StoredTensor)`."""
    return f"{dtype_name(tensor)} {tuple(tensor.shape)}"


def _has_shape(tensor: torch.Tensor) -> bool:
    return not nn.parameter.is_lazy(tensor)


def _tie(key: str, first: str) -> str:
    return "apart" if key == first else f"tied to {first!r}"
