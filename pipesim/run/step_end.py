"""What comes after the last backwards of a step, as times: reductions, optimizer, gathers.

    replica 0  rank 0 | F F . B B         [reduce 0]            : [optimizer][gather 0]
               rank 1 | . F B F B     [reduce 1   ]             : [optimizer][gather 1]
    replica 1  rank 0 | F  F  .  B  B     [reduce 0][tied]      : [optimizer][gather 0]
               rank 1 | .  F  B  F  B [reduce 1   ] [tied]      : [optimizer][gather 1]
                                                        barrier :

A stage's gradients are reduced once all replicas are through with its last backward. All copies
of a stage take part at once: those in other replicas, and those for the other direction of flow.
A rank's reductions go one at a time, in the order in which its stages finish, on a network beside
its compute and the links of the pipeline. What must come before what is all there is to it, so
that every time is a maximum of sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipesim.base.ops import Kind
from pipesim.base.types import FloatArray, Int32Array, IntArray
from pipesim.engine.trace import Spans
from pipesim.pipeline.costs import on_device
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.placement import Placement
from pipesim.pipeline.training import Training
from pipesim.schedules.program.program import Program


class EndCosts(NamedTuple):
    """How long each part of the end takes [ms].

    `reduce` and `gather` are arrays (stages,), None where nothing is gathered; `tied` is one
    (replicas, directions), NaN where nothing is tied across ranks; `optimizer` one (replicas,
    directions, stages).
    """

    reduce: FloatArray
    tied: FloatArray
    optimizer: FloatArray
    gather: FloatArray | None


class Collectives(NamedTuple):
    """When the members of a stage's collective are there, and when it runs [ms].

    `ready` is an array (replicas, directions, stages); `start` and `end` are arrays (stages,).
    """

    ready: FloatArray
    start: FloatArray
    end: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class StepEnd:
    """When every part of the end runs [ms].

    Parameters
    ----------
    through
        When each rank is through with its ops, array (replicas, ranks).
    reduce, gather
        Collectives of the gradients before the optimizer, and of the parameters after it, if any.
    tied_start, tied_end
        Reduction between the first and the last stage, arrays (replicas, directions); NaN where
        there is none.
    reduced
        When a rank's gradients are all reduced, array (replicas, ranks).
    began, updated
        When a rank's optimizer starts and when it is through, arrays (replicas, ranks).
    optimizer_start, optimizer_end
        When the optimizer runs for each copy of a stage, arrays (replicas, directions, stages).
    done
        When a rank is through with everything, array (replicas, ranks).
    """

    through: FloatArray
    reduce: Collectives
    tied_start: FloatArray
    tied_end: FloatArray
    reduced: FloatArray
    began: FloatArray
    optimizer_start: FloatArray
    optimizer_end: FloatArray
    updated: FloatArray
    gather: Collectives | None
    done: FloatArray


def step_end(
    finished: FloatArray,
    through: FloatArray,
    rank_of: Int32Array,
    costs: EndCosts,
    *,
    overlap: bool,
    barrier: bool,
) -> StepEnd:
    """Return when every part of a step's end runs.

    Parameters
    ----------
    finished
        When each copy of a stage is through with its last backward, array (replicas, directions,
        stages) [ms].
    through
        When each rank is through with its ops, array (replicas, ranks) [ms].
    rank_of
        The rank of every copy, array (directions, stages).
    costs
        How long each part takes.
    overlap
        Whether a rank's network works while the rank computes on.
    barrier
        Whether no optimizer starts before all gradients are reduced.
    """
    # The stages that are whole first go first, on every rank and with or without overlap.
    order = np.argsort(finished.max(axis=(0, 1)), kind="stable")
    reduce = _in_turn(finished if overlap else through[:, rank_of], costs.reduce, rank_of, order)
    tied_start = np.where(np.isnan(costs.tied), np.nan, max(reduce.end[0], reduce.end[-1]))
    tied_end = tied_start + costs.tied
    reduced = _latest(through, rank_of, np.broadcast_to(reduce.end, finished.shape))
    first_and_last = rank_of[:, [0, -1]]
    reduced = _latest(reduced, first_and_last, np.stack([tied_end, tied_end], axis=-1))
    began = np.full_like(reduced, reduced.max()) if barrier else reduced
    updated = np.array(began)
    optimizer_start, optimizer_end = np.empty_like(finished), np.empty_like(finished)
    for stage in order:
        for direction, rank in enumerate(rank_of[:, stage]):
            optimizer_start[:, direction, stage] = updated[:, rank]
            updated[:, rank] += costs.optimizer[:, direction, stage]
            optimizer_end[:, direction, stage] = updated[:, rank]
    done, gather = updated, None
    if costs.gather is not None:
        ready = optimizer_end if overlap else updated[:, rank_of]
        gather = _in_turn(ready, costs.gather, rank_of, order)
        done = _latest(updated, rank_of, np.broadcast_to(gather.end, finished.shape))
    return StepEnd(
        through=through,
        reduce=reduce,
        tied_start=tied_start,
        tied_end=tied_end,
        reduced=reduced,
        began=began,
        optimizer_start=optimizer_start,
        optimizer_end=optimizer_end,
        updated=updated,
        gather=gather,
        done=done,
    )


def end_costs(training: Training, pipes: Sequence[Pipeline], placement: Placement) -> EndCosts:
    """Return how long each part of the end takes on the pipelines of the replicas.

    Raises
    ------
    ValueError
        If `optimizer_ms` is not one number a stage.
    """
    stages, copies = placement.stages, placement.directions
    params = [stage.param_bytes for stage in pipes[0].stages]
    grads = [training.grad_bytes(size) for size in params]
    # The two copies of a stage in one replica split nothing between them.
    zero = training.zero if training.replicas > 1 else 0
    reduced_ms = training.all_reduce_ms if zero == 0 else training.reduce_scatter_ms
    gather = None
    # With ZeRO-3 the parameters are gathered when they are used, within the ops.
    if zero in (1, 2):
        gather = np.array([training.reduce_scatter_ms(size, copies) for size in params])
    optimizer = np.asarray(training.optimizer_ms, dtype=np.float64)
    if optimizer.ndim and len(optimizer) != stages:
        raise ValueError(f"optimizer_ms has {len(optimizer)} entries for {stages} stages")
    optimizer = optimizer / (training.replicas if training.zero else 1)
    speeds = np.array([pipe.speeds[placement.table] for pipe in pipes])
    return EndCosts(
        reduce=np.array([reduced_ms(size, copies) for size in grads]),
        tied=np.array([_tied_ms(training.tied_bytes, pipe, placement) for pipe in pipes]),
        optimizer=on_device(np.broadcast_to(optimizer, (len(pipes), copies, stages)), speeds),
        gather=gather,
    )


def last_backwards(program: Program, spans: Spans) -> FloatArray:
    """Return when each stage's last backward ends, array (directions, stages) [ms].

    For a copy without micro-batches it is the first start.
    """
    schedule = program.order
    ends = np.full(schedule.placement.table.shape, spans.begin)
    backward = schedule.kind != Kind.F
    direction = schedule.directions[schedule.microbatch]
    np.maximum.at(ends, (direction[backward], schedule.stage[backward]), spans.end[backward])
    return ends


def ranks_through(program: Program, spans: Spans) -> FloatArray:
    """Return when each rank is through with its ops and what it sends, array (ranks,) [ms]."""
    ends = np.zeros(program.order.ranks)
    np.maximum.at(ends, program.order.rank, spans.end)
    if program.listed:
        np.fmax.at(ends, program.rank, spans.leave)
    return ends


def _in_turn(
    ready: FloatArray, duration: FloatArray, rank_of: Int32Array, order: IntArray
) -> Collectives:
    """Return when collectives run: one at a time a rank in this order, once all members are there.

    Parameters
    ----------
    ready
        When each member is there, array (replicas, directions, stages).
    duration
        Array (stages,).
    rank_of
        Array (directions, stages).
    order
        The stages.
    """
    start, end = ready.max(axis=(0, 1)), np.empty_like(duration)
    free = np.full(rank_of.max() + 1, -np.inf)
    for stage in order:
        members = rank_of[:, stage]
        start[stage] = max(start[stage], free[members].max())
        end[stage] = free[members] = start[stage] + duration[stage]
    return Collectives(ready, start, end)


def _latest(by_rank: FloatArray, rank_of: Int32Array, times: FloatArray) -> FloatArray:
    """Return the times of each rank, or later ones of what it holds; NaN is none.

    Arrays (replicas, ranks), (directions, stages), (replicas, directions, stages).
    """
    latest = np.array(by_rank)
    for (direction, stage), rank in np.ndenumerate(rank_of):
        latest[:, rank] = np.fmax(latest[:, rank], times[:, direction, stage])
    return latest


def _tied_ms(size_bytes: int, pipe: Pipeline, placement: Placement) -> list[float]:
    """Return the time [ms] of adding what the first and the last stage share, one a direction.

    An all-reduce of two, over the slower of the two links between their ranks; NaN where nothing
    is tied, or the same ranks hold both.
    """
    first, last = placement.table[:, 0].tolist(), placement.table[:, -1].tolist()
    if size_bytes == 0 or set(first) == set(last):
        return [np.nan] * placement.directions
    return [
        max(link.message_ms(size_bytes) for link in (pipe.link(near, far), pipe.link(far, near)))
        for near, far in zip(first, last, strict=True)
    ]
