"""The record of what is known of a schedule by name; each stands beside its builder."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pipesim.schedules.order.schedule import Schedule

Builder: TypeAlias = Callable[..., Schedule]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What is known of a schedule by name.

    Parameters
    ----------
    build
        (placement, microbatches, **options) -> Schedule; with `pipeline=` too if `by_cost`.
    summary
        What it does, in a few words.
    placement
        Name of the placement that it lives on.
    chunks
        Stages a rank; None: any number, the option `chunks`, by default 2.
    backward
        Which ops its backward is made of: "none", "B", "I, W" or "B, I, W".
    warm_up, peak
        Forwards before the steady state, and micro-batches held, on rank r; as text.
    formula
        Bubble fraction with equal stages and no transfers, with its range; as text.
    bubble
        The same of a schedule, None outside of that range or where none is known.
    source
        Where it was published.
    by_cost
        Whether the order depends on the costs of the pipeline.
    """

    build: Builder
    summary: str
    placement: str = "linear"
    chunks: int | None = 1
    backward: str = "B"
    warm_up: str
    peak: str
    formula: str
    bubble: Callable[[Schedule], float | None] = lambda schedule: None
    source: str
    by_cost: bool = False

    @property
    def options(self) -> Mapping[str, Any]:
        """The names of the options that it takes, with their defaults."""
        parameters = list(inspect.signature(self.build).parameters.values())[2:]
        own = {p.name: p.default for p in parameters if p.name != "pipeline"}
        return {"chunks": 2, **own} if self.chunks is None else own
