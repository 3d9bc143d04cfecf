"""Config files in TOML, YAML or JSON as plain tables, and setting one key of such a table."""

import json
import re
import tomllib
from collections.abc import Callable, Hashable
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

from pipesim.base.errors import ConfigError

Document = dict[str, Any]

_STEP = re.compile(r"\.?([A-Za-z_][\w-]*)|\.?\"([^\"]+)\"|\[(\d+)\]")


def read_document(path: str | PathLike[str]) -> Document:
    """Return the config document in a .toml, .yaml, .yml or .json file.

    Raises
    ------
    ConfigError
        If the file cannot be read, is malformed, has a key twice, or holds no table.
    """
    file = Path(path)
    parsers: dict[str, Callable[[str], Any]] = {
        ".toml": tomllib.loads,
        ".json": _parse_json,
        ".yaml": _parse_yaml,
    }
    parsers[".yml"] = parsers[".yaml"]
    parse = parsers.get(file.suffix.lower())
    if parse is None:
        raise ConfigError(str(path), ["a config file is .toml, .yaml, .yml or .json"])
    try:
        document = parse(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(str(path), [f"cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), [f"is no UTF-8 text: {error}"]) from None
    except (ValueError, RecursionError) as error:
        # All three parsers' errors are ValueErrors, YAML's by the wrapper below.
        raise ConfigError(str(path), [f"is malformed: {error}"]) from None
    if not isinstance(document, dict):
        raise ConfigError(str(path), ["holds no table; write [run] and [stages]"])
    return document


def set_key(document: Document, key: str, value: Any) -> Document:
    """Return a copy with one key set: `stages.forward_ms[3]`, `links.latency_ms."0->1"`.

    The table given stays as it is.

    Tables on the way are made where they are missing; lists are not.

    Raises
    ------
    ValueError
        If the key is malformed, or indexes a value that is not a list, or a list beyond its end.

    Examples
    --------
    >>> set_key({"stages": {"forward_ms": [1, 1]}}, "stages.forward_ms[1]", 2)
    {'stages': {'forward_ms': [1, 2]}}
    """
    steps = _steps(key)
    changed = dict(document)
    place: Any = changed
    walked = ""
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        _check_step(place, step, walked)
        walked = f"{walked}[{step}]" if isinstance(step, int) else f"{walked}.{step}".lstrip(".")
        if following is None:
            place[step] = value
            break
        if isinstance(place, dict) and step not in place:
            if isinstance(following, int):
                raise ValueError(f"{key}: there is no {walked}")
            place[step] = {}
        # Only what lies on the way is copied; the rest is shared with the table given.
        if isinstance(place[step], dict | list):
            place[step] = place[step].copy()
        place = place[step]
    return changed


@cache
def _steps(key: str) -> tuple[str | int, ...]:
    steps: list[str | int] = []
    position = 0
    while position < len(key):
        match = _STEP.match(key, position)
        if match is None:
            break
        name = match[1] or match[2]
        steps.append(name if name else int(match[3]))
        position = match.end()
    if position < len(key) or not steps or isinstance(steps[0], int):
        raise ValueError(f"{key!r} is no key; write for example stages.forward_ms[3]")
    return tuple(steps)


def _check_step(place: Any, step: str | int, walked: str) -> None:
    if isinstance(step, str) and not isinstance(place, dict):
        raise ValueError(f"{walked} is {place!r} and has no key {step!r}")
    if isinstance(step, int):
        if not isinstance(place, list):
            raise ValueError(
                f"{walked} is {place!r}, not a list: give its values one by one to change one"
            )
        if step >= len(place):
            raise ValueError(f"{walked}[{step}]: the list has {len(place)} values, from 0 on")


def _parse_json(text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> Document:
        table: Document = {}
        for key, value in pairs:
            if key in table:
                raise ValueError(f"the key {key!r} is there twice")
            table[key] = value
        return table

    return json.loads(text, object_pairs_hook=unique)


def _parse_yaml(text: str) -> Any:
    import yaml

    class UniqueKeys(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
            merge = "tag:yaml.org,2002:merge"
            keys = [self.construct_object(k, deep=True) for k, _ in node.value if k.tag != merge]
            for number, key in enumerate(keys):
                if key in keys[:number]:
                    raise ValueError(f"the key {key!r} is there twice")
            return super().construct_mapping(node, deep)

    # YAML 1.1, which PyYAML speaks, takes 2e9 and 1e-3 for texts; YAML 1.2 and people do not.
    UniqueKeys.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+"), list("-+0123456789")
    )
    try:
        return yaml.load(text, Loader=UniqueKeys)  # a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
