"""The sliders of a what-if page, and the row of a sweep's table at each of their settings."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pipesim.base.types import IntArray

if TYPE_CHECKING:
    import pandas as pd

LONGEST = 40  # characters of a slider's value


@dataclass(frozen=True, slots=True)
class Dial:
    """A slider: the keys that it sets, and the texts of its values, all different."""

    keys: tuple[str, ...]
    texts: list[str]

    @property
    def name(self) -> str:
        """The keys as one text."""
        return ", ".join(self.keys)


def dials_of(table: "pd.DataFrame") -> tuple[list[Dial], IntArray]:
    """Return the sliders of a sweep, and the row of its table at each of their settings.

    Keys with a single value have no slider. The rows have a dimension a slider; the first
    of equal points counts. Numbers in no order, such as draws, are put in order.

    Parameters
    ----------
    table
        The whole table of `sweep_config`.

    Raises
    ------
    ValueError
        If it is another table, or rows are missing.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"a": ["x", "x", "y", "y"], "b": [1.0, 2.5, 1.0, 2.5]})
    >>> table.attrs["together"] = [["a"], ["b"]]
    >>> dials, rows = dials_of(table)
    >>> [(dial.name, dial.texts) for dial in dials], rows.tolist()
    ([('a', ['x', 'y']), ('b', ['1', '2.5'])], [[0, 1], [2, 3]])
    """
    groups = table.attrs.get("together")
    if groups is None:
        raise ValueError('the table has no attrs["together"]: it is not what sweep_config returns')
    dials, places = [], []
    for keys in map(tuple, groups):
        values = list(zip(*(table[key].tolist() for key in keys), strict=True))
        known = _in_order({repr(value): value for value in values})
        if len(known) < 2:
            continue
        order = {text: place for place, text in enumerate(known)}
        dials.append(Dial(keys, _texts(list(known.values()))))
        places.append([order[repr(value)] for value in values])
    rows = np.full([len(dial.texts) for dial in dials], -1)
    for row, place in reversed(list(enumerate(zip(*places, strict=True)))):
        rows[place] = row
    if not dials:
        rows[()] = 0
    missing = int((rows < 0).sum())
    if missing:
        raise ValueError(f"the table has no row for {missing} of {rows.size} combinations of axes")
    return dials, rows


def _in_order(known: dict[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """Return values in the order given, or rising if they are numbers in no order, as draws."""
    first = [value[0] for value in known.values()]
    if any(len(value) > 1 or not isinstance(value[0], int | float) for value in known.values()):
        return known
    if first in (sorted(first), sorted(first, reverse=True)):
        return known
    return dict(sorted(known.items(), key=lambda item: item[1]))


def _texts(values: Sequence[tuple[Any, ...]]) -> list[str]:
    """Return values as texts that are short and all different."""
    for write in (_short, str):
        texts = [", ".join(map(write, value)) for value in values]
        texts = [text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…" for text in texts]
        if len(set(texts)) == len(texts):
            return texts
    return [f"{number}: {text}" for number, text in enumerate(texts)]


def _short(value: Any) -> str:
    """Return a cell of a table as a short text; lists are JSON there."""
    if isinstance(value, str) and value.startswith("["):
        try:
            return f"[{', '.join(map(_short, json.loads(value)))}]"
        except json.JSONDecodeError:
            return value
    return f"{value:.6g}" if isinstance(value, float) else str(value)
