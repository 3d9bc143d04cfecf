"""Setting keys of a document, also one element of a value that is given once for all.

`devices.speed[2] = 0.8` writes a speed of 1.0 out for every rank and changes one.
"""

import re
from collections.abc import Mapping
from typing import Any

from pipesim.base.checks import is_number
from pipesim.base.errors import ConfigError
from pipesim.files.config_file import Document, set_key
from pipesim.pipeline.recompute import MODES

_ELEMENT = re.compile(r"(stages|devices|links|training)\.(\w+)\[\d+\]")
_DEFAULTS = {
    "devices.speed": 1.0,
    "devices.overhead_ms": 0.0,
    "links.latency_ms": 0.0,
    "stages.recompute": "none",
    "stages.stash_bytes": 0,
    "stages.param_bytes": 0,
    "stages.output_bytes": 0,
    "training.optimizer_ms": 0.0,
    "training.speed": 1.0,
}


def override(document: Document, name: str, overrides: Mapping[str, Any]) -> Document:
    """Return a document with some keys set.

    Raises
    ------
    ConfigError
        If a key does not fit the document.
    """
    faults = []
    for key, value in overrides.items():
        try:
            document = set_key(written_out(document, key), key, value)
        except ValueError as error:
            faults.append(str(error))
    if faults:
        raise ConfigError(name, faults)
    return document


def written_out(document: Document, key: str) -> Document:
    """Return a document in which the value that a key indexes is written out as a list.

    A number, or a mode of recompute, that holds for all stages, ranks, boundaries or replicas is
    written out once for each, if the document says how many there are; so is the default of a key
    that is not there.

    Examples
    --------
    >>> written_out({"stages": {"forward_ms": [1, 1]}}, "devices.speed[1]")["devices"]
    {'speed': [1.0, 1.0]}
    """
    match = _ELEMENT.fullmatch(key)
    if match is None:
        return document
    section, name = match[1], match[2]
    table = document.get(section, {})
    if not isinstance(table, dict):
        return document
    value = table.get(name, _DEFAULTS.get(f"{section}.{name}"))
    count = _count(document, "replicas" if match[0].startswith("training.speed") else section)
    if not (is_number(value) or value in MODES) or count is None:
        return document
    return document | {section: table | {name: [value] * count}}


def _count(document: Document, section: str) -> int | None:
    """Return the number of stages, ranks, boundaries or replicas that a section has values for.

    None if the document does not say.
    """
    if section == "replicas":
        training = document.get("training")
        return _whole(training.get("replicas")) if isinstance(training, dict) else None
    stages, devices = (document.get(name) for name in ("stages", "devices"))
    ranks = _whole(devices.get("ranks")) if isinstance(devices, dict) else None
    if not isinstance(stages, dict):
        return ranks if section == "devices" else None
    lists = (len(value) for value in stages.values() if isinstance(value, list))
    count = _whole(stages.get("count")) or next(lists, None) or ranks
    if section == "devices":
        return ranks or count
    if count is None:
        return None
    return count - 1 if section == "links" else count


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 < value <= 10**6 else None
