"""A table of layers -> the columns of a profile, strictly: every fault with its column and row."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from pipesim.base.checks import MOST_BYTES, MOST_MS
from pipesim.pipeline.components import COST_FIELDS

if TYPE_CHECKING:
    import pandas as pd

AMOUNTS = (*COST_FIELDS.values(), "selective_ms", "forward_gflop")
SIZES = (
    "stash_bytes",
    "wgrad_stash_bytes",
    "rebuilt_bytes",
    "selective_stash_bytes",
    "first_stash_bytes",
    "last_stash_bytes",
    "param_bytes",
    "output_bytes",
)
ALIASES = {
    "F_ms": "forward_ms",
    "B_ms": "backward_ms",
    "B_input_ms": "input_grad_ms",
    "W_ms": "weight_grad_ms",
    "act_bytes": "stash_bytes",
    "out_bytes": "output_bytes",
}
MOST_FAULTS = 20  # of one column that are told


def profile_columns(frame: "pd.DataFrame") -> tuple[dict[str, Any], dict[str, tuple[str, ...]]]:
    """Return the columns of a table of layers by the fields of a profile; and its labels.

    Raises
    ------
    ValueError
        With every fault, a line each: `F_ms[3] (head): '2,6' is not a number from 0 to 10^15`.
    """
    columns: dict[str, Any] = {}
    labels: dict[str, tuple[str, ...]] = {}
    faults: list[str] = []
    names = [str(name) for name in frame["layer"]] if "layer" in frame else []
    for given in map(str, frame.columns):
        name, cells = ALIASES.get(given, given), frame[given]
        if name in columns:
            faults.append(f"column {given!r} gives {name} a second time")
        elif name == "layer":
            columns["names"] = tuple(names)
        elif name in AMOUNTS:
            faults += _faults(given, cells, names, whole=False)
            columns[name] = tuple(cells.tolist())
        elif name in SIZES:
            faults += _faults(given, cells, names, whole=True)
            columns[name] = tuple(cells.tolist())
        elif np.issubdtype(np.asarray(cells).dtype, np.number):
            known = ", ".join(["layer", *AMOUNTS, *SIZES, *ALIASES])
            faults.append(f"unknown column {given!r} of numbers; known: {known}")
        else:
            labels[name] = tuple(map(str, cells))
    if "forward_ms" not in columns:
        faults.append("there is no column forward_ms (or F_ms)")
    if faults:
        raise ValueError("\n".join(faults))
    for name in SIZES:
        if name in columns:
            columns[name] = tuple(map(int, columns[name]))
    return columns, labels


def _faults(column: str, cells: Any, names: list[str], *, whole: bool) -> Iterator[str]:
    """Yield what is wrong with the cells of a column of amounts, or of whole numbers of bytes."""
    import pandas as pd

    values = pd.to_numeric(cells, errors="coerce").to_numpy(dtype=np.float64)
    good = (values >= 0) & (values <= (MOST_BYTES if whole else MOST_MS))
    if whole:
        good &= values == np.floor(values)
    # Texts that look like numbers are texts still.
    good &= np.array([not isinstance(cell, str | bool) for cell in cells.tolist()], dtype=bool)
    kind = "a whole number" if whole else "a number"
    rows = np.flatnonzero(~good).tolist()
    for row in rows[:MOST_FAULTS]:
        who = f" ({names[row]})" if names else ""
        cell = cells.iloc[row]
        shown = repr(cell) if isinstance(cell, str) else "nothing" if cell != cell else str(cell)
        yield f"{column}[{row}]{who}: {shown} is not {kind} from 0 to 10^15"
    if len(rows) > MOST_FAULTS:
        yield f"{column}: {len(rows) - MOST_FAULTS} more of its cells are faulty"
