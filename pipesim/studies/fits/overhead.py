"""The overhead of an op and the latency of a message, fitted to measured step times.

The makespan is a maximum of sums: convex, piecewise linear and growing in both. On a piece its
derivatives are how often the longest path meets an op and a message; so Gauss-Newton steps, kept
from going below 0, end exactly where noiseless measurements came from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pipesim.base.checks import check_amount
from pipesim.base.text import count_text
from pipesim.base.types import FloatArray
from pipesim.pipeline.links import Link
from pipesim.pipeline.pipeline import Pipeline
from pipesim.run.many import simulate_many
from pipesim.run.resolve import ScheduleLike, resolve_schedule
from pipesim.schedules.order.schedule import Schedule
from pipesim.studies.fits.least_squares import (
    FITS,
    checked_time,
    fit_text,
    largest_error,
    not_negative,
)

NUDGE = 1e-6  # difference for the derivatives, relative to a step: exact unless a kink is that near
EXACT = 1e-22  # of squared relative errors: nothing is left to fit
LEAST_GAIN = 1e-9  # relative, of the squared errors: a round that gains less is the last
SAME = 1e-6  # relative; slopes that are proportional but for this count as proportional
ROUNDS, HALVINGS = 50, 16


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRun:
    """A measured step, and its pipeline without overhead and latency.

    Parameters
    ----------
    pipeline
        Costs of the stages, speeds and bandwidths; its overheads and latencies are ignored.
    schedule, microbatches
        As for `simulate`.
    step_ms
        Measured step time, from the first start to the last end of compute [ms].
    protocol
        As for `simulate`.
    end_ms
        End of each op from the first start, in the order of the schedule, array (ops,) [ms]: then
        these are fitted, and one run may be enough.
    """

    pipeline: Pipeline
    schedule: ScheduleLike
    step_ms: float
    microbatches: int | None = None
    protocol: str = "eager"
    end_ms: npt.ArrayLike | None = None


@dataclass(frozen=True, slots=True)
class OverheadFit:
    """The fitted overhead of an op and latency of a message; made by `fit_overhead`.

    Parameters
    ----------
    overhead_ms, latency_ms
        Overhead of every op, latency of every message [ms].
    runs
        Text of each run.
    measured_ms, fitted_ms
        Step times: measured, and simulated with these two [ms].
    note
        Warning that no values from 0 up fit; "" if some do.
    """

    overhead_ms: float
    latency_ms: float
    runs: tuple[str, ...]
    measured_ms: tuple[float, ...]
    fitted_ms: tuple[float, ...]
    note: str = ""

    @property
    def residual_ms(self) -> tuple[float, ...]:
        """Fitted minus measured step times [ms]."""
        return tuple((np.subtract(self.fitted_ms, self.measured_ms)).tolist())

    def apply(self, pipe: Pipeline) -> Pipeline:
        """Return a pipeline with this overhead on every device, this latency on every link."""
        return _adjusted(pipe, self.overhead_ms, self.latency_ms)

    def __str__(self) -> str:
        head = f"overhead {self.overhead_ms:.4g} ms an op, latency {self.latency_ms:.4g} ms"
        return fit_text(head, self.runs, self.measured_ms, self.fitted_ms, self.note)


def fit_overhead(runs: Sequence[MeasuredRun], *, latency_ms: float | None = None) -> OverheadFit:
    """Return the overhead of every op and the latency of every message that fit measured steps.

    Least squares of the relative errors, over all overheads and latencies from 0 up.

    Parameters
    ----------
    runs
        Two or more that differ in schedule, micro-batches or stages; or one with `end_ms`.
    latency_ms
        The latency, where it is known: then only the overhead is fitted, and one run is enough.

    Raises
    ------
    ValueError
        If the runs cannot tell overhead and latency apart, or a time is not above 0.
    ScheduleError, DeadlockError
        If a schedule does not fit its pipeline, or cannot go on.

    Examples
    --------
    >>> pipe = Pipeline.from_costs([10, 20], [20, 40])
    >>> four, eight = MeasuredRun(pipe, "1f1b", 281, 4), MeasuredRun(pipe, "1f1b", 529, 8)
    >>> print(fit_overhead([four, eight]))
    overhead 1 ms an op, latency 0.5 ms
    run          measured ms  fitted ms  error
    1f1b, m = 4        281.0      281.0  +0.0%
    1f1b, m = 8        529.0      529.0  +0.0%
    """
    if not runs:
        raise ValueError("there are no runs to fit")
    orders = [resolve_schedule(r.pipeline, r.schedule, r.microbatches).relabelled() for r in runs]
    goals = [_goal(run, order) for run, order in zip(runs, orders, strict=True)]
    if latency_ms is not None:
        check_amount("latency_ms", latency_ms)

    def times(points: FloatArray) -> FloatArray:
        """Return the goals simulated at some overheads and latencies, array (points, goals)."""
        columns = []
        for run, order in zip(runs, orders, strict=True):
            pipes = [_adjusted(run.pipeline, *values) for values in _both(points, latency_ms)]
            columns.append(_relative(run, _simulated(run, order, pipes)))
        return np.concatenate(columns, axis=1)

    size = 2 if latency_ms is None else 1
    point, slopes = _fitted(times, np.concatenate(goals), size, max(r.step_ms for r in runs))
    if np.linalg.matrix_rank(slopes, tol=SAME * np.abs(slopes).max()) < size:
        raise ValueError(
            f"{count_text(len(runs), 'run')} cannot tell overhead and latency apart: the longest "
            "paths meet ops and messages in the same proportion. Add a run of another schedule or "
            "number of micro-batches, give the ends of its ops (end_ms), or say latency_ms"
        )
    ((overhead, latency),) = _both(point[np.newaxis], latency_ms)
    fitted = tuple(
        float(_simulated(run, order, [_adjusted(run.pipeline, overhead, latency)]).max())
        for run, order in zip(runs, orders, strict=True)
    )
    measured = tuple(float(run.step_ms) for run in runs)
    labels = tuple(f"{order.name}, m = {order.microbatches}" for order in orders)
    note = _NOTHING_FITS if 0 in point and largest_error(measured, fitted) > FITS else ""
    return OverheadFit(overhead, latency, labels, measured, fitted, note)


_NOTHING_FITS = (
    "no overhead and latency from 0 up fit: the steps are shorter than their costs, or grow "
    "otherwise than by op and message. Suspect costs measured with a profiler on or before clocks "
    "settled, other stages or another schedule than those that ran, or ranks that wait for each "
    "other as this protocol does not say"
)


def _goal(run: MeasuredRun, order: Schedule) -> FloatArray:
    """Return the goals of a run: its step time or the ends of its ops, relative to the step."""
    times = np.array([checked_time(run.step_ms)])
    if run.end_ms is not None:
        times = np.asarray(run.end_ms, dtype=np.float64)
        if times.shape != (len(order),) or not np.isfinite(times).all():
            raise ValueError(
                f"end_ms of {order.name}: an array {times.shape}, not {len(order)} finite times, "
                "one an op in the order of the schedule"
            )
    return _relative(run, times)


def _relative(run: MeasuredRun, times: FloatArray) -> FloatArray:
    """Return times relative to the step, weighted so that a run counts once with all its times."""
    share: FloatArray = times / (run.step_ms * np.sqrt(times.shape[-1]))
    return share


def _simulated(run: MeasuredRun, order: Schedule, pipes: list[Pipeline]) -> FloatArray:
    """Return the simulated step of each pipeline or, if measured, the ends of its ops [ms]."""
    ends = run.end_ms is not None
    found = simulate_many(order, pipes, protocol=run.protocol, ops=ends, memory_limit=False)
    return found["end_ms"] if ends else found["makespan_ms"][:, np.newaxis]


def _both(points: FloatArray, latency_ms: float | None) -> list[tuple[float, float]]:
    """Return (overhead, latency) of each point [ms], which has both or the overhead alone."""
    if latency_ms is None:
        return [(overhead, latency) for overhead, latency in points.tolist()]
    return [(overhead, float(latency_ms)) for (overhead,) in points.tolist()]


def _adjusted(pipe: Pipeline, overhead_ms: float, latency_ms: float) -> Pipeline:
    pairs = [(near, far) for near in range(pipe.ranks) for far in range(pipe.ranks) if near != far]
    return replace(
        pipe,
        devices=tuple(replace(device, overhead_ms=overhead_ms) for device in pipe.devices),
        links={pair: Link(latency_ms, pipe.link(*pair).bandwidth_gb_s) for pair in pairs},
    )


def _fitted(
    times: Callable[[FloatArray], FloatArray], goal: FloatArray, size: int, step_ms: float
) -> tuple[FloatArray, FloatArray]:
    """Return the point from 0 up with times nearest to the goal, and the times' slopes there."""
    nudges = np.concatenate([np.zeros((1, size)), NUDGE * step_ms * np.eye(size)])
    best = None
    # A kink may stop a descent; another start may get past it.
    for start in np.concatenate([np.zeros((1, size)), 0.1 * step_ms * np.eye(size)]):
        point, slopes, distance = start, np.zeros((len(goal), size)), np.inf
        for _ in range(ROUNDS):
            near = times(point + nudges)
            off = near[0] - goal
            distance = float(off @ off)
            slopes = (near[1:] - near[0]).T / (NUDGE * step_ms)
            if distance < EXACT:
                return point, slopes
            way = not_negative(slopes, slopes @ point - off) - point
            tried = point + way * 0.5 ** np.arange(HALVINGS)[:, np.newaxis]
            missed = times(np.maximum(tried, 0.0)) - goal
            shorter = np.flatnonzero((missed**2).sum(axis=1) < distance * (1 - LEAST_GAIN))
            if not len(shorter):
                break
            point = np.maximum(tried[shorter[0]], 0.0)
        if best is None or distance < best[2]:
            best = point, slopes, distance
    assert best is not None
    return best[0], best[1]
