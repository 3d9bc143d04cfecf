"""The bytes of activations that a rank really holds, counted as autograd takes and frees them.

Autograd hands every tensor that it saves for the backward to a hook and keeps what the hook gives
back; when the graph lets go of that, the bytes are free again. What else is held between ops (a
stage's input, gradients that wait for W) is kept the same way.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from pipesim.runtime.step.saved_bytes import storage_address


class HeldBytes:
    """The bytes that one rank holds: every storage once, however many of its tensors are kept.

    Parameters
    ----------
    excluded
        Addresses of storages that are there anyway and do not count: `storages_of` the stages.

    Examples
    --------
    >>> import torch
    >>> held = HeldBytes([])
    >>> first = held.keep(torch.zeros(100))
    >>> second = held.keep(first.tensor[:10])
    >>> held.now
    400
    >>> del first, second
    >>> held.now, held.peak
    (0, 400)
    """

    def __init__(self, excluded: Iterable[int]) -> None:
        self.now = self.peak = 0
        self._keepers = dict.fromkeys(excluded, 1)

    def keep(self, tensor: Tensor) -> "Kept":
        """Return a handle of the tensor, which counts as held as long as the handle lives."""
        address = storage_address(tensor)
        keepers = self._keepers.get(address, 0)
        self._keepers[address] = keepers + 1
        if not keepers:
            self.now += tensor.untyped_storage().nbytes()
            self.peak = max(self.peak, self.now)
        return Kept(tensor, self)

    def let_go(self, tensor: Tensor) -> None:
        """Count one handle of the tensor less; the storage is free after its last one."""
        address = storage_address(tensor)
        self._keepers[address] -= 1
        if not self._keepers[address]:
            del self._keepers[address]
            self.now -= tensor.untyped_storage().nbytes()

    def saving(self) -> AbstractContextManager[None]:
        """Return a context in which all that autograd saves is counted."""
        # Detached: a graph that held an output with its place in the graph would never be freed.
        context: AbstractContextManager[None] = saved_tensors_hooks(
            lambda tensor: self.keep(tensor.detach()), unchanged
        )
        return context


class Kept:
    """A handle of a tensor, which counts as held until the handle is gone."""

    __slots__ = ("_held", "_version", "tensor")

    def __init__(self, tensor: Tensor, held: HeldBytes) -> None:
        self.tensor, self._held, self._version = tensor, held, tensor._version

    def __del__(self) -> None:
        self._held.let_go(self.tensor)


def unchanged(kept: Kept) -> Tensor:
    """Return the tensor that was kept.

    Raises
    ------
    RuntimeError
        If it has been changed since; without hooks autograd would check that itself.
    """
    if kept.tensor._version != kept._version:
        raise RuntimeError(
            f"a tensor {tuple(kept.tensor.shape)} that the backward needs was modified by an "
            "in-place operation after the forward had saved it"
        )
    return kept.tensor
