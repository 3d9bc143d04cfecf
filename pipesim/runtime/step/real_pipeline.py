"""A real training step in one process, in the order of a schedule; its times, simulated.

One model, four stages, eight samples in four micro-batches, one forward and one backward in turn:

>>> import torch
>>> from torch import nn
>>> from pipesim.runtime import Pipeline, split_model
>>> _ = torch.manual_seed(0)
>>> model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(8)))
>>> pipeline = Pipeline(split_model(model, [2, 2, 2, 2]), num_microbatches=4, schedule="1f1b")
>>> inputs, targets = torch.randn(8, 32), torch.randn(8, 32)
>>> _ = pipeline.step(inputs, targets, nn.functional.mse_loss)  # the first time all is slow
>>> model.zero_grad()
>>> result = pipeline.step(inputs, targets, nn.functional.mse_loss)

The loss is that of the whole batch, and the gradients are where `loss.backward()` leaves them:

>>> abs(result.loss - nn.functional.mse_loss(model(inputs), targets).item()) < 1e-6
True
>>> all(parameter.grad is not None for parameter in model.parameters())
True

All ran one op at a time; the simulator puts what each really took side by side on four ranks. The
way of one micro-batch:

>>> run = result.run
>>> trace = run.trace[run.trace["resource"] == "compute"]
>>> trace.loc[trace["microbatch"] == 1, ["rank", "kind", "start", "end"]]
    rank kind  start  end
...    0    F    ...  ...
...    1    F    ...  ...
...    2    F    ...  ...
...    3    F    ...  ...
...    3    B    ...  ...
...    2    B    ...  ...
...    1    B    ...  ...
...    0    B    ...  ...
>>> print(f"bubble {run.bubble_fraction:.3f} measured, {run.closed_form:.3f} of equal stages")
bubble 0... measured, 0.429 of equal stages

And what the ranks really held: 1F1B holds p - s micro-batches on stage s.

>>> result.peak_in_flight
(4, 3, 2, 1)

`ps.plot.gantt(run)` draws it.

What to know: layers must not mix samples (no batch norm) if the gradients are to be the whole
batch's. With dropout each micro-batch draws its own numbers; a stage that recomputes repeats those
of its forward, as `torch.utils.checkpoint` does. What else a forward does it does twice there: the
loss is called twice a micro-batch if the last stage recomputes, and the running statistics of batch
norm are updated twice. The weights are the same for all micro-batches, under schedules that would
update them as they go, too. A schedule without backwards gives the loss only. A forward and a
backward that overlap on a device run one after the other here. Ops of less than a millisecond are
timed better with `torch.set_num_threads(1)`. The times include the counting of what is held: some
ten microseconds for every tensor that autograd saves.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pipesim.base.checks import check_count
from pipesim.base.errors import ScheduleError
from pipesim.base.files import is_schedule_file
from pipesim.files.schedule_csv.read import read_schedule
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.placement import Placement
from pipesim.run.resolve import ScheduleLike, resolve_schedule
from pipesim.run.simulate import simulate
from pipesim.run.step import without_end
from pipesim.runtime.model.batch import MicroBatch, check_batch, micro_batches
from pipesim.runtime.model.loss import check_loss, single
from pipesim.runtime.model.stage import check_gradients_can_be, checked_stages
from pipesim.runtime.shards.shards import load_stages, save_stages
from pipesim.runtime.step.execution import Execution
from pipesim.runtime.step.saved_bytes import storages_of
from pipesim.runtime.step.step_result import StepResult, step_result
from pipesim.schedules.order.schedule import Schedule


class RealPipeline:
    """A model in stages, and the order in which a training step runs them.

    Ranks are simulated; all that they do is done by this process, one op after the other.

    Parameters
    ----------
    stages
        Modules in forward order; each takes the tensor that the one before puts out. A
        `PipelineStage` may recompute. Stages may share parameters.
    num_microbatches
        Number of micro-batches m of a replica; None with a Schedule, which has its own.
    schedule
        A name, a Schedule, the path of a schedule file, a function or a Policy. One that goes by
        the costs is made for F = I = W, unless it is given as a Schedule.
    ranks, placement
        Placement of the stages, for a schedule by name: as for `pipesim.Pipeline.from_costs`.
    options
        Options of the schedule.
    replicas
        Number d of replicas: each runs the same order on its share of the batch, one after the
        other on the one set of parameters, and gradients are the average.

    Raises
    ------
    ScheduleError
        If the order is no schedule, or not for these stages; if it runs slices of micro-batches,
        which torch cannot; or with replicas, if it has no end of a step.
    DeadlockError
        If its ranks wait for each other.
    TypeError
        If the stages are no modules.

    Notes
    -----
    A split backward goes through a stage's graph twice, for its input and for its parameters.
    Layers of `torch.compile` give their memory away at the first time: set
    `torch._functorch.config.donated_buffer = False` before they are compiled. Layers of
    `torch.utils.checkpoint` need `use_reentrant=False`, under any schedule.

    Examples
    --------
    >>> from pipesim.runtime import split_model
    >>> stages = split_model([nn.Linear(4, 4) for _ in range(4)], [1, 1, 1, 1])
    >>> print(RealPipeline(stages, 4, "interleaved", ranks=2).schedule)
    interleaved: 2 ranks, 4 micro-batches
    rank 0 | ...
    rank 1 | ...
    """

    def __init__(
        self,
        stages: Iterable[nn.Module],
        num_microbatches: int | None,
        schedule: ScheduleLike = "gpipe",
        *,
        ranks: int | None = None,
        placement: str | Placement | None = None,
        options: Mapping[str, Any] | None = None,
        replicas: int = 1,
    ) -> None:
        self.stages = checked_stages(stages)
        self.replicas = check_count("replicas", replicas)
        if is_schedule_file(schedule):
            schedule = read_schedule(schedule)
        if isinstance(schedule, Schedule):
            _check_stages(schedule, len(self.stages))
            placement = schedule.placement
        count = check_count("stages", len(self.stages))
        pipe = _equal_costs(count, ranks=ranks, placement=placement)
        self.schedule = resolve_schedule(pipe, schedule, num_microbatches, options)
        _check_stages(self.schedule, count)
        if self.schedule.slices > 1:
            raise ScheduleError(
                f"{self.schedule.name} runs slices of micro-batches along the sequence, which "
                "needs attention that keeps keys and values of earlier slices; run whole ones"
            )
        if replicas > 1 and (reason := without_end(self.schedule)) is not None:
            raise ScheduleError(f"{reason}; run it with replicas=1")
        self._order = _order_of_all(self.schedule)

    def step(
        self,
        inputs: Tensor,
        targets: Tensor,
        loss_fn: Callable[[Tensor, Tensor], Tensor],
        *,
        reduction: str = "mean",
        count_bytes: bool = True,
    ) -> StepResult:
        """Return the result of a step; gradients are added to `.grad` of the parameters.

        As with `loss.backward()`, a step that fails may have added a part of them: zero them then.

        Parameters
        ----------
        inputs, targets
            The batch: its first dimension is split into micro-batches, as equal as can be. The
            inputs themselves get no gradient.
        loss_fn
            (output, targets) of a micro-batch -> its loss, a single number.
        reduction
            "mean": the loss is the mean over the batch, so that a micro-batch counts by its share
            of the samples; "sum": the losses of the micro-batches add up. Where `loss_fn` is a
            mean over what is not equally many in every sample (tokens without padding), give it
            as a sum, divided by the number in the batch.
        count_bytes
            Whether to count what is kept for the backward. It takes some ten microseconds a
            tensor, within the times of the ops; without it the result knows no bytes.

        Raises
        ------
        ValueError
            If the batch has fewer samples than there are micro-batches, inputs and targets are
            not equally many, `loss_fn` has parameters, or a stage was made in inference mode;
            before anything is run. And when it shows: if a stage or the loss uses a tensor that
            requires a gradient and is no parameter of the stage's modules, or no way leads back
            from the loss.
        TypeError
            If inputs or targets are no tensor, a stage puts out anything but one tensor, or
            `loss_fn` anything but a single number.
        """
        m = self.schedule.microbatches
        check_batch(inputs, targets, m * self.replicas, reduction)
        check_loss(loss_fn)
        for number, stage in enumerate(self.stages):
            check_gradients_can_be(f"stage {number}", stage)
        pieces = micro_batches(inputs, targets, m * self.replicas, reduction)
        own = storages_of([*self.stages, *([loss_fn] if isinstance(loss_fn, nn.Module) else [])])
        measured = []
        for first in range(0, len(pieces), m):
            execution = self._execution(pieces[first : first + m], loss_fn, own, count_bytes)
            with torch.inference_mode(False):  # in it there would be no gradients
                measured.append(execution.run(self._order))
        return step_result(self.schedule, self.stages, measured, count_bytes)

    def _execution(
        self,
        pieces: Sequence[MicroBatch],
        loss_fn: Callable[[Tensor, Tensor], Tensor],
        own: Collection[int],
        count_bytes: bool,
    ) -> Execution:
        """Return the execution of one replica's step, still to be run."""

        def loss(output: Tensor, number: int) -> Tensor:
            _, targets, share = pieces[number]
            return single(loss_fn(output, targets)) * share

        activations = {(0, number): piece.inputs for number, piece in enumerate(pieces)}
        return Execution(self.stages, self.schedule, loss, activations, own, count_bytes)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write one shard a stage and a manifest into a folder; see `save_stages`."""
        save_stages(self.stages, folder)

    def load(self, folder: str | PathLike[str]) -> None:
        """Read shards that any split of the same layers has saved; see `load_stages`."""
        load_stages(self.stages, folder)

    def __repr__(self) -> str:
        replicas = f", replicas={self.replicas}" if self.replicas > 1 else ""
        return f"Pipeline({self.schedule!r}{replicas})"


def _equal_costs(stages: int, **where: Any) -> Pipeline:
    return Pipeline.from_costs(
        1.0, input_grad=1.0, weight_grad=1.0, recompute_ms=1.0, stages=stages, **where
    )


def _order_of_all(schedule: Schedule) -> list[int]:
    """Return the op numbers of all ranks in one order: that of the starts at equal costs.

    No op starts before its inputs are there, as each takes some time.

    Raises
    ------
    DeadlockError
        If the ranks wait for each other.
    """
    run = simulate(_equal_costs(schedule.stages, placement=schedule.placement), schedule)
    order: list[int] = np.argsort(run.spans.start, kind="stable").tolist()
    return order


def _check_stages(schedule: Schedule, count: int) -> None:
    if schedule.stages != count:
        raise ScheduleError(
            f"{schedule.name} is for {schedule.stages} stages, the model is in {count}: "
            f"split it with {schedule.stages} counts"
        )
