"""A study: a config and the axes to vary it along, as points in a fixed order."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from itertools import product
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from pipesim.base.errors import ConfigError
from pipesim.base.files import is_schedule_file
from pipesim.config.axes import IMBALANCE, Axis, Imbalance
from pipesim.config.override import override
from pipesim.config.read import parse_sweep
from pipesim.config.rules import unknown_schedule
from pipesim.config.sections import Sections, structure
from pipesim.files.config_file import Document, read_document

Point: TypeAlias = tuple[Any, ...]  # one value for each of a study's keys

FILE_KEYS = ("run.schedule", "layers.file")


@dataclass(frozen=True, slots=True)
class Study:
    """A study: all that the points of a sweep share, small enough to be sent to every worker.

    Parameters
    ----------
    document
        The config without its section [sweep].
    name, directory
        Name and folder of the config file.
    keys
        The keys that vary: the columns of the axes.
    mode
        "product" or "zip".
    together
        The keys in groups, each of which varies by itself.
    imbalance
        The built-in axis, for its law and its seed.
    digest
        Hash of the study and of the files that it reads.
    """

    document: Document
    name: str
    directory: Path
    keys: tuple[str, ...]
    mode: str
    together: tuple[tuple[str, ...], ...]
    imbalance: Imbalance | None
    digest: str

    def where(self, point: Point) -> str:
        """Return a point as text."""
        return ", ".join(f"{k} = {v!r}" for k, v in zip(self.keys, point, strict=True))

    def filled(self, point: Point) -> Document:
        """Return the config document at a point, without the imbalance, which is no key.

        Raises
        ------
        ConfigError
            If a key does not fit the config.
        """
        return override(self.document, self.name, config_keys(self.keys, point))


def config_keys(keys: Iterable[str], point: Point) -> dict[str, Any]:
    """Return the values of a point by key, without those of the imbalance."""
    values = zip(keys, point, strict=True)
    return {key: value for key, value in values if not key.startswith(f"{IMBALANCE}.")}


def read_study(
    path: str | PathLike[str], overrides: Mapping[str, Any] | None = None
) -> tuple[Study, list[Point]]:
    """Return the study in a config file, and its points.

    Raises
    ------
    ConfigError
        If the file or its section [sweep] is faulty, an axis is no key of a config or names a
        schedule that there is not, or the config has faults that no axis mends.
    """
    name, directory = str(path), Path(path).parent
    document = override(read_document(path), name, overrides or {})
    section = parse_sweep(document, name)
    axes: list[Axis] = section.axes  # type: ignore[assignment]  # checked by its hook
    keys = tuple(key for axis in axes for key in axis.keys)
    if "run.engine" in keys:
        why = "a sweep runs on the replay engine, whose numbers are those of any other"
        raise ConfigError(name, [f'sweep.axes."run.engine": {why}'])
    schedules = _values_of("run.schedule", axes)
    strange = [unknown_schedule('sweep.axes."run.schedule"', value) for value in schedules]
    if any(strange):
        raise ConfigError(name, list(dict.fromkeys(filter(None, strange))))
    study = Study(
        document={key: value for key, value in document.items() if key != "sweep"},
        name=name,
        directory=directory,
        keys=keys,
        mode=section.mode,
        together=(keys,) if section.mode == "zip" else _groups(axes),
        imbalance=next((axis for axis in axes if isinstance(axis, Imbalance)), None),
        digest=_digest(document, directory, axes),
    )
    points = _points(axes, section.mode, name)
    _check(study, points[0])
    return study, points


def _values_of(key: str, axes: Iterable[Axis]) -> list[Any]:
    """Return the values that a key takes along the axes."""
    return [row[axis.keys.index(key)] for axis in axes if key in axis.keys for row in axis.rows]


def _groups(axes: list[Axis]) -> tuple[tuple[str, ...], ...]:
    """Return the groups of keys that vary together; the two of an imbalance are two groups."""
    found: list[tuple[str, ...]] = []
    for axis in axes:
        found += [(key,) for key in axis.keys] if isinstance(axis, Imbalance) else [axis.keys]
    return tuple(found)


def _points(axes: list[Axis], mode: str, name: str) -> list[Point]:
    rows = [axis.rows for axis in axes]
    if mode == "product":
        return [tuple(v for row in rows for v in row) for rows in product(*rows)]
    lengths = {", ".join(axis.keys): len(row) for axis, row in zip(axes, rows, strict=True)}
    if len(set(lengths.values())) > 1:
        raise ConfigError(name, [f"sweep.axes: zip needs equal lengths, not {lengths}"])
    return [tuple(v for row in rows for v in row) for rows in zip(*rows, strict=True)]


def _check(study: Study, first: Point) -> None:
    """Check, at the first point, all that no axis changes: that the keys exist, other values."""
    varied = tuple(key.partition("[")[0] for key in study.keys)
    _, faults = structure(study.filled(first), Sections)
    lasting = [
        fault for fault in faults if ": unknown key" in fault or not fault.startswith(varied)
    ]
    if lasting:
        raise ConfigError(study.name, lasting)


def _digest(document: Document, directory: Path, axes: list[Axis]) -> str:
    """Return a hash of all that the rows depend on: config, axes, files, and this program."""
    digest = sha256(f"pipesim {version('pipesim')}\n".encode())
    digest.update(json.dumps(document, sort_keys=True, default=str).encode())
    digest.update(json.dumps([axis.keys for axis in axes]).encode())  # their order numbers points
    for file in sorted(_files(document, axes)):
        try:
            digest.update((directory / file).read_bytes())
        except OSError:
            digest.update(b"missing")  # an error of the points that need it
    return digest.hexdigest()


def _files(document: Document, axes: list[Axis]) -> set[str]:
    """Return the names of the files that a config reads, at any point."""
    found = set()
    for key in FILE_KEYS:
        section, _, name = key.partition(".")
        table = document.get(section)
        values = [table.get(name)] if isinstance(table, dict) else []
        values += _values_of(key, axes)
        texts = {value for value in values if isinstance(value, str)}
        found |= {text for text in texts if key == "layers.file" or is_schedule_file(text)}
    return found
