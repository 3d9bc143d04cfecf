"""Pipelines that differ in nothing but what their stages cost, kept as arrays."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np

from pipesim.base.types import FloatArray
from pipesim.pipeline.components import COST_FIELDS
from pipesim.pipeline.pipeline import Pipeline


@dataclass(frozen=True, slots=True, eq=False)
class CostVariants(Sequence[Pipeline]):
    """K pipelines as a base and the costs to put into it; each is made when it is asked for.

    A Pipeline checks and keeps every stage as an object, which takes longer than simulating it
    among thousands. Here nothing is checked: `costs` must be amounts that stages take.

    Parameters
    ----------
    base
        Everything that the pipelines have in common.
    costs
        Field of a stage, such as "forward_ms" -> its values [ms], array (K, stages); the fields
        that `base` has, and one value for all micro-batches.

    Examples
    --------
    >>> import numpy as np
    >>> base = Pipeline.from_costs(forward=[1, 1], backward=[2, 2])
    >>> variants = CostVariants(base, {"forward_ms": np.array([[1.0, 1.0], [1.0, 3.0]])})
    >>> len(variants), variants[1].stages[1].forward_ms, variants[1].stages[1].backward_ms
    (2, 3.0, 2.0)
    """

    base: Pipeline
    costs: Mapping[str, FloatArray]

    def field(self, name: str) -> FloatArray | None:
        """Return the values of a cost [ms], array (K, stages); None if a stage has none."""
        if name in self.costs:
            return self.costs[name]
        own = [getattr(stage, name) for stage in self.base.stages]
        if any(value is None for value in own):
            return None
        return np.broadcast_to(np.array(own, dtype=np.float64), (len(self), len(own)))

    def __len__(self) -> int:
        return len(next(iter(self.costs.values())))

    @overload
    def __getitem__(self, number: int) -> Pipeline: ...
    @overload
    def __getitem__(self, number: slice) -> "CostVariants": ...
    def __getitem__(self, number: int | slice) -> "Pipeline | CostVariants":
        if isinstance(number, slice):
            return CostVariants(self.base, {name: c[number] for name, c in self.costs.items()})
        rows = {name: values[number].tolist() for name, values in self.costs.items()}
        stages = tuple(
            replace(stage, **{name: row[place] for name, row in rows.items()})
            for place, stage in enumerate(self.base.stages)
        )
        return replace(self.base, stages=stages)

    def __iter__(self) -> Iterator[Pipeline]:
        return (self[number] for number in range(len(self)))


def cost_fields(pipe: Pipeline) -> tuple[str, ...]:
    """Return the costs that every stage of a pipeline has, by the names of their fields.

    Examples
    --------
    >>> cost_fields(Pipeline.from_costs(forward=[1, 1], backward=[2, 2]))
    ('forward_ms', 'backward_ms', 'recompute_ms')
    """
    return tuple(
        name
        for name in COST_FIELDS.values()
        if all(getattr(stage, name) is not None for stage in pipe.stages)
    )


def bases(pipelines: Sequence[Pipeline]) -> Sequence[Pipeline]:
    """Return the pipelines, or of variants what they have in common but for their costs."""
    return (pipelines.base,) if isinstance(pipelines, CostVariants) else pipelines
