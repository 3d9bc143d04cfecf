"""A run as a screen of text: where the time goes, what it is measured against, and notes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from pipesim.base.ops import Kind
from pipesim.base.text import (
    count_text,
    plural,
    size_cells,
    size_text,
    size_unit,
    span_text,
    text_table,
)
from pipesim.base.types import Progress
from pipesim.pipeline.batch_sizes import BatchSizes
from pipesim.run.idle import Cause, causes_of
from pipesim.run.memory import StateBytes, flight_noun, state_by_rank
from pipesim.run.run import Run
from pipesim.run.step import Step
from pipesim.schedules.families.registry import FAMILIES
from pipesim.schedules.order.schedule import Schedule
from pipesim.studies.ladder import first_largest, ladder

if TYPE_CHECKING:
    import pandas as pd

TIGHT = 1e-9  # relative; this close to its lower bound a run has reached it
MOST_SENSITIVE = 16  # parameters of each unit that are printed
MOST_REPLICAS = 16  # that are printed


def run_report(run: Run, progress: Progress | None = None, batch: BatchSizes | None = None) -> str:
    """Return a run as text: ladder, ranks, memory, bubble, batch, lower bound, source."""
    rungs = ladder(run, progress)
    parts = [ladder_text(rungs), rank_text(run)]
    if any(run.peak_memory):
        parts.append(memory_text(run))
    parts.append(bubble_text(run))
    if batch is not None:
        parts.append(str(batch))
    parts.append(bound_text(run))
    if run.pipeline.source:
        parts.append(fill(f"source: {run.pipeline.source}", width=100, subsequent_indent="  "))
    return "\n".join(parts)


def headline(run: Run) -> str:
    """Return what was run in one line."""
    schedule = run.schedule
    title = f"{' '.join(run.pipeline.title.split())}: " if run.pipeline.title else ""
    stages = count_text(schedule.stages, "stage")
    on = "" if schedule.stages == schedule.ranks else f" on {count_text(schedule.ranks, 'rank')}"
    size = f"{stages}{on} x {count_text(schedule.microbatches, 'micro-batch')}"
    return f"{title}{size}, {run.program.title}"


def ladder_text(rungs: "pd.DataFrame") -> str:
    """Return the ladder as text: what each departure from equal stages adds."""
    show = time_format(rungs.step_ms.max())
    lines = [f"{'':32}{'step ms':>12}{'bubble':>10}"]
    for name, step, bubble, added, rank in rungs.itertuples(index=False):
        line = f"{name:32}{show(step):>12}{bubble:>10.2%}"
        if added == added:  # the first rung adds to nothing
            line += f"{'-' if added < 0 else '+'}{show(abs(added))} ms".rjust(15)
            line += f"  <- rank {rank}" if rank >= 0 and added > TIGHT * step else ""
        lines.append(line)
    return "\n".join(lines)


def rank_text(run: Run) -> str:
    """Return one line a rank: busy and idle time by cause, peaks held; and what the words mean."""
    times, show = run.rank_times, time_format(run.makespan)
    ranks = range(run.schedule.ranks)
    busiest = first_largest(times.busy)
    columns = {
        "rank": [str(rank) for rank in ranks],
        "busy": [show(x) for x in times.busy],
        **_idle_columns(run, show),
        "idle": [f"{x:.1%}" for x in times.bubble_fraction],
        "held": [str(count) for count in run.schedule.peak_in_flight()],
        **_memory_columns(run),
        "": ["<- bottleneck" if rank == busiest else "" for rank in ranks],
    }
    if np.ptp(times.busy) <= TIGHT * times.busy.max():
        del columns[""]
    waits = _with_messages(causes_of(run.program, run.queue_capacity))
    counted = plural(flight_noun(run.schedule))
    return (
        f"{text_table(columns, left=('',))}\n"
        f"{_waits_text(waits)}; exposed: of these waits, the part with the\n"
        f"message under way; held: {counted} in flight at most"
    )


def _idle_columns(run: Run, show: Callable[[float], str]) -> dict[str, list[str]]:
    """Return the idle time by cause of each rank; after the waits the part of them exposed."""
    times, causes = run.rank_times, causes_of(run.program, run.queue_capacity)
    last_wait = _with_messages(causes)[-1]
    columns = {}
    for cause in causes:
        columns[cause.column] = [show(x) for x in getattr(times, cause.key)]
        if cause is last_wait:
            columns["exposed"] = [show(x) for x in times.exposed_communication]
    return columns


def _with_messages(causes: Iterable[Cause]) -> list[Cause]:
    return [cause for cause in causes if cause.message]


def _waits_text(waits: Iterable[Cause]) -> str:
    """Return which message each cause waits for; columns that begin alike are told together."""
    groups = groupby(waits, key=lambda cause: cause.column.split()[0])
    found = [list(group) for _, group in groups]
    return "; ".join(
        f"{_together([cause.column for cause in group])}: "
        f"{_together([cause.message for cause in group])}"
        for group in found
    )


def _together(texts: Sequence[str]) -> str:
    """Return texts as a list, and the word that they begin with once.

    Examples
    --------
    >>> _together(["wait F", "wait B"])
    'wait F, B'
    """
    first, *others = texts
    word = first.split()[0] + " "
    return ", ".join([first, *(text.removeprefix(word) for text in others)])


def _memory_columns(run: Run) -> dict[str, list[str]]:
    """Return what each rank holds: all the time, at most, and what its device can hold."""
    limits = [device.memory_bytes for device in run.pipeline.devices]
    unit, scale = size_unit(max(run.peak_memory))
    columns = {
        f"state {unit}": size_cells(_state(run).total, scale),
        f"peak {unit}": size_cells(run.peak_memory, scale),
        f"limit {unit}": ["-" if limit is None else f"{limit / scale:.2f}" for limit in limits],
    }
    if not any(_state(run).total):
        del columns[f"state {unit}"]
    if all(limit is None for limit in limits):
        del columns[f"limit {unit}"]
    return columns if any(run.peak_memory) else {}


def memory_text(run: Run) -> str:
    """Return what all ranks hold together, by what it is, and what the fullest one holds."""
    state = _state(run)
    fullest = int(np.argmax(run.peak_memory))
    peak = run.peak_memory[fullest]
    activations = peak - int(state.total[fullest])
    totals = {
        "parameters": state.params.sum(),
        "gradients": state.grads.sum(),
        "optimizer": state.optimizer.sum(),
    }
    held = ", ".join(f"{name} {size_text(int(size))}" for name, size in totals.items() if size)
    all_ranks = f"state: {held} on all ranks together\n" if held else ""
    return (
        f"{all_ranks}peak: {size_text(peak)} on rank {fullest}, "
        f"{size_text(activations)} of it activations"
    )


def _state(run: Run) -> StateBytes:
    return state_by_rank(run.schedule, run.pipeline)


def bubble_text(run: Run) -> str:
    """Return the bubble in its three conventions, and how unequal ranks and gaps share it."""
    closed = run.closed_form
    reference = "none known" if closed is None else f"{closed:.2%}"
    ratio = "-" if run.bubble_ratio is None else f"{run.bubble_ratio:.2%}"
    span = "-" if run.span_bubble is None else f"{run.span_bubble:.2%}"
    inflation = "-" if run.inflation is None else f"{run.inflation:.4f}"
    return (
        f"bubble fraction {run.bubble_fraction:.2%} of p x makespan (closed form {reference}); "
        f"bubble ratio {ratio} of busy; span bubble {span}\n"
        f"inflation {inflation} x equal stages; balance {run.balance:.2%} x filling "
        f"{run.filling:.2%} = {1 - run.bubble_fraction:.2%} busy"
    )


def bound_text(run: Run) -> str:
    """Return the lower bound, and what it says about this run."""
    bound, above, show = run.lower_bound, run.above_lower_bound, time_format(run.makespan)
    if above <= TIGHT * run.makespan:
        fused = " with a fused backward" if Kind.B in run.schedule.kinds else ""
        equal = np.ptp(run.rank_times.busy) <= TIGHT * run.makespan
        verdict = f"no order{fused} can be faster" + ("" if equal else "; change the split")
    else:
        verdict = f"this run is {show(above)} ms ({above / run.makespan:.2%}) above it"
    return f"lower bound of these stages {show(bound)} ms: {verdict}"


def sensitivity_text(run: Run) -> str:
    """Return the parameters that the step answers to most, largest gain first; the rest counted."""
    table = run.sensitivity
    table = table[(table.gain_ms > 0) | (table.loss_ms > 0)]
    if table.empty:
        return "no cost, latency or speed moves the step"
    # Costs and latencies first: a ms of one is comparable with a ms of another.
    table = table.sort_values(
        ["unit", "gain_ms", "loss_ms"], ascending=[False, False, False], kind="stable"
    )
    shown = [part.head(MOST_SENSITIVE) for _, part in table.groupby("unit", sort=False)]
    rows = [row for part in shown for row in part.itertuples(index=False)]
    columns = {
        "": [row.parameter for row in rows],
        "is": [f"{row.value:.6g}" for row in rows],
        "by": [row.unit for row in rows],
        "gains ms": [f"{row.gain_ms:.4f}" for row in rows],
        "loses ms": [f"{row.loss_ms:.4f}" for row in rows],
    }
    more = len(table) - len(rows)
    tail = f"; {more} more have less" if more else ""
    return (
        f"{text_table(columns, left=('',))}\n"
        "what the step gains for each ms taken off (or 1 % of speed added), and loses the other "
        f"way;\nthey differ where several paths are critical{tail}"
    )


def step_text(step: Step) -> str:
    """Return the whole step as text: what comes after the last op, and which replica is slow."""
    training, show = step.training, time_format(step.step_ms)
    zero = f", ZeRO-{training.zero}" if training.zero else ""
    when = f"gradients reduced {'beside' if training.overlap else 'after'} the compute; "
    reduced = when if len(step.runs) > 1 else ""
    barrier = "waits for all gradients" if training.barrier else "waits for its rank's gradients"
    lines = [
        f"step {show(step.step_ms)} ms = makespan {show(step.makespan)} + reductions "
        f"{show(step.exposed_reduction_ms)} + optimizer and gathers {show(step.update_ms)}",
        f"{count_text(len(step.runs), 'replica')}{zero}: {reduced}every optimizer {barrier};\n"
        f"the next step can follow after {show(step.period_ms)} ms",
    ]
    if len(step.runs) == 1:
        return "\n".join(lines)
    if training.zero == 3:
        lines.append("ZeRO-3: how long ops wait for the parameters that they gather is left out")
    fastest = min(run.makespan for run in step.runs)
    if step.makespan - fastest <= TIGHT * step.makespan:
        return "\n".join([*lines, "all replicas take the same time"])
    waits = step.ranks.groupby("replica")[["wait_reduction", "wait_barrier"]].mean()
    slowest = step.slowest_replica
    # The slow ones first, as they set the step; numbered as they are.
    shown = sorted(range(len(step.runs)), key=lambda number: -step.runs[number].makespan)
    shown = sorted(shown[:MOST_REPLICAS])
    columns = {
        "replica": [str(number) for number in shown],
        "makespan": [show(step.runs[number].makespan) for number in shown],
        "bubble": [f"{step.runs[number].bubble_fraction:.1%}" for number in shown],
        "waits for others": [show(waits.wait_reduction[number]) for number in shown],
        "for the barrier": [show(waits.wait_barrier[number]) for number in shown],
        "": ["<- slowest" if number == slowest else "" for number in shown],
    }
    more = len(step.runs) - len(shown)
    tail = f"; {count_text(more, 'faster replica')} left out" if more else ""
    return "\n".join(
        [
            *lines,
            text_table(columns, left=("",)),
            f"waits: mean over ranks after their last op; a slow replica waits least{tail}",
        ]
    )


def time_format(largest: float) -> Callable[[float], str]:
    """Return how to write the times of a table whose largest is this: five digits or so."""
    decimals = 1 if largest >= 1000 else 2 if largest >= 10 else 4
    return f"{{:.{decimals}f}}".format


def chunk_note(schedule: Schedule) -> str | None:
    """Return what to give a schedule that takes any number of chunks and has one a rank.

    None if it has more, or is no such schedule.

    Examples
    --------
    >>> from pipesim.schedules.families.registry import build_schedule
    >>> chunk_note(build_schedule("interleaved", ranks=4, microbatches=8, chunks=1))
    '1 stage a rank, nothing to interleave; give 8 stages, or ranks = 2'
    """
    family = FAMILIES.get(schedule.family)
    if family is None or family.chunks is not None or schedule.stages > schedule.ranks:
        return None
    fewer, left = divmod(schedule.stages, 2)
    ranks = f", or ranks = {fewer}" if fewer > 1 and not left else ""
    return f"1 stage a rank, nothing to interleave; give {2 * schedule.ranks} stages{ranks}"


def weight_note(schedule: Schedule) -> str | None:
    """Return how often a schedule keeps the weights, None if once.

    Examples
    --------
    >>> from pipesim.schedules.families.registry import build_schedule
    >>> weight_note(build_schedule("chimera", ranks=4, microbatches=8))
    '2 copies of the model, so 2 times the weights on every rank'
    >>> weight_note(build_schedule("pipedream", ranks=4, microbatches=8))
    '1 to 4 versions of the weights on a stage'
    """
    copies, versions = schedule.placement.directions, schedule.weight_versions
    if copies > 1:
        return f"{copies} copies of the model, so {copies} times the weights on every rank"
    if max(versions) > 1:
        return f"{span_text(versions)} versions of the weights on a stage"
    return None


def shared_notes(schedules: Iterable[Schedule]) -> Iterator[str]:
    """Yield the notes on some schedules, each once, after the names of those it is about."""
    names: dict[str, list[str]] = {}
    for schedule in schedules:
        for note in filter(None, (weight_note(schedule), chunk_note(schedule))):
            names.setdefault(note, []).append(schedule.name)
    for note, whose in names.items():
        yield f"{', '.join(whose)}: {note}"
