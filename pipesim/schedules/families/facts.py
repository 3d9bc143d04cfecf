"""The record of what is known of a schedule by name; each stands beside its builder."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pipesim.schedules.closed_forms import ClosedForm
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
    closed_form
        The bubble fraction of equal stages without transfers; None where no formula is known.
    bubble_note
        What is known of the bubble instead, as text.
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
    closed_form: ClosedForm | None = None
    bubble_note: str = "-"
    source: str
    by_cost: bool = False

    @property
    def options(self) -> Mapping[str, Any]:
        """The names of the options that it takes, with their defaults."""
        parameters = list(inspect.signature(self.build).parameters.values())[2:]
        own = {p.name: p.default for p in parameters if p.name != "pipeline"}
        return {"chunks": 2, **own} if self.chunks is None else own

    @property
    def bubble(self) -> str:
        """The bubble of equal stages in one line: the closed form and its range, or the note."""
        form = self.closed_form
        if form is None:
            return self.bubble_note
        return f"{form.formula}; {form.valid}" if form.valid else form.formula
