"""What a pipeline is made of: stages, and the devices that run them.

The units are those of `pipeline.py`: milliseconds, bytes, 10^9 bytes a second.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np

from pipesim.base.checks import LEAST_RATE, MOST_BYTES, MOST_MS, check_amount, check_size, is_number
from pipesim.base.ops import Kind
from pipesim.base.text import span_text
from pipesim.base.types import FloatArray
from pipesim.pipeline.broadcast import per_item, per_stage_costs
from pipesim.pipeline.costs import kind_cost

# The cost of one kind of op on one stage: one number, or one a micro-batch.
Cost: TypeAlias = float | tuple[float, ...]

COST_FIELDS = {
    Kind.F: "forward_ms",
    Kind.B: "backward_ms",
    Kind.I: "input_grad_ms",
    Kind.W: "weight_grad_ms",
    Kind.R: "recompute_ms",
}
SIZE_FIELDS = (
    "stash_bytes",
    "rebuilt_bytes",
    "param_bytes",
    "grad_bytes",
    "optimizer_bytes",
    "output_bytes",
)


@dataclass(frozen=True, slots=True)
class Stage:
    """A contiguous run of layers, and what one micro-batch costs on it.

    Parameters
    ----------
    forward_ms
        Time of F [ms]: a number, or one a micro-batch.
    backward_ms
        Time of the whole backward B [ms].
    input_grad_ms, weight_grad_ms
        Instead of `backward_ms`, its two parts I and W [ms]; B then takes their sum.
    recompute_ms
        Time to rebuild, before B or I, what F has not kept [ms]: it adds to them, or is what R
        takes in a schedule with such ops.
    stash_bytes
        What one micro-batch keeps from its F until its backward has ended.
    rebuilt_bytes
        What is rebuilt, held beside the stash while B or I runs, or from R on.
    param_bytes, grad_bytes, optimizer_bytes
        Parameters of the stage, their gradients, the state of the optimizer: what its rank holds
        of them all the time.
    output_bytes
        The activation that F sends to the next stage; its gradient comes back as large.
    input_grad_frees_bytes
        The part of the stash that I frees already where the backward is split, W frees the rest;
        negative if I takes more than it frees.
    overlap_ms
        Time of a forward of this stage overlapped with a backward [ms]; None: see
        `Pipeline.overlap_factor`.
    name
        Shown in tables.

    Raises
    ------
    ValueError
        If a cost or size is negative, NaN or infinite, or the backward is given twice or half.
    """

    forward_ms: Cost
    backward_ms: Cost | None = None
    input_grad_ms: Cost | None = None
    weight_grad_ms: Cost | None = None
    recompute_ms: Cost = 0.0
    stash_bytes: int = 0
    rebuilt_bytes: int = 0
    param_bytes: int = 0
    grad_bytes: int = 0
    optimizer_bytes: int = 0
    output_bytes: int = 0
    input_grad_frees_bytes: int = 0
    overlap_ms: float | None = None
    name: str = ""

    def __post_init__(self) -> None:
        for cost_field in COST_FIELDS.values():
            cost = getattr(self, cost_field)
            for value in cost if isinstance(cost, tuple) else (cost,):
                if value is not None:
                    check_amount(cost_field, value)
        if self.overlap_ms is not None:
            check_amount("overlap_ms", self.overlap_ms)
        frees = self.input_grad_frees_bytes
        if not isinstance(frees, Integral) or abs(int(frees)) > MOST_BYTES:
            raise ValueError(f"input_grad_frees_bytes = {frees!r} is not a whole number to 10^15")
        for size_field in SIZE_FIELDS:
            check_size(size_field, getattr(self, size_field))
        check_backward(self.backward_ms, self.input_grad_ms, self.weight_grad_ms)

    def cost(self, kind: Kind, *, rebuilt: bool = False) -> FloatArray | None:
        """Return the cost of one kind of op [ms], array () or (m,); None if it is not given.

        B is the sum of I and W where these are given; B and I take the time to rebuild, too, if
        it has not been `rebuilt` by R.
        """
        return kind_cost(kind, self._given, rebuilt=rebuilt)

    def _given(self, kind: Kind) -> FloatArray | None:
        cost = getattr(self, COST_FIELDS[kind])
        return None if cost is None else np.asarray(cost, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Device:
    """What runs a rank: an op takes cost/speed + overhead_ms.

    Parameters
    ----------
    speed, overhead_ms
        How fast it computes, and what each op takes besides [ms].
    memory_bytes
        How much it can hold; None: any amount.

    Raises
    ------
    ValueError
        If the speed is not a number from 10^-9 to 10^15, the overhead not one from 0 on, or the
        memory not a whole number of bytes.
    """

    speed: float = 1.0
    overhead_ms: float = 0.0
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if not (is_number(self.speed) and LEAST_RATE <= self.speed <= MOST_MS):
            raise ValueError(f"speed = {self.speed!r} is not a number from 10^-9 to 10^15")
        check_amount("overhead_ms", self.overhead_ms)
        if self.memory_bytes is not None:
            check_size("memory_bytes", self.memory_bytes)


def broadcast_stages(
    count: int,
    costs: Mapping[str, Any],
    sizes: Mapping[str, Any],
    overlap_ms: Any,
    names: Sequence[str] | None,
) -> tuple[Stage, ...]:
    """Return stages from the values of their fields: one for all, or one a stage.

    Raises
    ------
    ValueError
        If a length is wrong, or a value is; the message names the stage.
    """
    columns = {name: per_stage_costs(name, value, count) for name, value in costs.items()}
    columns |= {name: per_item(name, value, count, "stages") for name, value in sizes.items()}
    columns["overlap_ms"] = [None] * count
    if overlap_ms is not None:
        columns["overlap_ms"] = per_item("overlap_ms", overlap_ms, count, "stages")
    columns["name"] = list(names) if names is not None else [""] * count
    if len(columns["name"]) != count:
        raise ValueError(f"names has {len(columns['name'])} entries for {count} stages")
    return tuple(
        _stage(number, dict(zip(columns, row, strict=True)))
        for number, row in enumerate(zip(*columns.values(), strict=True))
    )


def broadcast_devices(
    ranks: int, speed: Any, overhead_ms: Any, memory_bytes: Any
) -> tuple[Device, ...]:
    """Return the devices of ranks from their values: one for all, or one a rank.

    Raises
    ------
    ValueError
        If a length or a value is wrong.
    """
    speeds = per_item("speed", speed, ranks, "ranks")
    overheads = per_item("overhead_ms", overhead_ms, ranks, "ranks")
    memories: list[Any] = [None] * ranks
    if memory_bytes is not None:
        memories = per_item("memory_bytes", memory_bytes, ranks, "ranks")
    return tuple(map(Device, speeds, overheads, memories))


def _stage(number: int, values: Mapping[str, Any]) -> Stage:
    try:
        return Stage(**values)
    except ValueError as error:
        raise ValueError(f"stage {number}: {error}") from None


def check_backward(whole: object, input_grad: object, weight_grad: object) -> None:
    """Check that a backward is given whole, or in both its parts, or not at all.

    Raises
    ------
    ValueError
        If it is given twice or half.
    """
    if (input_grad is None) != (weight_grad is None):
        raise ValueError("input_grad_ms and weight_grad_ms go together: give both or none")
    if whole is not None and input_grad is not None:
        raise ValueError(
            "the backward is given twice: give backward_ms, "
            "or input_grad_ms and weight_grad_ms, not all three"
        )


def missing_cost(name: str, kind: Kind) -> str:
    """Return what to say where a schedule needs a cost that is not given."""
    if kind in (Kind.I, Kind.W):
        return f"{name} splits the backward: give input_grad_ms and weight_grad_ms of every stage"
    if kind == Kind.B:
        return (
            f"{name} runs backwards: give backward_ms, or input_grad_ms and weight_grad_ms, "
            "of every stage"
        )
    return f"{name} needs {COST_FIELDS[kind]} of every stage"


def merged_stage(stages: Sequence[Stage], first: int) -> Stage:
    """Return neighbouring stages as one: costs and sizes add up, the last one's output leaves.

    They rebuild what they have not kept one after the other: the largest counts.

    Parameters
    ----------
    stages
        In order.
    first
        The number of the first, for the name.
    """

    def total(name: str) -> Any:
        values = [getattr(stage, name) for stage in stages]
        if any(value is None for value in values):
            return None
        added = np.add.reduce([np.asarray(value) for value in np.broadcast_arrays(*values)])
        return tuple(added.tolist()) if added.ndim else added.item()

    names = [stage.name or str(first + place) for place, stage in enumerate(stages)]
    sizes = [name for name in SIZE_FIELDS if name not in ("rebuilt_bytes", "output_bytes")]
    more = ("input_grad_frees_bytes", "overlap_ms")
    return Stage(
        **{name: total(name) for name in (*COST_FIELDS.values(), *sizes, *more)},
        rebuilt_bytes=max(stage.rebuilt_bytes for stage in stages),
        output_bytes=stages[-1].output_bytes,
        name="+".join(names),
    )


def stage_columns(stages: Sequence[Stage]) -> dict[str, list[str]]:
    """Return the costs and sizes of stages as columns of text, those that any stage has."""
    columns = {}
    extra = ("input_grad_frees_bytes", "overlap_ms")
    for name in ("name", *COST_FIELDS.values(), *SIZE_FIELDS, *extra):
        values = [getattr(stage, name) for stage in stages]
        if name == "forward_ms" or any(value not in (None, 0, "") for value in values):
            columns[name] = [_cell(value) for value in values]
    return columns


def device_columns(devices: Sequence[Device]) -> dict[str, list[str]]:
    """Return the devices of stages as columns of text."""
    columns = {
        "speed": [f"{device.speed:g}" for device in devices],
        "overhead_ms": [f"{device.overhead_ms:g}" for device in devices],
    }
    if any(device.memory_bytes is not None for device in devices):
        columns["memory_bytes"] = [_cell(device.memory_bytes) for device in devices]
    return columns


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return span_text(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
