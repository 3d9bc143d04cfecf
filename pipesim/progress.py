"""How long work reports: a function of what is done so far and what there is in all."""

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[int, int], None]
