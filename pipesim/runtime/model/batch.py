"""Splitting a batch into micro-batches, after a check that it can be split."""

from typing import Any, NamedTuple

from torch import Tensor

from pipesim.runtime.model.activations import fresh

REDUCTIONS = ("mean", "sum")


class MicroBatch(NamedTuple):
    """The inputs and targets of a micro-batch, and the weight of its loss in the batch's loss."""

    inputs: Tensor
    targets: Tensor
    share: float


def check_batch(inputs: Any, targets: Any, count: int, reduction: str) -> None:
    """Check that a batch can be split into `count` micro-batches.

    Raises
    ------
    TypeError
        If inputs or targets are no tensor.
    ValueError
        If they have no samples, not equally many or too few, or there is no such reduction.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction = {reduction!r} is neither 'mean' nor 'sum'")
    for name, given in (("inputs", inputs), ("targets", targets)):
        if not isinstance(given, Tensor):
            raise TypeError(
                f"{name} is a {type(given).__name__}: give a tensor whose first dimension is the "
                "batch"
            )
        if not given.ndim:
            raise ValueError(
                f"{name} has no dimension: give a tensor whose first dimension is the batch"
            )
    if len(inputs) != len(targets):
        raise ValueError(f"{len(inputs)} inputs, but {len(targets)} targets")
    if len(inputs) < count:
        raise ValueError(f"a batch of {len(inputs)} is too small for {count} micro-batches")


def micro_batches(inputs: Tensor, targets: Tensor, count: int, reduction: str) -> list[MicroBatch]:
    """Return a batch as `count` micro-batches, as equal as can be.

    Their tensors are copies, as a separate rank would get them: none keeps the whole batch.

    Examples
    --------
    >>> import torch
    >>> batch = torch.arange(3.0)
    >>> [(piece.inputs.tolist(), piece.share) for piece in micro_batches(batch, batch, 2, "sum")]
    [([0.0, 1.0], 1.0), ([2.0], 1.0)]
    """
    batches = (batch.detach().tensor_split(count) for batch in (inputs, targets))
    return [
        MicroBatch(fresh(x), fresh(y), len(x) / len(inputs) if reduction == "mean" else 1.0)
        for x, y in zip(*batches, strict=True)
    ]
