"""Compute and overhead of a pass, fitted to step times by the closed form of equal stages."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipesim.base.checks import check_count
from pipesim.studies.fits.least_squares import (
    FITS,
    checked_time,
    fit_text,
    largest_error,
    not_negative,
)

_SLOWER_THAN_CALLS = (
    "no compute and overhead from 0 up fit: the step grows faster with m than the number of passes "
    "does, so bubble and overhead do not explain it. Suspect ranks that run one after the other "
    "instead of at the same time, or a host that waits for its device at every micro-batch"
)
_FASTER_THAN_FREE = (
    "no compute and overhead from 0 up fit: the step gains more from micro-batches than the whole "
    "bubble. Suspect a warm-up step that was timed with the few, memory that ran short with them, "
    "or stages too unequal for this formula: see fit_overhead"
)


@dataclass(frozen=True, slots=True)
class StepTimeFit:
    """Step times by the formula (m + p - 1)(c/m + o); made by `fit_step_times`.

    Parameters
    ----------
    ranks
        Number of ranks p.
    compute_ms
        Compute c of the whole batch on one stage [ms].
    overhead_ms
        Overhead o of each pass of a micro-batch [ms].
    microbatches
        Numbers of micro-batches m.
    measured_ms, fitted_ms
        Step times: measured, and by the formula [ms].
    note
        Warning that no values from 0 up fit; "" if some do.
    """

    ranks: int
    compute_ms: float
    overhead_ms: float
    microbatches: tuple[int, ...]
    measured_ms: tuple[float, ...]
    fitted_ms: tuple[float, ...]
    note: str = ""

    def step_ms(self, microbatches: int) -> float:
        """Return the step time for a number of micro-batches [ms]."""
        m = check_count("microbatches", microbatches)
        return (m + self.ranks - 1) * (self.compute_ms / m + self.overhead_ms)

    def __str__(self) -> str:
        m = self.microbatches[0]
        share = ""
        if self.compute_ms > 0:
            share = f", {self.overhead_ms * m / self.compute_ms:.1%} of compute at m = {m}"
        head = (
            f"compute {self.compute_ms:.4g} ms a stage and batch, "
            f"overhead {self.overhead_ms:.4g} ms a micro-batch{share}"
        )
        labels = tuple(f"m = {m}" for m in self.microbatches)
        return fit_text(head, labels, self.measured_ms, self.fitted_ms, self.note)


def fit_step_times(step_ms: Mapping[int, float], ranks: int) -> StepTimeFit:
    """Return the compute and the overhead by which step times follow (m + p - 1)(c/m + o).

    That is GPipe and 1F1B with equal stages, a batch cut into m micro-batches, and free transfers.
    Least squares of the relative errors, over all c and o from 0 up.

    Parameters
    ----------
    step_ms
        Number of micro-batches m -> measured step time, in any unit; for tokens/s give 1/rate.
    ranks
        Number of ranks p.

    Raises
    ------
    ValueError
        If there are fewer than two times, or one is not above 0.

    Examples
    --------
    From 8 to 16 micro-batches the bubble falls from 47 to 30 %, and nothing is gained:

    >>> print(fit_step_times({8: 1e6 / 8077, 16: 1e6 / 7987}, ranks=8))
    compute 44.96 ms a stage and batch, overhead 2.633 ms a micro-batch, 46.9% of compute at m = 8
    run     measured ms  fitted ms  error
    m = 8         123.8      123.8  +0.0%
    m = 16        125.2      125.2  +0.0%
    """
    p = check_count("ranks", ranks)
    counts = np.array([check_count("microbatches", m) for m in step_ms], dtype=np.float64)
    measured = np.array([checked_time(time) for time in step_ms.values()])
    if len(counts) < 2:
        raise ValueError(f"step times of {len(counts)} number of micro-batches: give two or more")
    passes = counts + p - 1
    columns = np.stack([passes / counts, passes], axis=1)
    relative = columns / measured[:, np.newaxis]
    compute, overhead = not_negative(relative, np.ones(len(counts))).tolist()
    fitted = columns @ [compute, overhead]
    free = np.linalg.lstsq(relative, np.ones(len(counts)))[0]
    note = ""
    if largest_error(measured, fitted) > FITS and free.min() < 0:
        note = _FASTER_THAN_FREE if free[1] < 0 else _SLOWER_THAN_CALLS
    return StepTimeFit(
        p,
        compute,
        overhead,
        tuple(int(m) for m in step_ms),
        tuple(measured.tolist()),
        tuple(fitted.tolist()),
        note,
    )
