"""Measured or configured costs of layers, and cutting them into stages."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from operator import index
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from pipesim.checks import check_amount
from pipesim.components import COST_FIELDS
from pipesim.pipeline import Pipeline

if TYPE_CHECKING:
    import pandas as pd

ALIASES = {
    "F_ms": "forward_ms",
    "B_ms": "backward_ms",
    "B_input_ms": "input_grad_ms",
    "W_ms": "weight_grad_ms",
    "act_bytes": "stash_bytes",
    "out_bytes": "output_bytes",
}


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """The costs of a model's layers, one value a layer in forward order.

    Made by `read_layers`, `LayerProfile.from_frame`, or directly from lists.

    Parameters
    ----------
    forward_ms
        Time of one micro-batch's forward [ms].
    backward_ms
        Time of its whole backward [ms]; or else
    input_grad_ms, weight_grad_ms
        the two parts of it [ms].
    stash_bytes, param_bytes, output_bytes
        Bytes kept from forward to backward, of parameters, of the activation handed on.
    names
        One a layer; by default their numbers.

    Raises
    ------
    ValueError
        If a list has another length than `forward_ms`, or a value is negative, NaN or infinite.
    """

    forward_ms: tuple[float, ...]
    backward_ms: tuple[float, ...] | None = None
    input_grad_ms: tuple[float, ...] | None = None
    weight_grad_ms: tuple[float, ...] | None = None
    stash_bytes: tuple[int, ...] | None = None
    param_bytes: tuple[int, ...] | None = None
    output_bytes: tuple[int, ...] | None = None
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for column in fields(self):
            values = getattr(self, column.name)
            if values is None:
                continue
            object.__setattr__(self, column.name, tuple(values))
            if len(values) != len(self):
                raise ValueError(f"{column.name} has {len(values)} values for {len(self)} layers")
            for layer, value in enumerate(values if column.name != "names" else ()):
                check_amount(f"{column.name}[{layer}]", value)
        if not len(self):
            raise ValueError("a profile needs at least one layer")

    @classmethod
    def from_frame(cls, frame: "pd.DataFrame") -> Self:
        """Return the profile of a table with one row a layer.

        Columns: `forward_ms`, `backward_ms` or `input_grad_ms` and `weight_grad_ms`,
        `stash_bytes`, `param_bytes`, `output_bytes`, `layer` (its name); the aliases `F_ms`,
        `B_ms`, `B_input_ms`, `W_ms`, `act_bytes`, `out_bytes` are taken too, other columns of
        text are passed over.

        Raises
        ------
        ValueError
            If there is no forward column, a column is given twice or holds no numbers, or an
            unknown column holds numbers.
        """
        columns: dict[str, Any] = {}
        for given in map(str, frame.columns):
            name = ALIASES.get(given, given)
            if name in columns:
                raise ValueError(f"column {given!r} gives {name} a second time")
            if name == "layer":
                columns["names"] = tuple(map(str, frame[given]))
            elif name in COST_FIELDS.values():
                columns[name] = tuple(_numbers(frame[given], given).tolist())
            elif name in ("stash_bytes", "param_bytes", "output_bytes"):
                columns[name] = _whole_numbers(_numbers(frame[given], given), given)
            elif np.issubdtype(np.asarray(frame[given]).dtype, np.number):
                known = sorted({*COST_FIELDS.values(), *ALIASES, *ALIASES.values(), "param_bytes"})
                raise ValueError(f"unknown column {given!r}; known: layer, {', '.join(known)}")
        if "forward_ms" not in columns:
            raise ValueError("there is no column forward_ms (or F_ms)")
        return cls(**columns)

    def __len__(self) -> int:
        return len(self.forward_ms)

    def total_ms(self) -> npt.NDArray[np.float64]:
        """Return the time of one micro-batch's forward and backward of every layer [ms]."""
        total = np.zeros(len(self))
        for name in COST_FIELDS.values():
            if getattr(self, name) is not None:
                total += getattr(self, name)
        return total

    def split(self, counts: Sequence[int], **options: Any) -> Pipeline:
        """Return the pipeline whose stage s holds the next counts[s] layers.

        Costs and bytes add up; a stage sends what its last layer puts out, and a stage without
        layers hands on what it got.

        Parameters
        ----------
        counts
            Number of layers of every stage; they sum to the number of layers.
        options
            Handed to `Pipeline.from_costs`: latency_ms, bandwidth_gb_s, speed, title, ...

        Raises
        ------
        ValueError
            If the counts lose or repeat a layer.

        Examples
        --------
        >>> profile = LayerProfile(forward_ms=(1.0,) * 7, backward_ms=(2.0,) * 7)
        >>> print(profile.split([4, 3]))
        pipeline: 2 stages on 2 ranks (linear)
        stage  rank  name  forward_ms  backward_ms
            0     0  0..3           4            8
            1     1  4..6           3            6
        """
        bounds = list(_bounds(counts, len(self)))
        columns: dict[str, Any] = {"stages": len(bounds)}
        for argument, name in (
            ("forward", "forward_ms"),
            ("backward", "backward_ms"),
            ("input_grad", "input_grad_ms"),
            ("weight_grad", "weight_grad_ms"),
            ("stash_bytes", "stash_bytes"),
            ("param_bytes", "param_bytes"),
        ):
            values = getattr(self, name)
            if values is not None:
                columns[argument] = [sum(values[first:last]) for first, last in bounds]
        if self.output_bytes is not None:
            columns["output_bytes"] = [
                self.output_bytes[last - 1] if last else 0 for _, last in bounds
            ]
        names = self.names or tuple(map(str, range(len(self))))
        columns["names"] = [_run_name(names[first:last]) for first, last in bounds]
        return Pipeline.from_costs(**(columns | options))


def _bounds(counts: Sequence[int], layers: int) -> Iterator[tuple[int, int]]:
    counts = [index(count) for count in counts]
    if any(count < 0 for count in counts) or not counts:
        raise ValueError(f"split {counts}: the number of layers of a stage is at least 0")
    if sum(counts) != layers:
        lost = layers - sum(counts)
        fault = f"{lost} would be lost" if lost > 0 else f"{-lost} would be there twice"
        raise ValueError(
            f"split {counts} places {sum(counts)} layers, but the profile has {layers}: {fault}"
        )
    ends = list(accumulate(counts))
    return zip([0, *ends[:-1]], ends, strict=True)


def _run_name(names: Sequence[str]) -> str:
    if len(names) <= 1:
        return names[0] if names else "(none)"
    return f"{names[0]}..{names[-1]}"


def _numbers(column: Any, name: str) -> npt.NDArray[np.float64]:
    try:
        return np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"column {name!r}: {error}") from None


def _whole_numbers(values: npt.NDArray[np.float64], name: str) -> tuple[int, ...]:
    fractional = values != np.floor(values)
    if fractional.any():
        row = int(np.argmax(fractional))
        raise ValueError(f"column {name!r}, row {row}: {values[row]} is not a whole number")
    return tuple(int(value) for value in values)
