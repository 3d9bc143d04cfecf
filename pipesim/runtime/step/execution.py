"""One step of one replica: every op of a schedule really executed and measured.

A stage's F takes its activation from where the stage before has left it, and leaves its output for
the next; B or I takes the gradient that the next stage has left, and leaves that of its input. In
between a stage holds a `Flight` for the micro-batch. All ranks are one process, so that ops run
one at a time, in an order in which each finds its inputs.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from pipesim.base.ops import COMPUTE_KINDS, Kind
from pipesim.base.types import BoolArray, FloatArray, IntArray
from pipesim.runtime.model.stage import explained
from pipesim.runtime.step.clock import clock_of
from pipesim.runtime.step.held_bytes import HeldBytes, Kept, unchanged
from pipesim.runtime.step.random_state import RandomState
from pipesim.runtime.step.registered import check_registered
from pipesim.runtime.step.split_backward import WeightPart, input_gradient, weight_gradients
from pipesim.schedules.order.dataflow import closes
from pipesim.schedules.order.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of a step: times, bytes and losses.

    Parameters
    ----------
    times
        Time of every op [ms], array (kinds, stages, micro-batches); R is rebuilding, also where it
        is part of B or I.
    grown
        Bytes by which every op has raised what its rank holds, array (kinds, stages,
        micro-batches).
    output_bytes
        Bytes of the largest output of every stage, array (stages,).
    losses
        Loss of every micro-batch, weighted so that they add up to the loss.
    peak_bytes, peak_in_flight
        The most activation bytes and (stage, micro-batch) pairs that each rank has held at once.
    """

    times: FloatArray
    grown: IntArray
    output_bytes: IntArray
    losses: list[Tensor]
    peak_bytes: tuple[int, ...]
    peak_in_flight: tuple[int, ...]


@dataclass(slots=True)
class Flight:
    """The state of a micro-batch on a stage, held from its F until its backward has ended."""

    activation: Kept
    output: GradientEdge | None = None  # where the way back begins, if there is one
    dropped: RandomState | None = None  # from which to rebuild what has not been kept
    parts: Sequence[WeightPart] = ()  # what I leaves to W
    gradients: Sequence[Kept] = ()


@dataclass(slots=True)
class Rank:
    """The state of one rank: bytes of activations, and flights by stage and micro-batch."""

    held: HeldBytes
    flights: dict[tuple[int, int], Flight] = field(default_factory=dict)
    peak_in_flight: int = 0


@dataclass(slots=True)
class Execution:
    """One step of one replica under way.

    Parameters
    ----------
    stages
        The stages in forward order; those whose `recompute` is true have `run_layers`, too.
    schedule
        The ops.
    loss
        (output of the last stage, micro-batch) -> its part of the loss.
    activations
        Inputs that wait for F, by stage and micro-batch: at first those of stage 0.
    own
        Addresses of the storages that are there anyway: parameters, buffers.
    counts
        Whether to count the bytes that are kept for the backward, which takes time of its own.
    """

    stages: Sequence[nn.Module]
    schedule: Schedule
    loss: Callable[[Tensor, int], Tensor]
    activations: dict[tuple[int, int], Tensor]
    own: Collection[int]
    counts: bool = True
    gradients: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    losses: list[Tensor] = field(default_factory=list)
    output_bytes: dict[int, int] = field(default_factory=dict)
    checked: set[int] = field(default_factory=set)  # stages whose graph leads to parameters only
    trains: bool = field(init=False)  # whether there are backwards
    rebuilt: BoolArray = field(init=False)  # in R or a backward, (stages, micro-batches)

    def __post_init__(self) -> None:
        self.trains = self.schedule.kinds != {Kind.F}
        with_backward = self.trains and not self.schedule.separate_recompute
        self.rebuilt = (self.schedule.numbers()[Kind.R] >= 0) | with_backward

    def run(self, order: Iterable[int]) -> Measured:
        """Return the measurements of the step, its ops executed in this order of their numbers."""
        schedule = self.schedule
        clock = clock_of(next(iter(self.activations.values())).device)
        times = np.zeros((len(COMPUTE_KINDS), schedule.stages, schedule.microbatches))
        grown = np.zeros(times.shape, dtype=np.int64)
        ranks = [Rank(HeldBytes(self.own)) for _ in range(schedule.ranks)]
        rank_of, ends = schedule.rank, closes(schedule)
        marks = []
        for number in order:
            stage, kind, microbatch, _ = schedule.op(number)
            where, rank = (stage, microbatch), ranks[rank_of[number]]
            rebuilding = kind in (Kind.B, Kind.I) and rank.flights[where].dropped is not None
            for part in (Kind.R, kind) if rebuilding else (kind,):
                before, begin = rank.held.now, clock.mark()
                self._do(part, where, rank)
                marks.append(((part, stage, microbatch), begin, clock.mark()))
                grown[part, stage, microbatch] = rank.held.now - before
                self._check_graph(where, rank)
            rank.peak_in_flight = max(rank.peak_in_flight, len(rank.flights))
            if ends[number]:
                del rank.flights[where]
        for which, begin, end in marks:  # only at the end: a GPU runs behind the program
            times[which] = clock.between(begin, end)
        return Measured(
            times=times,
            grown=grown,
            output_bytes=np.array([self.output_bytes[stage] for stage in range(schedule.stages)]),
            losses=self.losses,
            peak_bytes=tuple(rank.held.peak for rank in ranks),
            peak_in_flight=tuple(rank.peak_in_flight for rank in ranks),
        )

    def forward(self, where: tuple[int, int], rank: Rank) -> None:
        """F: run the stage, keep what the backward will need, leave the output for the next."""
        stage, microbatch = where
        activation = self.activations.pop(where)
        flight = rank.flights[where] = Flight(rank.held.keep(activation))
        drops = self._drops(where)
        if drops:
            flight.dropped = RandomState.now(activation)
        output = self._output(where, flight, rank, keeps=self.trains and not drops)
        self.output_bytes[stage] = max(self.output_bytes.get(stage, 0), output.nbytes)
        if stage + 1 == len(self.stages):
            self.losses.append(output.detach())
            self.gradients[where] = torch.ones_like(output)
            return
        wanted = output.requires_grad
        if drops:
            can = output.is_floating_point() or output.is_complex()
            wanted = can and bool(self._wanted(where, activation))
        self.activations[stage + 1, microbatch] = output.detach().requires_grad_(wanted)

    def rebuild(self, where: tuple[int, int], rank: Rank) -> None:
        """R: run the stage again from its input, and now keep all."""
        flight = rank.flights[where]
        if flight.dropped is not None:
            with flight.dropped.repeated():
                self._output(where, flight, rank, keeps=True)
            flight.dropped = None

    def backward(self, where: tuple[int, int], rank: Rank) -> None:
        """B: the gradients of the stage's input and of its parameters at once."""
        flight, gradient = rank.flights[where], self.gradients.pop(where, None)
        if flight.output is None or gradient is None:
            return  # nothing before or in the stage wants a gradient
        activation = flight.activation.tensor
        wanted = self._wanted(where, activation)
        found = torch.autograd.grad(flight.output, wanted, gradient, allow_unused=True)
        for tensor, each in zip(wanted, found, strict=True):
            if tensor is activation:
                self._leave(where, each)
            elif each is not None:
                accumulate(tensor, each)

    def input_gradient(self, where: tuple[int, int], rank: Rank) -> None:
        """I: the gradient of the stage's input; note for W where it goes on, and free the rest.

        Where the input wants none, as of the first stage, nothing waits for I: all is left to W.
        """
        flight, gradient = rank.flights[where], self.gradients.pop(where, None)
        if flight.output is None or gradient is None:
            return
        activation = flight.activation.tensor
        of_inputs, flight.parts = input_gradient(
            [flight.output],
            [gradient],
            [activation] if activation.requires_grad else [],
            self._trained(where),
        )
        flight.output = None  # W starts at places before it, and needs no more than those do
        flight.gradients = [rank.held.keep(g) for part in flight.parts for g in part.gradients]
        for of_input in of_inputs:
            self._leave(where, of_input)

    def weight_gradient(self, where: tuple[int, int], rank: Rank) -> None:
        """W: the gradients of the stage's parameters."""
        for parameter, gradient in weight_gradients(rank.flights[where].parts):
            accumulate(parameter, gradient)

    def _do(self, kind: Kind, where: tuple[int, int], rank: Rank) -> None:
        """Execute an op; an error gets a note that names the op."""
        try:
            DOING[kind](self, where, rank)
        except Exception as error:
            error.add_note(f"in {kind.name} of stage {where[0]}, micro-batch {where[1]}")
            raise

    def _check_graph(self, where: tuple[int, int], rank: Rank) -> None:
        """Check, once a stage and outside the times of ops, that its backward misses no tensor."""
        stage, flight = where[0], rank.flights[where]
        if flight.output is None or stage in self.checked:
            return
        name = f"stage {stage}" if stage + 1 < len(self.stages) else f"stage {stage} or its loss"
        known = [flight.activation.tensor, *self.stages[stage].parameters()]
        check_registered(name, [flight.output], known)
        self.checked.add(stage)

    def _output(self, where: tuple[int, int], flight: Flight, rank: Rank, keeps: bool) -> Tensor:
        """Return the output of a stage, or the loss of the last one; keep its graph or not."""
        stage, microbatch = where
        module = self.stages[stage]
        run = module.run_layers if recomputes(module) else module
        counting = rank.held.saving() if keeps and self.counts else nullcontext()
        with torch.set_grad_enabled(keeps), counting:
            taken = unchanged(flight.activation)
            if flight.dropped is not None and not keeps:
                taken = taken.clone()  # R starts from it, however the first layer changes it
            with explained(stage, taken):
                output = run(taken)
            if not isinstance(output, Tensor):
                raise TypeError(
                    f"stage {stage} puts out a {type(output).__name__}: between stages goes one "
                    "tensor; put what belongs together into one, or into one stage"
                )
            if stage + 1 == len(self.stages):
                output = self._loss(output, microbatch)
        # An output that is a parameter, or a view of one, requires a gradient without a graph, too.
        leads_back = keeps and output.requires_grad
        flight.output = get_gradient_edge(output) if leads_back else None
        return output

    def _loss(self, output: Tensor, microbatch: int) -> Tensor:
        loss = self.loss(output, microbatch)
        if torch.is_grad_enabled() and output.requires_grad and not loss.requires_grad:
            raise ValueError(
                "no way leads back from the loss to the model's output: loss_fn must work without "
                "detach() and torch.no_grad(), and give what has a gradient"
            )
        return loss

    def _leave(self, where: tuple[int, int], gradient: Tensor | None) -> None:
        """Leave the gradient of a stage's input for the stage before."""
        stage, microbatch = where
        if gradient is not None:
            self.gradients[stage - 1, microbatch] = gradient

    def _wanted(self, where: tuple[int, int], activation: Tensor) -> list[Tensor]:
        """Return the tensors of which a stage's backward finds the gradients."""
        return [*([activation] if activation.requires_grad else []), *self._trained(where)]

    def _trained(self, where: tuple[int, int]) -> list[Tensor]:
        """Return the parameters of a stage that are not frozen."""
        return [p for p in self.stages[where[0]].parameters() if p.requires_grad]

    def _drops(self, where: tuple[int, int]) -> bool:
        """Return whether a forward is to keep only the stage's input."""
        return recomputes(self.stages[where[0]]) and bool(self.rebuilt[where])


def recomputes(stage: nn.Module) -> bool:
    """Return whether a stage recomputes: whether it rebuilds what its forward has not kept."""
    return bool(getattr(stage, "recompute", False))


def accumulate(parameter: Tensor, gradient: Tensor) -> None:
    """Add a gradient to the parameter's `.grad`."""
    if parameter.grad is None:
        parameter.grad = gradient.clone()  # several parameters may have got the same tensor
    else:
        parameter.grad += gradient


DOING: dict[Kind, Callable[[Execution, tuple[int, int], Rank], None]] = {
    Kind.F: Execution.forward,
    Kind.B: Execution.backward,
    Kind.I: Execution.input_gradient,
    Kind.W: Execution.weight_gradient,
    Kind.R: Execution.rebuild,
}
