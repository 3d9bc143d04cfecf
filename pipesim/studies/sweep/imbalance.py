"""The axis `imbalance`: stages that cost more or less than the config says, all kinds alike.

    {stage = 3, factor = [1.0, 1.5, 2.0]}          F, B, I and W of one stage times a factor
    {spread = [0.0, 0.1, 0.3], draws = 100}        of every stage times a random factor

A random factor has mean 1 and the spread as its coefficient of variation (standard deviation /
mean), by one of two laws:

    lognormal   exp(sigma z - sigma^2 / 2), z standard normal, sigma^2 = ln(1 + spread^2)
    uniform     1 + spread sqrt(3) u, u uniform between -1 and 1; spread up to 1 / sqrt(3)

Then all factors of a draw are divided by their mean, weighted by the work of the stages (F and
the backward, the mean over micro-batches): the total work stays what it is, and nothing but the
imbalance changes. z and u depend on the seed and the number of the draw alone, so that a draw has
the same pattern at every spread and with every other key.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pipesim.base.types import FloatArray
from pipesim.config.axes import Imbalance
from pipesim.pipeline.components import COST_FIELDS
from pipesim.pipeline.pipeline import Pipeline

STAGE, FACTOR = "imbalance.stage", "imbalance.factor"
SPREAD, DRAW = "imbalance.spread", "imbalance.draw"


def stage_factors(axis: Imbalance, point: Mapping[str, Any], work: Sequence[float]) -> FloatArray:
    """Return the factor on the costs of every stage at one point of a sweep, array (stages,).

    Parameters
    ----------
    axis
        The axis, for its law and its seed.
    point
        The values of its columns.
    work
        Work of every stage, as from `stage_work`.

    Raises
    ------
    ValueError
        If there is no such stage.

    Examples
    --------
    >>> axis = Imbalance(spreads=(0.5,), draws=2, seed=1)
    >>> factors = stage_factors(axis, {SPREAD: 0.5, DRAW: 0}, work=[3, 3, 3, 6])
    >>> factors.round(3).tolist(), round(float(factors @ [3, 3, 3, 6]), 9)
    ([1.201, 1.504, 1.193, 0.551], 15.0)
    """
    stages = len(work)
    factors = np.ones(stages)
    if STAGE in point:
        stage = point[STAGE]
        if not 0 <= stage < stages:
            raise ValueError(f"{STAGE} = {stage}: stages go from 0 to {stages - 1}")
        factors[stage] = point[FACTOR]
        return factors
    random = np.random.default_rng(np.random.SeedSequence((axis.seed, point[DRAW])))
    spread = point[SPREAD]
    if axis.law == "uniform":
        factors += spread * math.sqrt(3) * random.uniform(-1.0, 1.0, stages)
    else:
        sigma = math.sqrt(math.log1p(spread**2))
        factors = np.exp(sigma * random.standard_normal(stages) - sigma**2 / 2)
    total = np.sum(work)
    return factors * (total / np.sum(factors * work)) if total > 0 else factors


def stage_work(pipe: Pipeline) -> list[float]:
    """Return the work of every stage: mean F plus backward of a micro-batch [ms]."""
    costs = [[getattr(stage, name) for name in COST_FIELDS.values()] for stage in pipe.stages]
    return [sum(float(np.mean(cost)) for cost in row if cost is not None) for row in costs]


def scaled(pipe: Pipeline, factors: Sequence[float] | FloatArray) -> Pipeline:
    """Return a pipeline with all costs of every stage times its factor, overlapped pairs too.

    Raises
    ------
    ValueError
        If a cost gets too large.

    Examples
    --------
    >>> pipe = Pipeline.from_costs(forward=[1, 1], backward=[2, 2])
    >>> scaled(pipe, [1, 1.5]).stages[1].backward_ms
    3.0
    """

    def times(cost: Any, factor: float) -> Any:
        if cost is None:
            return None
        if isinstance(cost, tuple):
            return tuple(value * factor for value in cost)
        return cost * factor

    names = (*COST_FIELDS.values(), "overlap_ms")
    stages = tuple(
        replace(stage, **{name: times(getattr(stage, name), float(factor)) for name in names})
        for stage, factor in zip(pipe.stages, factors, strict=True)
    )
    return replace(pipe, stages=stages)
