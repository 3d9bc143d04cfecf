"""A model on disk, one shard a stage: saved whole or not at all, loaded whole or not at all.

Layers are found by their names, so that what one split has saved, another can load.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from pipesim.base.errors import ConfigError
from pipesim.runtime.model.stage import PipelineStage
from pipesim.runtime.shards.layer_tensors import (
    dtype_name,
    first_alike,
    memory,
    tensor_key,
    tensors_by_key,
    tensors_by_layer,
)
from pipesim.runtime.shards.manifest import (
    MANIFEST,
    SHARD_NAME,
    VERSION,
    Manifest,
    Shard,
    StoredLayer,
    StoredTensor,
    file_sha256,
    own_tensors,
    read_manifest,
)
from pipesim.runtime.shards.shard_faults import damages, differences, other_ties

_UNFINISHED = ".saving-"


def save_stages(stages: Sequence[PipelineStage], folder: str | os.PathLike[str]) -> None:
    """Write one shard a stage and a manifest into a folder, in place of what was saved there.

    What a `state_dict` holds is saved: parameters, frozen ones too, and persistent buffers; not
    whether a parameter is trained. Tensors that are one (the same memory under the same shape and
    strides, such as a tied embedding and head) are saved once. The manifest is replaced last, at
    one stroke: until then the folder holds the old checkpoint, whole. One process at a time may
    save into a folder.

    Parameters
    ----------
    stages
        Their layers have names of their own, over all stages: see `split_model`.
    folder
        Made where it is missing.

    Raises
    ------
    ConfigError
        With every fault, before anything is written: layers of the same name, tensors without
        values or that safetensors cannot hold.
    TypeError
        If the stages are not each a `PipelineStage`.
    OSError
        If the folder cannot be written to.

    Examples
    --------
    >>> from pipesim.runtime import split_model
    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    >>> other = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    >>> with TemporaryDirectory() as folder:
    ...     save_stages(split_model(model, [2, 1]), folder)
    ...     load_stages(split_model(other, [1, 1, 1]), folder)
    >>> torch.equal(model[2].weight, other[2].weight)
    True
    """
    target = Path(folder)
    layers, faults = tensors_by_layer(stages)
    if faults:
        raise ConfigError(str(target), faults)
    tensors = tensors_by_key(layers)
    first = first_alike({key: memory(tensor) for key, tensor in tensors.items()})
    target.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=_UNFINISHED, dir=target) as temporary:
        unfinished = Path(temporary)
        shards = []
        for number, stage in enumerate(stages):
            stored = tuple(_stored_layer(name, layers[name], first) for name in stage.names)
            shards.append(_write_shard(unfinished, number, stored, tensors))
        manifest = Manifest(VERSION, tuple(shards))
        text = json.dumps(asdict(manifest), indent=1) + "\n"
        (unfinished / MANIFEST).write_text(text, encoding="utf-8")
        files = [*(shard.file for shard in shards), MANIFEST]
        for file in files:
            _flush(unfinished / file)
        for file in files:
            os.replace(unfinished / file, target / file)
    _remove_superseded(target, manifest)


def load_stages(stages: Sequence[PipelineStage], folder: str | os.PathLike[str]) -> None:
    """Copy what was saved in a folder into the layers of the same names, whatever their stages.

    The tensors stay the same objects, on their devices, and tied ones stay tied.

    Parameters
    ----------
    stages
        All stages of the model; their number and their cuts may differ from what was saved.
    folder
        Where `save_stages` has written.

    Raises
    ------
    ConfigError
        With every fault, before anything is copied: a manifest that is missing or does not parse;
        a shard that is missing, cut short, changed or no safetensors file; a layer or a tensor
        that only one of the two has; another shape or dtype; other ties.
    TypeError
        If the stages are not each a `PipelineStage`.
    """
    source = Path(folder)
    layers, faults = tensors_by_layer(stages)
    manifest = read_manifest(source)
    faults += damages(source, manifest)
    faults += differences(manifest, layers)
    faults += other_ties(manifest, layers)
    if faults:
        raise ConfigError(str(source), faults)
    tensors = tensors_by_key(layers)
    with torch.no_grad():
        for shard in manifest.shards:
            with safe_open(source / shard.file, "pt") as file:
                for key in own_tensors(shard.layers):
                    tensors[key].copy_(file.get_tensor(key))


def _stored_layer(
    layer: str, tensors: Mapping[str, torch.Tensor], first: Mapping[str, str]
) -> StoredLayer:
    stored = []
    for name, tensor in tensors.items():
        key = tensor_key(layer, name)
        kind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
        tied_to = None if first[key] == key else first[key]
        stored.append(StoredTensor(name, kind, dtype_name(tensor), tuple(tensor.shape), tied_to))
    return StoredLayer(layer, tuple(stored))


def _write_shard(
    folder: Path, number: int, layers: tuple[StoredLayer, ...], tensors: Mapping[str, torch.Tensor]
) -> Shard:
    draft = folder / f"stage-{number}"
    own = {key: tensors[key].detach().contiguous() for key in own_tensors(layers)}
    save_file(own, draft)
    sha256 = file_sha256(draft)
    file = f"stage-{number}-{sha256[:16]}.safetensors"
    draft.rename(folder / file)
    return Shard(file, (folder / file).stat().st_size, sha256, layers)


def _flush(path: Path) -> None:
    """Flush a file's bytes to disk, so that a power cut cannot put its new name before them."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _remove_superseded(folder: Path, manifest: Manifest) -> None:
    """Remove the shards of the checkpoint before, and the leftovers of killed saves."""
    current = {shard.file for shard in manifest.shards}
    for path in list(folder.iterdir()):
        if SHARD_NAME.fullmatch(path.name) and path.name not in current:
            path.unlink()
        elif path.name.startswith(_UNFINISHED):
            shutil.rmtree(path)
