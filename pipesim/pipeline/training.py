"""How a pipeline is trained: replicas, what a parameter takes besides itself, the step's end.

Sizes: a stage's `param_bytes` are its parameters as they compute. Their gradients and the state
of the optimizer go by how many bytes each parameter takes for them. Of d replicas, ZeRO lets each
hold a part only:

    zero   0       1               2                       3
    split  -       optimizer       optimizer, gradients    optimizer, gradients, parameters

Source: Rajbhandari et al., ZeRO, 2020. Adam with 16-bit parameters and gradients keeps 12 bytes a
parameter: a 32-bit copy, momentum and variance.
"""

from dataclasses import dataclass, replace
from math import ceil
from typing import Any, NamedTuple

from pipesim.base.checks import (
    LEAST_RATE,
    MOST_MS,
    check_amount,
    check_count,
    check_size,
    is_number,
)
from pipesim.pipeline.links import Link
from pipesim.pipeline.pipeline import Pipeline

ZERO_LEVELS = (0, 1, 2, 3)


class State(NamedTuple):
    """Bytes that a rank holds all the time."""

    params: int
    grads: int
    optimizer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How a pipeline is trained.

    Parameters
    ----------
    replicas
        Number d of copies of the whole pipeline, each with its own micro-batches.
    zero
        0, 1, 2 or 3: what the replicas split among them (see above).
    bytes_per_param, grad_bytes_per_param, optimizer_bytes_per_param
        Bytes of a parameter as it computes, of its gradient, of what the optimizer keeps for it.
    latency_ms, bandwidth_gb_s
        Latency and bandwidth of the network between replicas; by default it takes no time.
    overlap
        Whether a stage's gradients are reduced while its rank computes on, or when it is through.
    optimizer_ms
        Of the optimizer's step on every stage, whole: a number, or one a stage. Replicas that
        split its state share the time.
    tied_bytes
        Gradient of an embedding that the first and the last stage share, 0 where none is tied.
    barrier
        Whether all optimizers wait for all gradients, as clipping by the global norm makes them.
    speed
        Of the replicas, as a factor on their devices: a number, one a replica, or a row of one a
        rank for each replica.

    Raises
    ------
    ValueError
        If a value is out of range.
    """

    replicas: int = 1
    zero: int = 0
    bytes_per_param: float = 2.0
    grad_bytes_per_param: float = 2.0
    optimizer_bytes_per_param: float = 12.0
    latency_ms: float = 0.0
    bandwidth_gb_s: float | None = None
    overlap: bool = True
    optimizer_ms: float | tuple[float, ...] = 0.0
    tied_bytes: int = 0
    barrier: bool = True
    speed: float | tuple[float, ...] | tuple[tuple[float, ...], ...] = 1.0

    def __post_init__(self) -> None:
        for name in ("optimizer_ms", "speed"):
            object.__setattr__(self, name, _as_tuple(getattr(self, name)))
        check_count("replicas", self.replicas)
        if self.zero not in ZERO_LEVELS or isinstance(self.zero, bool):
            raise ValueError(f"zero = {self.zero!r} is none of 0, 1, 2, 3")
        for name in ("grad_bytes_per_param", "optimizer_bytes_per_param"):
            check_amount(name, getattr(self, name))
        check_size("tied_bytes", self.tied_bytes)
        each = self.bytes_per_param
        if not (is_number(each) and LEAST_RATE <= each <= MOST_MS):
            raise ValueError(f"bytes_per_param = {each!r} is not a number from 10^-9 to 10^15")
        Link(self.latency_ms, self.bandwidth_gb_s)  # checks both
        optimizer = self.optimizer_ms
        for value in optimizer if isinstance(optimizer, tuple) else (optimizer,):
            check_amount("optimizer_ms", value)
        self.replica_speeds(1)

    def replica_speeds(self, ranks: int) -> tuple[tuple[float, ...], ...]:
        """Return the factor on the speed of every rank's device, one row a replica.

        Raises
        ------
        ValueError
            If there are not as many as replicas, or a row has not as many as ranks.
        """
        rows: tuple[Any, ...] = (
            self.speed if isinstance(self.speed, tuple) else (self.speed,) * self.replicas
        )
        if len(rows) != self.replicas:
            raise ValueError(f"speed has {len(rows)} entries for {self.replicas} replicas")
        for row in rows:
            for value in row if isinstance(row, tuple) else (row,):
                if not (is_number(value) and LEAST_RATE <= value <= MOST_MS):
                    raise ValueError(f"speed = {value!r} is not a number from 10^-9 to 10^15")
        return tuple(row if isinstance(row, tuple) else (row,) * ranks for row in rows)

    def replica(self, pipe: Pipeline, number: int) -> Pipeline:
        """Return the pipeline of one replica: its devices as fast as `speed` has it.

        Raises
        ------
        ValueError
            If there is no speed for every rank.
        """
        factors = self.replica_speeds(pipe.ranks)[number]
        if len(factors) != pipe.ranks:
            raise ValueError(
                f"speed of replica {number} has {len(factors)} values for {pipe.ranks} ranks"
            )
        devices = tuple(
            replace(device, speed=device.speed * factor)
            for device, factor in zip(pipe.devices, factors, strict=True)
        )
        return replace(pipe, devices=devices)

    def holding(self, pipe: Pipeline) -> Pipeline:
        """Return the pipeline with what its ranks hold of parameters, gradients and optimizer.

        Its `param_bytes` are taken as the whole parameters of each stage.

        Examples
        --------
        >>> pipe = Pipeline.from_costs([1.0], [2.0], param_bytes=1000)
        >>> stage = Training(replicas=4, zero=1).holding(pipe).stages[0]
        >>> stage.param_bytes, stage.grad_bytes, stage.optimizer_bytes
        (1000, 1000, 1500)
        """
        stages = []
        for stage in pipe.stages:
            params, grads, optimizer = self.state(stage.param_bytes)
            stages.append(
                replace(stage, param_bytes=params, grad_bytes=grads, optimizer_bytes=optimizer)
            )
        return replace(pipe, stages=tuple(stages))

    def state(self, param_bytes: int) -> State:
        """Return the bytes that one replica holds for parameters of this size, rounded up."""

        def part(size: float, from_level: int) -> int:
            return ceil(size / self.replicas if self.zero >= from_level else size)

        return State(
            params=part(param_bytes, 3),
            grads=part(self.grad_bytes(param_bytes), 2),
            optimizer=part(self._optimizer_bytes(param_bytes), 1),
        )

    def grad_bytes(self, param_bytes: int) -> float:
        """Return the bytes of the gradients of parameters of this size."""
        return param_bytes * self.grad_bytes_per_param / self.bytes_per_param

    def _optimizer_bytes(self, param_bytes: int) -> float:
        return param_bytes * self.optimizer_bytes_per_param / self.bytes_per_param

    def all_reduce_ms(self, size_bytes: float, copies: int = 1) -> float:
        """Return the time of a ring all-reduce over the replicas [ms], 0 for one replica.

        2(d-1)/d x bytes / bandwidth + latency. Where each replica has two copies of a stage, one
        for either direction of flow, d counts them both.
        """
        return self._ring_ms(size_bytes, 2, copies)

    def reduce_scatter_ms(self, size_bytes: float, copies: int = 1) -> float:
        """Return the time of a ring reduce-scatter, or all-gather, over the replicas [ms]."""
        return self._ring_ms(size_bytes, 1, copies)

    def _ring_ms(self, size_bytes: float, rounds: int, copies: int) -> float:
        d = self.replicas * copies
        if d == 1:
            return 0.0
        link = Link(self.latency_ms, self.bandwidth_gb_s)
        return link.message_ms(rounds * (d - 1) / d * size_bytes)


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list | tuple) else value
