"""Arguments KEY=VALUE of the command line: their keys and values."""

import json
import tomllib
from typing import Any

TEXT_KEYS = ("title", "source", "run.schedule", "layers.file")  # taken as they are typed


def parse_value(text: str) -> Any:
    """Return the value of a text on the command line: JSON, a list with commas, or the text.

    A table may also be written as in a config, with `=`.

    Examples
    --------
    >>> parse_value("1,1,2.5"), parse_value("1f1b"), parse_value("4"), parse_value('{"a.b": [1]}')
    ([1, 1, 2.5], '1f1b', 4, {'a.b': [1]})
    >>> parse_value('{"0..3" = "full"}')
    {'0..3': 'full'}
    """
    try:
        return json.loads(text)
    except ValueError:
        pass
    if text.lstrip().startswith("{"):
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            return text
    if "," in text and not text.lstrip().startswith(("[", '"')):
        return [parse_value(part) for part in text.split(",")]
    for number in (int, float):  # numbers that JSON does not take: 010, .5, 1., nan
        try:
            return number(text)
        except ValueError:
            continue
    return text


def assignment(text: str) -> tuple[str, Any]:
    """Return the key and the value of a text such as `run.microbatches=8`.

    Raises
    ------
    ValueError
        If there is no `=` in it.
    """
    key, sign, value = text.partition("=")
    key = key.strip()
    if not sign or not key:
        raise ValueError(f"{text!r} is no assignment; write KEY=VALUE")
    return key, value if key in TEXT_KEYS else parse_value(value)
