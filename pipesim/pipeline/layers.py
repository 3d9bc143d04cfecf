"""Measured or configured costs of layers, and cutting them into stages."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import index
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from pipesim.base.checks import check_amount, check_size
from pipesim.base.text import text_table
from pipesim.pipeline.components import COST_FIELDS, check_backward
from pipesim.pipeline.layer_table import AMOUNTS, SIZES, profile_columns
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.recompute import recomputing_columns

if TYPE_CHECKING:
    import pandas as pd


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
    recompute_ms
        Time to rebuild activations before the backward [ms]: it adds to the backward.
    selective_ms
        What `recompute_ms` is where only a part is rebuilt: see `recompute`.
    stash_bytes
        Kept from forward to backward.
    wgrad_stash_bytes
        What of it, or instead of it, is kept from input-gradient to weight-gradient part; by
        default all of it.
    rebuilt_bytes
        Held beside the stash while the backward, or its input-gradient part, runs.
    selective_stash_bytes
        What `stash_bytes` is where only a part is rebuilt.
    first_stash_bytes, last_stash_bytes
        What a stage keeps more if the layer is its first: its input, where the layer does not need
        it; or its last: its output, where it does, and counts at the layer after it.
    param_bytes, output_bytes
        Sizes of the parameters, and of the activation handed on.
    source
        Where the numbers come from: shown with a pipeline made of them.
    names
        One a layer; by default their numbers.
    labels
        Further columns of text, such as the kind of layer: shown, and nothing depends on them.
    forward_gflop
        Floating-point operations of the forward, in 10^9: shown, and nothing depends on them.

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
    recompute_ms: tuple[float, ...] | None = None
    selective_ms: tuple[float, ...] | None = None
    stash_bytes: tuple[int, ...] | None = None
    wgrad_stash_bytes: tuple[int, ...] | None = None
    rebuilt_bytes: tuple[int, ...] | None = None
    selective_stash_bytes: tuple[int, ...] | None = None
    first_stash_bytes: tuple[int, ...] | None = None
    last_stash_bytes: tuple[int, ...] | None = None
    param_bytes: tuple[int, ...] | None = None
    output_bytes: tuple[int, ...] | None = None
    names: tuple[str, ...] | None = None
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    source: str = ""
    forward_gflop: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in (*AMOUNTS, *SIZES, "names"):
            values = getattr(self, name)
            if values is not None:
                object.__setattr__(self, name, tuple(values))
        if not len(self):
            raise ValueError("a profile needs at least one layer")
        for name, values in self.columns().items():
            if len(values) != len(self):
                raise ValueError(f"{name} has {len(values)} values for {len(self)} layers")
            check = check_amount if name in AMOUNTS else check_size
            for layer, value in enumerate(values if name in (*AMOUNTS, *SIZES) else ()):
                check(f"{name}[{layer}]", value)
        check_backward(self.backward_ms, self.input_grad_ms, self.weight_grad_ms)

    def columns(self) -> dict[str, tuple[Any, ...]]:
        """Return what is known of the layers by column: `layer`, labels, costs and bytes."""
        names = self.names or tuple(map(str, range(len(self))))
        columns: dict[str, tuple[Any, ...]] = {"layer": names, **self.labels}
        for name in (*AMOUNTS, *SIZES):
            if getattr(self, name) is not None:
                columns[name] = getattr(self, name)
        return columns

    def __str__(self) -> str:
        columns = self.columns()
        cells = {
            name: [f"{x:g}" if name in AMOUNTS else str(x) for x in values]
            for name, values in columns.items()
        }
        source = f"\nsource: {self.source}" if self.source else ""
        return text_table(cells, left=("layer", *self.labels)) + source

    @classmethod
    def from_frame(cls, frame: "pd.DataFrame") -> Self:
        """Return the profile of a table with one row a layer.

        Columns, named as the parameters of the class; `layer` is its name. The aliases `F_ms`,
        `B_ms`, `B_input_ms`, `W_ms`, `act_bytes`, `out_bytes` are taken too; other columns of
        text are kept as labels.

        Raises
        ------
        ValueError
            With every fault, a line each, by column and row: a cell that holds no amount, a
            column that is missing, given twice, or of numbers and unknown.
        """
        columns, labels = profile_columns(frame)
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

    def recompute(
        self,
        mode: str,
        layers: int | Iterable[int] | None = None,
        *,
        time_share: float | None = None,
        kept_share: float | None = None,
    ) -> Self:
        """Return the profile in which some layers rebuild, before the backward, what they drop.

        A layer drops nothing ("none"), all but its input ("full", in the time of its forward), or
        a part ("selective": it keeps `selective_stash_bytes` and takes `selective_ms`). A mode
        takes the place of one before. Layers that follow each other on a stage rebuild one by
        one, each just before its own backward; W needs what it needs without recompute.

        Parameters
        ----------
        mode
            "none", "selective" or "full".
        layers
            Their numbers; by default all.
        time_share, kept_share
            Instead of what the mode says: the time to rebuild as a share of the forward's, and
            what is kept as a share of all there is to keep.

        Raises
        ------
        ValueError
            If the mode is unknown, there is no such layer, a share is not from 0 to 1, or the
            profile does not give what the mode goes by.

        Examples
        --------
        >>> profile = LayerProfile([1, 1], [2, 2], stash_bytes=[50, 50], output_bytes=[5, 5])
        >>> print(profile.recompute("full", layers=[1]))
        layer  forward_ms  backward_ms  recompute_ms  stash_bytes  rebuilt_bytes  output_bytes
        0               1            2             0           50              0             5
        1               1            2             1            5             45             5
        """
        return replace(
            self, **recomputing_columns(self.columns(), mode, layers, time_share, kept_share)
        )

    def split(self, counts: Sequence[int], **options: Any) -> Pipeline:
        """Return the pipeline whose stage s holds the next counts[s] layers.

        Costs and bytes add up, but for what is rebuilt: one layer after the other, the largest
        counts. To the stash comes what the first and the last layer keep as such. A stage sends
        what its last layer puts out, and one without layers hands on what it got.

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
            ("recompute_ms", "recompute_ms"),
            ("param_bytes", "param_bytes"),
        ):
            values = getattr(self, name)
            if values is not None:
                columns[argument] = [sum(values[first:last]) for first, last in bounds]
        if self.stash_bytes is not None:
            columns["stash_bytes"] = [
                sum(self.stash_bytes[first:last]) + self._edge_bytes(first, last)
                for first, last in bounds
            ]
        if self.rebuilt_bytes is not None:  # one layer after the other
            columns["rebuilt_bytes"] = [
                max(self.rebuilt_bytes[first:last], default=0) for first, last in bounds
            ]
        if self.wgrad_stash_bytes is not None:
            stash = self.stash_bytes or (0,) * len(self)
            freed = [
                kept - later for kept, later in zip(stash, self.wgrad_stash_bytes, strict=True)
            ]
            columns["input_grad_frees_bytes"] = [sum(freed[first:last]) for first, last in bounds]
        if self.output_bytes is not None:
            columns["output_bytes"] = [
                self.output_bytes[last - 1] if last else 0 for _, last in bounds
            ]
        names = self.columns()["layer"]
        columns["names"] = [_run_name(names[first:last]) for first, last in bounds]
        columns["source"] = self.source
        return Pipeline.from_costs(**(columns | options))

    def _edge_bytes(self, first: int, last: int) -> int:
        """Return what a stage of layers first..last-1 keeps beside what its layers do."""
        if first == last:
            return 0
        rebuilds = self.rebuilt_bytes is not None and self.rebuilt_bytes[first] > 0
        begin = 0 if self.first_stash_bytes is None or rebuilds else self.first_stash_bytes[first]
        return begin + (0 if self.last_stash_bytes is None else self.last_stash_bytes[last - 1])


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
