"""A model's layers in order, and the stages that they are split into."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, permutations
from operator import index
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

IN_PLACE = "a leaf Variable that requires grad is being used in an in-place operation"


class PipelineStage(nn.Module):
    """The layers of one stage, run one after the other.

    Parameters
    ----------
    layers
        Modules in forward order; each takes the output of the one before.
    names
        Names of the layers; by default their numbers in the stage.
    recompute
        Whether only the stage's input is kept from the forward, and the rest is rebuilt before
        the backward (activation checkpointing).

    Raises
    ------
    ValueError
        If there are not as many names as layers.

    Examples
    --------
    >>> import torch
    >>> stage = PipelineStage([nn.Linear(8, 16), nn.ReLU()])
    >>> stage(torch.zeros(2, 8)).shape
    torch.Size([2, 16])
    """

    def __init__(
        self,
        layers: Iterable[nn.Module],
        *,
        names: Sequence[str] | None = None,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.names = tuple(map(str, range(len(self.layers)))) if names is None else tuple(names)
        self.recompute = recompute
        if len(self.names) != len(self.layers):
            raise ValueError(f"{len(self.names)} names for {len(self.layers)} layers")

    def forward(self, activation: Any) -> Any:
        """Return the output of the last layer."""
        if self.recompute:
            return checkpoint(self.run_layers, activation, use_reentrant=False)
        return self.run_layers(activation)

    def run_layers(self, activation: Any) -> Any:
        """Return the output of the last layer; keep all that a backward needs, without recomputing.

        An error in a layer gets a note that names the layer.
        """
        for name, layer in zip(self.names, self.layers, strict=True):
            try:
                activation = layer(activation)
            except Exception as error:
                error.add_note(f"in layer {name} ({type(layer).__name__})")
                raise
        return activation


@contextmanager
def explained(number: int, activation: Tensor) -> Iterator[None]:
    """Replace torch's error where a stage changes its input in place by one that explains it.

    Raises
    ------
    RuntimeError
        Instead of torch's, with the stage's number, its layer if known, and what to do.
    """
    try:
        yield
    except RuntimeError as error:
        if IN_PLACE not in str(error) or not activation.requires_grad:
            raise
        where = ", ".join([f"stage {number}", *getattr(error, "__notes__", ())])
        raise RuntimeError(
            f"{where}: an in-place operation on the input of the stage (or on a parameter), whose "
            "gradient is wanted: give inplace=False, or put the layer into the stage before"
        ) from error


def model_layers(
    model: nn.Module | Iterable[nn.Module], names: Sequence[str] | None = None
) -> list[tuple[str, nn.Module]]:
    """Return a model's layers with their names, in forward order.

    Parameters
    ----------
    model
        An `nn.Sequential` or `nn.ModuleList`, a list of modules, or any module whose layers
        `names` lists.
    names
        Names of submodules, such as "blocks.0", in forward order, none within another.

    Raises
    ------
    ValueError
        If there is no such submodule, one would run twice, or the layers are not known.

    Examples
    --------
    >>> [name for name, _ in model_layers(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))]
    ['0', '1']
    """
    if names is not None:
        if not isinstance(model, nn.Module):
            raise ValueError("names of submodules need a module that has them")
        return _named_layers(model, names)
    if isinstance(model, nn.Sequential | nn.ModuleList):
        # A module that stands there twice is two layers, which `named_children` would not tell.
        return [(name, layer) for name, layer in model._modules.items() if layer is not None]
    if isinstance(model, nn.Module):
        raise ValueError(
            f"{type(model).__name__} is no nn.Sequential: name its layers in forward order, "
            "names=['embedding', 'blocks.0', ...]"
        )
    return [(str(number), layer) for number, layer in enumerate(model)]


def checked_stages(stages: Any) -> list[nn.Module]:
    """Return the stages of a pipeline as a list of modules.

    Raises
    ------
    TypeError
        If they are no sequence of modules.
    """
    if not isinstance(stages, Iterable):
        raise TypeError(
            f"stages is a {type(stages).__name__}: give modules in forward order, such as "
            "split_model makes"
        )
    listed = list(stages)
    for number, stage in enumerate(listed):
        if not isinstance(stage, nn.Module):
            raise TypeError(f"stage {number} is a {type(stage).__name__}, not an nn.Module")
    return listed


def _named_layers(model: nn.Module, names: Sequence[str]) -> list[tuple[str, nn.Module]]:
    if isinstance(names, str):
        raise ValueError(f"names = {names!r} is a text: give a list of names, [{names!r}]")
    known = dict(model.named_modules(remove_duplicate=False))
    for name in names:
        if name == "":
            raise ValueError(f"names = {list(names)}: '' is the whole model; name its layers")
        if name not in known:
            raise ValueError(f"{type(model).__name__} has no submodule {name!r}")
    for outer, inner in permutations(names, 2):
        if f"{inner}.".startswith(f"{outer}."):
            fault = "is there twice" if inner == outer else f"lies within {outer!r}"
            raise ValueError(
                f"names: {inner!r} {fault} and would run twice: take one of the two out, or, where "
                "that is meant, give the layers themselves as a list of modules"
            )
    return [(name, known[name]) for name in names]


def check_gradients_can_be(name: str, module: nn.Module) -> None:
    """Check that autograd can work with the parameters and buffers of a module.

    Raises
    ------
    ValueError
        If a parameter or a buffer was made in inference mode.
    """
    for key, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.is_inference():
            raise ValueError(
                f"{name}: {key} was made under torch.inference_mode(), so that nothing behind it "
                "can have a gradient: make or load the model outside of it"
            )


def split_model(
    model: nn.Module | Iterable[nn.Module],
    counts: Sequence[int],
    *,
    names: Sequence[str] | None = None,
    recompute: bool | Sequence[bool] = False,
) -> list[PipelineStage]:
    """Return a model as stages: stage s holds the next counts[s] of its layers.

    The layers are the model's own, not copies.

    Parameters
    ----------
    model, names
        As for `model_layers`.
    counts
        Number of layers of every stage; they sum to the number of layers. A split of a profile with
        the loss counts it as a layer of the last stage: take 1 off there.
    recompute
        Whether stages recompute: for all, or one a stage.

    Raises
    ------
    ValueError
        If the counts lose or repeat a layer, or `recompute` has another length.

    Examples
    --------
    >>> stages = split_model(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)), [2, 1])
    >>> [stage.names for stage in stages]
    [('0', '1'), ('2',)]
    """
    layers = model_layers(model, names)
    counts = [index(count) for count in counts]
    if sum(counts) != len(layers) or min(counts, default=-1) < 0:
        fault = f"split {counts} places {sum(counts)} layers, but the model has {len(layers)}"
        if sum(counts) == len(layers) + 1:
            fault += (
                "; a profile with the loss has one layer more than the model: take 1 off the last "
                "count"
            )
        raise ValueError(fault)
    modes = [recompute] * len(counts) if isinstance(recompute, bool) else list(recompute)
    if len(modes) != len(counts):
        raise ValueError(f"recompute has {len(modes)} values for {len(counts)} stages")
    ends = list(accumulate(counts))
    stages = []
    for end, count, mode in zip(ends, counts, modes, strict=True):
        chosen = layers[end - count : end]
        stages.append(
            PipelineStage(
                [layer for _, layer in chosen], names=[name for name, _ in chosen], recompute=mode
            )
        )
    return stages
