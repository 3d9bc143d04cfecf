"""The state of the random number generators, so that a forward can be repeated."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.utils.checkpoint import get_device_states, set_device_states


@dataclass(frozen=True, slots=True)
class RandomState:
    """The state of the random number generators before a forward.

    Examples
    --------
    >>> state = RandomState.now(torch.zeros(2))
    >>> first = torch.rand(3)
    >>> with state.repeated():
    ...     torch.equal(torch.rand(3), first)
    True
    """

    cpu: Tensor
    devices: Sequence[int]
    states: Sequence[Tensor]

    @classmethod
    def now(cls, activation: Tensor) -> Self:
        """Return the state of the CPU's generator and of that of the activation's device."""
        return cls(torch.get_rng_state(), *get_device_states(activation))

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Put the generators back to this state within the block."""
        with torch.random.fork_rng(self.devices):
            torch.set_rng_state(self.cpu)
            set_device_states(self.devices, self.states)
            yield
