"""Measured or configured costs of layers, and cutting them into stages."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import index
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from pipesim.checks import check_amount
from pipesim.components import COST_FIELDS, SIZE_FIELDS, check_backward
from pipesim.pipeline import Pipeline
from pipesim.text_table import text_table

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
    labels
        Further columns of text, such as the kind of layer: shown, and nothing depends on them.

    Raises
    ------
    ValueError
        If a list has another length than `forward_ms`, a value is negative, NaN or infinite, or
        the backward is given twice or half.
    """

    forward_ms: tuple[float, ...]
    backward_ms: tuple[float, ...] | None = None
    input_grad_ms: tuple[float, ...] | None = None
    weight_grad_ms: tuple[float, ...] | None = None
    stash_bytes: tuple[int, ...] | None = None
    param_bytes: tuple[int, ...] | None = None
    output_bytes: tuple[int, ...] | None = None
    names: tuple[str, ...] | None = None
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in (*COST_FIELDS.values(), *SIZE_FIELDS, "names"):
            values = getattr(self, name)
            if values is not None:
                object.__setattr__(self, name, tuple(values))
        if not len(self):
            raise ValueError("a profile needs at least one layer")
        for name, values in self.columns().items():
            if len(values) != len(self):
                raise ValueError(f"{name} has {len(values)} values for {len(self)} layers")
            for layer, value in enumerate(values if name.endswith(("_ms", "_bytes")) else ()):
                check_amount(f"{name}[{layer}]", value)
        check_backward(self.backward_ms, self.input_grad_ms, self.weight_grad_ms)

    def columns(self) -> dict[str, tuple[Any, ...]]:
        """Return what is known of the layers by column: `layer`, labels, costs and bytes."""
        names = self.names or tuple(map(str, range(len(self))))
        columns: dict[str, tuple[Any, ...]] = {"layer": names, **self.labels}
        for name in (*COST_FIELDS.values(), *SIZE_FIELDS):
            if getattr(self, name) is not None:
                columns[name] = getattr(self, name)
        return columns

    def __str__(self) -> str:
        columns = self.columns()
        cells = {
            name: [f"{x:g}" if name.endswith("_ms") else str(x) for x in values]
            for name, values in columns.items()
        }
        return text_table(cells, left=("layer", *self.labels))

    @classmethod
    def from_frame(cls, frame: "pd.DataFrame") -> Self:
        """Return the profile of a table with one row a layer.

        Columns: `forward_ms`, `backward_ms` or `input_grad_ms` and `weight_grad_ms`,
        `stash_bytes`, `param_bytes`, `output_bytes`, `layer` (its name); the aliases `F_ms`,
        `B_ms`, `B_input_ms`, `W_ms`, `act_bytes`, `out_bytes` are taken too; other columns of
        text are kept as labels.

        Raises
        ------
        ValueError
            If there is no forward column, a column is given twice or holds no numbers, or an
            unknown column holds numbers.
        """
        columns: dict[str, Any] = {}
        labels: dict[str, tuple[str, ...]] = {}
        for given in map(str, frame.columns):
            name = ALIASES.get(given, given)
            if name in columns:
                raise ValueError(f"column {given!r} gives {name} a second time")
            if name == "layer":
                columns["names"] = tuple(map(str, frame[given]))
            elif name in COST_FIELDS.values():
                columns[name] = tuple(_numbers(frame[given], given).tolist())
            elif name in SIZE_FIELDS:
                columns[name] = _whole_numbers(_numbers(frame[given], given), given)
            elif np.issubdtype(np.asarray(frame[given]).dtype, np.number):
                known = ", ".join(["layer", *COST_FIELDS.values(), *SIZE_FIELDS, *ALIASES])
                raise ValueError(f"unknown column {given!r} of numbers; known: {known}")
            else:
                labels[name] = tuple(map(str, frame[given]))
        if "forward_ms" not in columns:
            raise ValueError("there is no column forward_ms (or F_ms)")
        return cls(**columns, labels=labels)

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
        names = self.columns()["layer"]
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
    fractional = ~np.isfinite(values) | (values != np.floor(values))
    if fractional.any():
        row = int(np.argmax(fractional))
        raise ValueError(f"column {name!r}, row {row}: {values[row]} is not a whole number")
    return tuple(int(value) for value in values)
