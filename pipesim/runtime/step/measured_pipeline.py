"""The pipeline with the measured costs of a real step, for the simulator."""

from collections.abc import Sequence

import numpy as np
from torch import nn

from pipesim.base.ops import Kind
from pipesim.pipeline.pipeline import Pipeline
from pipesim.runtime.step.execution import Measured
from pipesim.schedules.order.schedule import Schedule


def measured_pipeline(
    schedule: Schedule, stages: Sequence[nn.Module], measured: Measured, counted: bool
) -> Pipeline:
    """Return the pipeline with the measured costs of a step, one a stage and micro-batch.

    Transfers take no time: in one process nothing is sent. Bytes are those of the largest
    micro-batch. Where a schedule has whole and split backwards, a whole one goes as I, and its W
    takes no time. Activations have bytes where they were `counted`.
    """
    times, grown = measured.times, measured.grown * int(counted)
    # If some micro-batches rebuild, take F's bytes from these: the others keep more in F.
    rebuilt = grown[Kind.R]
    alike = (rebuilt > 0) | ~rebuilt.any(axis=1, keepdims=True)
    stash_bytes = np.where(alike, grown[Kind.F], 0).max(axis=1)
    rebuilt_bytes = rebuilt.max(axis=1)
    left = -(rebuilt_bytes + grown[Kind.I].max(axis=1))  # what is there after I stays until W
    backward = {}
    if Kind.W in schedule.kinds:
        backward = {"input_grad": times[Kind.B] + times[Kind.I], "weight_grad": times[Kind.W]}
    elif Kind.B in schedule.kinds:
        backward = {"backward": times[Kind.B]}
    return Pipeline.from_costs(
        times[Kind.F],
        **backward,
        recompute_ms=times[Kind.R] if times[Kind.R].any() else 0.0,
        placement=schedule.placement,
        stash_bytes=stash_bytes,
        rebuilt_bytes=rebuilt_bytes,
        input_grad_frees_bytes=left if Kind.I in schedule.kinds else 0,
        output_bytes=measured.output_bytes,
        param_bytes=[sum(p.nbytes for p in stage.parameters()) for stage in stages],
        grad_bytes=[
            sum(p.nbytes for p in stage.parameters() if p.requires_grad) for stage in stages
        ],
        source="measured",
    )
