"""Type aliases that many signatures use: arrays, and progress hooks."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
Int32Array: TypeAlias = npt.NDArray[np.int32]
Int8Array: TypeAlias = npt.NDArray[np.int8]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

# A progress hook, called with the amount of work done and the amount in all.
Progress: TypeAlias = Callable[[int, int], None]
