"""What ranks hold under one schedule in K pipelines: it follows from sizes, whatever the costs."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from pipesim.base.types import FloatArray
from pipesim.engine.op_costs import check_fit
from pipesim.memory import peak_memory_bytes
from pipesim.memory_limit import ops_over_limit
from pipesim.pipeline.components import SIZE_FIELDS
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.variants import bases
from pipesim.schedules.order.schedule import Schedule

T = TypeVar("T")


def peak_memory(schedule: Schedule, pipelines: Sequence[Pipeline]) -> FloatArray:
    """Return the most bytes that any rank holds at once, array (K,)."""
    peaks = _each(pipelines, lambda pipe: float(peak_memory_bytes(schedule, pipe).max()))
    return np.broadcast_to(np.array(peaks), (len(pipelines),))


def first_over_limit(schedule: Schedule, pipelines: Sequence[Pipeline]) -> int | None:
    """Return the number of the first pipeline with a rank over its device's memory, or None.

    Raises
    ------
    ScheduleError
        If the schedule does not fit the pipelines.
    """
    for pipe in bases(pipelines):
        check_fit(schedule, pipe)
    over = _each(pipelines, lambda pipe: bool(ops_over_limit(schedule, pipe)))
    return over.index(True) if True in over else None


def _each(pipelines: Sequence[Pipeline], of: Callable[[Pipeline], T]) -> list[T]:
    """Return what follows from the sizes of each pipeline, worked out once for the same sizes."""
    known: dict[Any, T] = {}
    found = []
    for pipe in bases(pipelines):
        names = (*SIZE_FIELDS, "input_grad_frees_bytes")
        sizes = [getattr(stage, name) for stage in pipe.stages for name in names]
        key = (*sizes, *(device.memory_bytes for device in pipe.devices))
        if key not in known:
            known[key] = of(pipe)
        found.append(known[key])
    return found
