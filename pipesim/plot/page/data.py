"""What a page shows of a run, as columns of numbers: bars, idle time, transfers, what is held.

Times are from the first start of the run [ms]. Texts are put together in the browser, so that a
page of many ops stays small.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pipesim.base.types import FloatArray, Int32Array
from pipesim.plot.gantt.chart import BAR, faces, lanes
from pipesim.plot.gantt.legend import limits_of, shade_words
from pipesim.plot.gantt.step_end import EndBoxes
from pipesim.plot.gantt.titles import saved_text, slowest_rival
from pipesim.plot.page.held import Held, held_by_ranks
from pipesim.plot.page.window import Window, times_of
from pipesim.run.idle import waits
from pipesim.run.run import Run

Columns: TypeAlias = dict[str, Any]
UInt8Array: TypeAlias = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Picture:
    """What a chart draws of a run, as numbers and short texts.

    Parameters
    ----------
    title
        What stands above it.
    saved
        How much sooner the run ends than the slowest of those beside it, if it does: from when to
        when [ms], and as text.
    begin, end
        Limits of the time axis [ms].
    shares
        A text a rank: how much of the time it is idle.
    darker
        What darker bars mean, where some are.
    bars
        Ops by kind: where each is drawn (`left`, `right`, `bottom`, `top`, `colour`), and what is
        told of it: `stage`, `microbatch`, `slice` (-1 where micro-batches are whole), `rank`,
        `ready`, and the columns of `waits`.
    idle, ends
        Idle stretches by cause, and what comes at the end of a step by kind, as boxes.
    limits
        Makespans [ms] of equal stages by the closed form, where one is known, and of the lower
        bound, by their words.
    messages
        When and on which ranks messages leave and arrive: `x0`, `y0`, `x1`, `y1`, `microbatch`.
    path
        The ops on the critical path, as boxes.
    held
        What each rank holds over time, by unit.
    """

    title: str
    saved: tuple[float, float, str] | None
    begin: float
    end: float
    shares: list[str]
    darker: str | None
    bars: dict[str, Columns]
    idle: dict[str, Columns]
    ends: dict[str, Columns]
    limits: dict[str, float]
    messages: Columns
    path: Columns
    held: dict[str, Held]


def picture_of(
    run: Run,
    title: str,
    window: Window,
    ends: Mapping[str, EndBoxes] | None = None,
    beside: Sequence[Run] = (),
    with_held: bool = True,
) -> Picture:
    """Return what a chart draws of the part of a run that is in a window.

    With what comes after its ops, by kind; with what it saves `beside` other runs; and with what
    its ranks hold, or not.
    """
    limits = limits_of(run)
    after = {kind: _end_boxes(boxes) for kind, boxes in (ends or {}).items()}
    last = window.end
    if not window.notice:  # there is all of the run, and what it is measured against
        last = max(last, *limits.values(), *(boxes["right"].max() for boxes in after.values()))
    return Picture(
        title=title,
        saved=_saved(run, beside),
        begin=window.begin,
        end=float(last),
        shares=[f"{share:.0%} idle" for share in run.rank_times.bubble_fraction.tolist()],
        darker=shade_words([run]),
        bars=_bars(run, window),
        idle=_idle(run, window),
        ends=after,
        limits=limits,
        messages=_messages(run, window),
        path=_critical_ops(run, window),
        held=held_by_ranks(run, window.begin, window.end) if with_held else {},
    )


def _saved(run: Run, beside: Sequence[Run]) -> tuple[float, float, str] | None:
    words = saved_text(run, beside)
    if words is None:
        return None
    return run.makespan, slowest_rival(run, beside).makespan, words


def _bars(run: Run, window: Window) -> dict[str, Columns]:
    """Return the ops in a window by kind."""
    schedule = run.schedule
    start, end = times_of(run)
    inside = window.holds(start, end)
    centre, height = lanes(run, 0.0)
    columns = {
        "left": start,
        "right": end,
        "bottom": (centre + height / 2).astype(np.float32),
        "top": (centre - height / 2).astype(np.float32),
        "colour": _colours(run),
        "stage": schedule.stage,
        "microbatch": schedule.microbatch,
        "slice": schedule.slice if schedule.slices > 1 else np.full_like(schedule.slice, -1),
        "rank": schedule.rank,
        "ready": np.maximum(run.spans.ready - run.spans.begin, 0.0),
        **waits(run.program, run.workload, run.spans, run.idle_spans),
    }
    found = {}
    for kind in sorted(schedule.kinds):
        own = np.flatnonzero(inside & (schedule.kind == kind))
        found[kind.name] = {name: column[own] for name, column in columns.items()}
    return found


def _idle(run: Run, window: Window) -> dict[str, Columns]:
    """Return the idle stretches in a window by cause, those that there are."""
    begin = run.spans.begin
    found = {}
    for cause, spans in run.idle_spans.items():
        start, end = spans.start - begin, spans.end - begin
        chosen = window.holds(start, end) & (end > start)
        if chosen.any():
            found[cause] = _boxes(spans.rank[chosen], start[chosen], end[chosen])
    return found


def _messages(run: Run, window: Window) -> Columns:
    """Return the messages in a window: when and on which ranks they leave and arrive."""
    begin, target = run.spans.begin, run.program.target
    sent = np.flatnonzero((target >= 0) & ~np.isnan(run.spans.departure))
    leaves, arrives = run.spans.departure[sent] - begin, run.spans.arrival[sent] - begin
    chosen = (arrives >= window.begin) & (leaves <= window.end)
    message = sent[chosen]
    return {
        "x0": leaves[chosen],
        "x1": arrives[chosen],
        "y0": run.program.source[message].astype(np.float32),
        "y1": target[message].astype(np.float32),
        "microbatch": run.schedule.microbatch[message],
    }


def _critical_ops(run: Run, window: Window) -> Columns:
    """Return where the ops on the critical path stand: boxes as those of `bars`."""
    path = run.critical_path
    number = path.loc[path["resource"] == "compute", "number"].to_numpy()
    start, end = times_of(run)
    number = number[window.holds(start[number], end[number])]
    return _boxes(run.schedule.rank[number], start[number], end[number])


def _boxes(rank: Int32Array, start: FloatArray, end: FloatArray) -> Columns:
    """Return bars of full height."""
    row = rank.astype(np.float32)
    half = np.float32(BAR / 2)
    return {"left": start, "right": end, "bottom": row + half, "top": row - half}


def _end_boxes(boxes: EndBoxes) -> Columns:
    foot = (boxes.rank + BAR / 2).astype(np.float32)
    return {
        "left": boxes.start,
        "right": boxes.end,
        "bottom": foot,
        "top": (foot - BAR * boxes.height).astype(np.float32),
    }


def _colours(run: Run) -> UInt8Array:
    """Return the colour of every bar, array (ops, 4): red, green, blue, opacity, up to 255."""
    opaque = np.ones((len(run.schedule), 1))
    return np.round(255 * np.concatenate([faces(run), opaque], axis=1)).astype(np.uint8)
