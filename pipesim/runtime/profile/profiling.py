"""Measuring the layers of a model: times, bytes, floating-point operations.

The layers run as in training: all forwards in order, then all backwards in reverse, each layer cut
off from its neighbours. Every repeat does so twice, once for the whole backward and once for the
gradients of the inputs alone, so that both find the caches as training leaves them:

    forward         a layer's forward, with what it keeps for the backward
    input grad      torch.autograd.grad of its output by its input
    weight grad     by input and parameters together, and added to the sum over micro-batches, less
                    that of the input: what W adds to I

An input gradient is there only where training needs one: not of the sample, such as tokens, nor
behind layers that are all frozen; a weight gradient where a parameter requires one. What works out
both at once, as an `autograd.Function` of one's own does, counts as the input's. Each call of
autograd, some ten microseconds, is in the times.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from pipesim.base.checks import check_count, check_size
from pipesim.base.types import Progress
from pipesim.pipeline.layers import LayerProfile
from pipesim.runtime.model.activations import fresh, needing_grad, shape_text, tensors_of
from pipesim.runtime.model.loss import LossLayer, layer_kind
from pipesim.runtime.model.stage import check_gradients_can_be, model_layers
from pipesim.runtime.profile.layer_counts import counted_columns, layer_text
from pipesim.runtime.profile.layer_times import timed_passes
from pipesim.runtime.profile.steadiness import quartile_text, unsteady_layers, unsteady_text


def profile_layers(
    model: nn.Module | Iterable[nn.Module],
    sample: Any,
    *,
    names: Sequence[str] | None = None,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    targets: Any = None,
    repeats: int = 20,
    warmup: int = 3,
    progress: Progress | None = None,
) -> LayerProfile:
    """Return the measured layer profile of a model: times and bytes for one micro-batch.

    Times are medians: forward, input gradient, weight gradient [ms]. `stash_bytes` is what autograd
    keeps, a tensor that two layers keep counted at the later one; `param_bytes` counts a shared
    parameter at the first layer that has it. Among the labels `kind` is the module's class, and
    `spread` how far the quartiles of a repeat's time are from its median. The model is left as it
    was: mode, gradients, buffers; and so is the state of random numbers.

    With `loss_fn` the loss is one more layer, the last, called "loss". What it takes and keeps (of
    a large vocabulary, as much again as the head puts out) is in no profile without it. A split of
    the profile has it in the last stage, where `split_model` then takes one layer less.

    `wgrad_stash_bytes` is what `runtime.Pipeline` holds of a layer from I to W: all that autograd
    has kept, as the graph stays, and the gradients that I notes for W; nothing of layers behind the
    last one that trains weights. For two kinds of stages it is too much: for one whose input wants
    no gradient, as the first, which does all in W and notes only the gradient of its output; and
    for one that ends without weights to train, where I frees what is kept behind the last ones.

    Parameters
    ----------
    model, names
        As for `model_layers`. Layers are run in the mode they are in, on the device of the sample,
        with as many threads as torch is set to.
    sample
        One micro-batch. Its gradient is measured only if it requires one: for layers from the
        middle of a model, give `sample.requires_grad_()`.
    loss_fn, targets
        The loss of the micro-batch: (output, targets) -> a single number, or (output) -> a single
        number if there are no targets.
    repeats, warmup
        Number of timed repeats, and of untimed ones before these.
    progress
        Called with the passes done, and how many there are.

    Raises
    ------
    ValueError
        If a layer fails on what the one before it puts out, an activation or the sample holds no
        tensor, there are no layers, they are not known, one is called "loss" beside a
        loss, a parameter has no shape yet or was made in inference mode, there are targets without
        a loss, or `repeats` is below 1; or if a layer uses a tensor that requires a gradient and is
        no parameter of its own.
    TypeError
        If `loss_fn` gives anything but a single number.

    Warns
    -----
    UserWarning
        If the times of layers are so unsteady that they should not be trusted, with their names.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    >>> profile = profile_layers(model, torch.zeros(2, 8), repeats=2)
    >>> profile.param_bytes, profile.stash_bytes, profile.output_bytes
    ((576, 0, 272), (64, 0, 128), (128, 128, 32))
    >>> pipe = profile.split([2, 1])
    >>> loss, labels = nn.functional.cross_entropy, torch.tensor([3, 1])
    >>> profile = profile_layers(model, torch.zeros(2, 8), loss_fn=loss, targets=labels, repeats=2)
    >>> profile.names[-1], profile.labels["kind"][-1]
    ('loss', 'cross_entropy')
    """
    layers = _layers(model, names, loss_fn, targets)
    modules = [layer for _, layer in layers]
    check_count("repeats", repeats)
    check_size("warmup", warmup)
    sample = fresh(sample)
    tensors = tensors_of(sample)
    if not tensors:
        raise ValueError(f"the sample is a {type(sample).__name__} without a tensor in it")
    device = tensors[0].device
    with torch.inference_mode(False), torch.enable_grad(), _left_as_it_was(modules, device):
        counts = counted_columns(layers, sample)
        passes = timed_passes(modules, sample, device, repeats, warmup, progress)
    times, quartiles = _times(modules, *map(np.array, passes))
    unsteady = unsteady_layers(quartiles)
    names = tuple(name for name, _ in layers)
    if unsteady.any():
        warnings.warn(unsteady_text(names, quartiles, unsteady), stacklevel=2)
    labels = {
        "kind": tuple(map(layer_kind, modules)),
        "spread": tuple(map(quartile_text, quartiles.T, unsteady)),
    }
    source = _source(tensors, device, repeats)
    return LayerProfile(**times, **counts, names=names, labels=labels, source=source)


def _layers(
    model: nn.Module | Iterable[nn.Module],
    names: Sequence[str] | None,
    loss_fn: Callable[..., torch.Tensor] | None,
    targets: Any,
) -> list[tuple[str, nn.Module]]:
    """Return the layers, the last of them the loss if there is one, all checked."""
    layers = model_layers(model, names)
    _check_layers(layers)
    if loss_fn is None:
        if targets is not None:
            raise ValueError("targets without a loss: give loss_fn, too")
        return layers
    if "loss" in dict(layers):
        raise ValueError(
            "a layer of the model is called 'loss', as the one of loss_fn is: give the layers as a "
            "list of modules, which are called by their numbers"
        )
    return [*layers, ("loss", LossLayer(loss_fn, fresh(targets)))]


def _check_layers(layers: Sequence[tuple[str, nn.Module]]) -> None:
    if not layers:
        raise ValueError("the model has no layers: there is nothing to measure")
    for number, (name, layer) in enumerate(layers):
        which = layer_text(number, name, layer)
        if any(map(nn.parameter.is_lazy, (*layer.parameters(), *layer.buffers()))):
            raise ValueError(
                f"{which} has parameters without a shape yet: run the model once before"
            )
        check_gradients_can_be(which, layer)


def _times(
    modules: Sequence[nn.Module],
    forward: npt.NDArray[np.float64],
    backward: npt.NDArray[np.float64],
    input_grad: npt.NDArray[np.float64],
) -> tuple[dict[str, Any], npt.NDArray[np.float64]]:
    """Return the columns of times, and the quartiles of a repeat's time, by layer [ms]."""
    whole = np.median(backward, axis=0)
    first_part = np.minimum(np.median(input_grad, axis=0), whole)
    frozen = [not needing_grad(list(layer.parameters())) for layer in modules]
    first_part[frozen] = whole[frozen]
    columns = {
        "forward_ms": np.median(forward, axis=0).tolist(),
        "input_grad_ms": first_part.tolist(),
        "weight_grad_ms": (whole - first_part).tolist(),
    }
    repeat = forward[::2] + forward[1::2] + backward + input_grad
    return columns, np.percentile(repeat, [25, 50, 75], axis=0)


@contextmanager
def _left_as_it_was(layers: Sequence[nn.Module], device: torch.device) -> Iterator[None]:
    """Restore the layers' buffers and the state of random numbers when the block ends."""
    buffers = [(buffer, buffer.clone()) for layer in layers for buffer in layer.buffers()]
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)


def _source(tensors: Sequence[torch.Tensor], device: torch.device, repeats: int) -> str:
    where = f"{torch.get_num_threads()} CPU threads"
    if device.type == "cuda":
        where = torch.cuda.get_device_name(device)
    return (
        f"measured with torch {torch.__version__} on {where}, micro-batch {shape_text(tensors)}, "
        f"medians of {repeats}"
    )
