"""Sensitivity of the makespan to each cost: its exact derivatives, from one run.

Along a path the makespan is a sum of costs, and a cost counts as often as the path meets it. Among
all critical paths, the one that meets a cost least often decides what the step gains as the cost
gets smaller, for the others must get shorter, too; the one that meets it most often decides what
the step loses as the cost grows. The two differ exactly where paths tie.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipesim.base.ops import Kind
from pipesim.base.types import FloatArray, Int32Array, IntArray
from pipesim.engine.critical.critical_path import Criticality, critical_edges
from pipesim.engine.graph.marks import TRANSFER
from pipesim.engine.workload import Workload
from pipesim.pipeline.components import COST_FIELDS
from pipesim.pipeline.costs import on_device
from pipesim.pipeline.pipeline import Pipeline
from pipesim.schedules.order.schedule import Schedule

if TYPE_CHECKING:
    import pandas as pd

PER_CENT = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """A parameter of the makespan: its value, and the nodes whose costs depend on it.

    Parameters
    ----------
    name
        Its key in a config: `stages.forward_ms[3]`.
    value
        Its value; the mean of costs for each micro-batch.
    unit
        Unit of the derivative: by "ms", or by "1 %" of a speed.
    node, amount
        The nodes whose cost depends on it, and ms of each for a unit of it; arrays alike.
    """

    name: str
    value: float
    unit: str
    node: IntArray
    amount: FloatArray


def sensitivity_table(critical: Criticality, pipe: Pipeline, workload: Workload) -> "pd.DataFrame":
    """Return the derivatives of the makespan as a table, one row a parameter."""
    import pandas as pd

    found = parameters(critical, pipe, workload)
    derivatives = makespan_derivatives(critical, found)
    value = np.array([parameter.value for parameter in found])
    return pd.DataFrame(
        {
            "parameter": [parameter.name for parameter in found],
            "value": value,
            "unit": [parameter.unit for parameter in found],
            # A value of 0 cannot get smaller.
            "gain_ms": np.where(value > 0, derivatives[:, 0], 0.0),
            "loss_ms": derivatives[:, 1],
        }
    )


def makespan_derivatives(critical: Criticality, found: list[Parameter]) -> FloatArray:
    """Return the step's gain and loss for a unit of each parameter [ms], array (parameters, 2).

    Both are one-sided derivatives, which hold while the critical paths remain the longest.
    """
    from pipesim.engine.critical.kernels import least_and_most

    nodes, offsets, awaited = critical_edges(critical)
    place = np.full(len(critical.graph), -1)
    place[nodes] = np.arange(len(nodes))
    kept = [place[parameter.node] >= 0 for parameter in found]
    first = np.cumsum([0, *(int(which.sum()) for which in kept)])
    node = [place[p.node[which]] for p, which in zip(found, kept, strict=True)]
    amount = [p.amount[which] for p, which in zip(found, kept, strict=True)]
    return least_and_most(
        offsets,
        awaited,
        critical.ends[nodes],
        first,
        np.concatenate([*node, np.zeros(0, dtype=np.int64)]),
        np.concatenate([*amount, np.zeros(0)]),
    )


def parameters(critical: Criticality, pipe: Pipeline, workload: Workload) -> list[Parameter]:
    """Return the parameters: costs of the stages, speeds of the ranks, latencies of the links.

    Only links that a message of the run goes over have one.
    """
    schedule = critical.graph.program.order
    node_of_op = critical.node_of_op
    return [
        *_stage_costs(schedule, pipe, workload, node_of_op),
        *_speeds(schedule, pipe, workload, node_of_op),
        *_latencies(critical, pipe),
    ]


def _stage_costs(
    schedule: Schedule, pipe: Pipeline, workload: Workload, node_of_op: IntArray
) -> list[Parameter]:
    shares = _shares(schedule, pipe, workload)
    forward = _forward_of_pair(schedule, workload)
    own = np.array([stage.overlap_ms is not None for stage in pipe.stages])[schedule.stage[forward]]
    own &= forward >= 0
    rebuild = (Kind.R,) if schedule.separate_recompute else (Kind.B, Kind.I)
    parts = {
        "forward_ms": (Kind.F,),
        "backward_ms": (Kind.B,),
        "input_grad_ms": (Kind.B, Kind.I),
        "weight_grad_ms": (Kind.B, Kind.W),
        "recompute_ms": rebuild,
    }
    found = []
    for field in (*COST_FIELDS.values(), "overlap_ms"):
        for number, stage in enumerate(pipe.stages):
            value = getattr(stage, field)
            if value is None or (field == "recompute_ms" and not np.any(value)):
                continue  # a stage that rebuilds nothing
            if field == "overlap_ms":
                ops = own & ~workload.second & (schedule.stage[forward] == number)
            else:
                ops = ~own & np.isin(schedule.kind, parts[field]) & (schedule.stage == number)
            found.append(
                Parameter(
                    f"stages.{field}[{number}]",
                    float(np.mean(value)),
                    "ms",
                    node_of_op[ops],
                    shares[ops],
                )
            )
    return found


def _shares(schedule: Schedule, pipe: Pipeline, workload: Workload) -> FloatArray:
    """Return the ms that each op takes for a ms of its cost, array (ops,).

    As `pipeline/costs.py` has it: a slice takes its fraction; an overlapped pair takes
    overlap_factor times both costs, or the overlap_ms of its forward's stage.
    """
    share = np.asarray(schedule.fractions)[schedule.slice]
    forward = _forward_of_pair(schedule, workload)
    timed = np.array([stage.overlap_ms is not None for stage in pipe.stages])
    paired = forward >= 0
    share[paired] = np.where(timed[schedule.stage[forward[paired]]], 1.0, pipe.overlap_factor)
    return on_device(share, pipe.speeds[schedule.rank])


def _forward_of_pair(schedule: Schedule, workload: Workload) -> Int32Array:
    """Return the forward of the overlapped pair that each op is in, -1 for none; array (ops,)."""
    forward = np.full(len(schedule), -1, dtype=np.int32)
    second = np.flatnonzero(workload.second)
    found = np.where(schedule.kind[second] == Kind.F, second, second - 1)
    forward[second] = forward[second - 1] = found
    return forward


def _speeds(
    schedule: Schedule, pipe: Pipeline, workload: Workload, node_of_op: IntArray
) -> list[Parameter]:
    once = ~workload.second
    # The part that is divided by the speed; an R with nothing to rebuild has no overhead either.
    work = np.maximum(workload.duration - pipe.overheads[schedule.rank], 0.0)
    return [
        Parameter(
            f"devices.speed[{rank}]",
            device.speed,
            "1 %",
            node_of_op[once & (schedule.rank == rank)],
            PER_CENT * work[once & (schedule.rank == rank)],
        )
        for rank, device in enumerate(pipe.devices)
    ]


def _latencies(critical: Criticality, pipe: Pipeline) -> list[Parameter]:
    graph = critical.graph
    transfers = np.flatnonzero(graph.cost_kind == TRANSFER)
    message = graph.cost_index[transfers]
    source, target = graph.program.source[message], graph.program.target[message]
    links = sorted(set(zip(source.tolist(), target.tolist(), strict=True)))
    found = []
    for near, far in links:
        node = transfers[(source == near) & (target == far)]
        name, latency = f'links.latency_ms."{near}->{far}"', pipe.link(near, far).latency_ms
        found.append(Parameter(name, latency, "ms", node, np.ones(len(node))))
    return found
