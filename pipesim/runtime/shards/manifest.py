"""The manifest of a folder of shards: which layer is in which shard, with which tensors.

    manifest.json                            version, and one entry a stage: file, checksum, layers
    stage-0-1c3e5f....safetensors            the tensors of stage 0, named "layer.tensor"
    stage-1-9a0b2d....safetensors            ...

A shard's name holds the start of its checksum: a new save writes beside the old one, and only the
manifest, replaced last, says which shards count.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path

import cattrs

from pipesim.base.errors import ConfigError
from pipesim.runtime.shards.layer_tensors import tensor_key

MANIFEST = "manifest.json"
VERSION = 1
SHARD_NAME = re.compile(r"stage-\d+-[0-9a-f]{16}\.safetensors")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A parameter or buffer of a layer, as it was saved.

    Parameters
    ----------
    name
        Name within its layer.
    kind
        "parameter" or "buffer".
    dtype
        PyTorch's name of it, such as "float32".
    shape
        Shape; empty for a single number.
    tied_to
        The key of the tensor whose memory it shares, which alone is in a shard; None if it is
        in its own stage's.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    tied_to: str | None = None

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A layer with all its tensors; it may have none."""

    name: str
    tensors: tuple[StoredTensor, ...]


@dataclass(frozen=True, slots=True)
class Shard:
    """The file of one stage, its length [bytes] and checksum, and the stage's layers in order."""

    file: str
    bytes: int
    sha256: str
    layers: tuple[StoredLayer, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The shards, one a stage, in the order of the stages."""

    version: int
    shards: tuple[Shard, ...]

    def layers(self) -> dict[str, tuple[Shard, StoredLayer]]:
        """Return all layers by their names, each with the shard of its stage."""
        return {layer.name: (shard, layer) for shard in self.shards for layer in shard.layers}


def own_tensors(layers: Iterable[StoredLayer]) -> dict[str, tuple[str, StoredTensor]]:
    """Return key -> (layer's name, tensor) for the tensors of layers that are not tied to others.

    These are what the layers' shard holds.
    """
    return {
        tensor_key(layer.name, tensor.name): (layer.name, tensor)
        for layer in layers
        for tensor in layer.tensors
        if tensor.tied_to is None
    }


def file_sha256(path: Path) -> str:
    """Return the checksum of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a folder of shards.

    Raises
    ------
    ConfigError
        With every fault: it is missing, does not parse, is of another version, or contradicts
        itself.
    """
    try:
        document = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _fault(folder, "missing: nothing was saved here") from None
    except OSError as error:
        raise _fault(folder, error.strerror or str(error)) from None
    except ValueError as error:  # not UTF-8, or not JSON
        raise _fault(folder, f"does not parse: {error}") from None
    version = document.get("version") if isinstance(document, dict) else None
    if version != VERSION:
        raise _fault(folder, f"version is {version!r}, should be {VERSION}")
    try:
        manifest = cattrs.Converter(forbid_extra_keys=True).structure(document, Manifest)
    except cattrs.BaseValidationError as error:
        raise _fault(folder, *cattrs.transform_error(error)) from None
    if faults := list(_contradictions(manifest)):
        raise _fault(folder, *faults)
    return manifest


def _fault(folder: Path, *faults: str) -> ConfigError:
    return ConfigError(str(folder), [f"{MANIFEST}: {fault}" for fault in faults])


def _contradictions(manifest: Manifest) -> Iterator[str]:
    stored = own_tensors(layer for shard in manifest.shards for layer in shard.layers)
    seen: set[str] = set()
    for shard in manifest.shards:
        if not SHARD_NAME.fullmatch(shard.file):
            yield f"file {shard.file!r} is no name of a shard"
        for layer in shard.layers:
            if layer.name in seen:
                yield f"layer {layer.name!r} is there twice"
            seen.add(layer.name)
            for tensor in layer.tensors:
                if tensor.tied_to is None:
                    continue
                place = f"layer {layer.name!r}: tensor {tensor.name!r} ({tensor}) is tied to"
                if tensor.tied_to not in stored:
                    yield f"{place} {tensor.tied_to!r}, which no shard holds"
                elif str(stored[tensor.tied_to][1]) != str(tensor):
                    yield f"{place} {tensor.tied_to!r} ({stored[tensor.tied_to][1]})"
