"""From measured step times to the overhead of an op and the latency of a message.

The makespan is a maximum of sums: convex, piecewise linear and growing in both. On a piece its
derivatives are how often the longest path meets an op and a message; so Gauss-Newton steps, kept
from going below 0, end exactly where noiseless measurements came from.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from pipesim.arrays import FloatArray
from pipesim.batch import simulate_many
from pipesim.checks import check_amount, check_count, is_number, shown
from pipesim.components import Link
from pipesim.pipeline import Pipeline
from pipesim.resolve import ScheduleLike, resolve_schedule
from pipesim.schedule import Schedule
from pipesim.text_table import count_text, text_table

FITS = 0.02  # relative: step times are not measured more exactly than that
NUDGE = 1e-6  # of a step, by which the derivatives are taken: exact unless a kink is that near
EXACT = 1e-22  # of squared relative errors: nothing is left to fit
LEAST_GAIN = 1e-9  # relative, of the squared errors: a round that gains less is the last
SAME = 1e-6  # relative: slopes in proportion but for this are so
ROUNDS, HALVINGS = 50, 16


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredRun:
    """A step that was measured, and what is known of its costs without overhead and latency.

    Parameters
    ----------
    pipeline
        Costs of the stages, speeds and bandwidths; its overheads and latencies are not looked at.
    schedule, microbatches
        As for `simulate`.
    step_ms
        Measured from the first start to the last end of compute [ms].
    protocol
        As for `simulate`.
    end_ms
        When each op ended, from the first start, in the order of the schedule, array (ops,): then
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
    """What an op and a message take beyond their costs; made by `fit_overhead`.

    Parameters
    ----------
    overhead_ms, latency_ms
        Of every op, of every message [ms].
    runs
        What was run, a text each.
    measured_ms, fitted_ms
        Step times: measured, and simulated with these two [ms].
    note
        What is wrong if no values from 0 up fit; "" if some do.
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
        return _text(head, self.runs, self.measured_ms, self.fitted_ms, self.note)


@dataclass(frozen=True, slots=True)
class StepTimeFit:
    """Step times by the formula (m + p - 1)(c/m + o); made by `fit_step_times`.

    Parameters
    ----------
    ranks
        Number of ranks p.
    compute_ms
        c, what the whole batch takes on one stage [ms].
    overhead_ms
        o, what each pass of a micro-batch takes beyond [ms].
    microbatches
        Numbers of micro-batches m.
    measured_ms, fitted_ms
        Step times: measured, and by the formula [ms].
    note
        What is wrong if no values from 0 up fit; "" if some do.
    """

    ranks: int
    compute_ms: float
    overhead_ms: float
    microbatches: tuple[int, ...]
    measured_ms: tuple[float, ...]
    fitted_ms: tuple[float, ...]
    note: str = ""

    def step_ms(self, microbatches: int) -> float:
        """Return what the step takes with so many micro-batches [ms]."""
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
        return _text(head, labels, self.measured_ms, self.fitted_ms, self.note)


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
        If the runs cannot tell overhead and latency apart, or a time is none.
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
        """Return what the goals would be, array (points, goals)."""
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
    note = _NOTHING_FITS if 0 in point and _error(measured, fitted) > FITS else ""
    return OverheadFit(overhead, latency, labels, measured, fitted, note)


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
        If there are fewer than two, or a time is none.

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
    measured = np.array([_step_time(time) for time in step_ms.values()])
    if len(counts) < 2:
        raise ValueError(f"step times of {len(counts)} number of micro-batches: give two or more")
    passes = counts + p - 1
    columns = np.stack([passes / counts, passes], axis=1)
    relative = columns / measured[:, np.newaxis]
    compute, overhead = _not_negative(relative, np.ones(len(counts))).tolist()
    fitted = columns @ [compute, overhead]
    free = np.linalg.lstsq(relative, np.ones(len(counts)))[0]
    note = ""
    if _error(measured, fitted) > FITS and free.min() < 0:
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


_NOTHING_FITS = (
    "no overhead and latency from 0 up fit: the steps are shorter than their costs, or grow "
    "otherwise than by op and message. Suspect costs measured with a profiler on or before clocks "
    "settled, other stages or another schedule than those that ran, or ranks that wait for each "
    "other as this protocol does not say"
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


def _goal(run: MeasuredRun, order: Schedule) -> FloatArray:
    """Return what is to be met: relative to the step, its length or the ends of its ops."""
    times = np.array([_step_time(run.step_ms)])
    if run.end_ms is not None:
        times = np.asarray(run.end_ms, dtype=np.float64)
        if times.shape != (len(order),) or not np.isfinite(times).all():
            raise ValueError(
                f"end_ms of {order.name}: an array {times.shape}, not {len(order)} finite times, "
                "one an op in the order of the schedule"
            )
    return _relative(run, times)


def _relative(run: MeasuredRun, times: FloatArray) -> FloatArray:
    """Return times as shares of the step, so that a run counts as one, with any number of them."""
    share: FloatArray = times / (run.step_ms * np.sqrt(times.shape[-1]))
    return share


def _simulated(run: MeasuredRun, order: Schedule, pipes: list[Pipeline]) -> FloatArray:
    """Return the steps or, where they were measured, the ends of the ops on each pipeline [ms]."""
    ends = run.end_ms is not None
    found = simulate_many(order, pipes, protocol=run.protocol, ops=ends, memory_limit=False)
    return found["end_ms"] if ends else found["makespan_ms"][:, np.newaxis]


def _both(points: FloatArray, latency_ms: float | None) -> list[tuple[float, float]]:
    """Return overhead and latency of each point, which has both or the overhead alone."""
    if latency_ms is None:
        return [(overhead, latency) for overhead, latency in points.tolist()]
    return [(overhead, float(latency_ms)) for (overhead,) in points.tolist()]


def _step_time(value: float) -> float:
    if not is_number(value) or not 0 < value < np.inf:
        raise ValueError(f"step_ms = {shown(value)} is not a time above 0")
    return float(value)


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
    """Return the point from 0 up whose times are nearest to the goal, and the slopes there."""
    nudges = np.concatenate([np.zeros((1, size)), NUDGE * step_ms * np.eye(size)])
    best = None
    # A kink may hold up one descent; from beyond it another gets there.
    for start in np.concatenate([np.zeros((1, size)), 0.1 * step_ms * np.eye(size)]):
        point, slopes, distance = start, np.zeros((len(goal), size)), np.inf
        for _ in range(ROUNDS):
            near = times(point + nudges)
            off = near[0] - goal
            distance = float(off @ off)
            slopes = (near[1:] - near[0]).T / (NUDGE * step_ms)
            if distance < EXACT:
                return point, slopes
            way = _not_negative(slopes, slopes @ point - off) - point
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


def _not_negative(columns: FloatArray, goal: FloatArray) -> FloatArray:
    """Return the x >= 0 with columns @ x nearest to the goal: the best of all sets of zeros."""
    size = columns.shape[1]
    found = np.zeros(size)
    least = float(goal @ goal)
    for count in range(1, size + 1):
        for kept in combinations(range(size), count):
            free = np.linalg.lstsq(columns[:, kept], goal)[0]
            off = columns[:, kept] @ free - goal
            if free.min() >= 0 and off @ off < least:
                least = float(off @ off)
                found = np.zeros(size)
                found[list(kept)] = free
    return found


def _error(measured: npt.ArrayLike, fitted: npt.ArrayLike) -> float:
    return float(np.abs(np.divide(fitted, measured) - 1).max())


def _text(
    head: str,
    labels: Sequence[str],
    measured: Sequence[float],
    fitted: Sequence[float],
    note: str,
) -> str:
    columns = {
        "run": list(labels),
        "measured ms": [f"{time:#.4g}" for time in measured],
        "fitted ms": [f"{time:#.4g}" for time in fitted],
        "error": [
            f"{round(b / a - 1, 3) + 0.0:+.1%}" for a, b in zip(measured, fitted, strict=True)
        ],
    }
    table = text_table(columns, left=("run",))
    return f"{head}\n{table}" + (f"\n{note}" if note else "")
