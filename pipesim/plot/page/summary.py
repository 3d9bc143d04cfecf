"""The numbers of runs side by side, as a table of a page."""

from collections.abc import Callable, Sequence
from html import escape

from pipesim.base.text import count_text, ms_text, size_text
from pipesim.plot.gantt.legend import CLOSED_FORM, LOWER_BOUND, closed_form_makespan
from pipesim.run.memory import flight_noun
from pipesim.run.run import Run
from pipesim.run.step import Step

ABSENT = "–"
STYLE = "border-collapse: collapse; font: 12px sans-serif; font-variant-numeric: tabular-nums"
CELL = "padding: 2px 12px; border-bottom: 1px solid #ddd; text-align: right"


def summary_table(runs: Sequence[Run], step: Step | None = None) -> str:
    """Return the numbers of runs as HTML, a row a number and a column a run.

    And what a step adds, whose slowest replica's run is given alone.
    """
    rows = {
        "schedule": [escape(run.program.title) for run in runs],
        "ranks, stages, micro-batches": [
            f"{run.schedule.ranks}, {run.schedule.stages}, {run.schedule.microbatches}"
            for run in runs
        ],
        **_step_rows(step),
        "makespan": [_ms(run.makespan) for run in runs],
        CLOSED_FORM: [_ms(closed_form_makespan(run)) for run in runs],
        LOWER_BOUND: [_ms(run.lower_bound) for run in runs],
        "bubble fraction": [_share(run.bubble_fraction) for run in runs],
        "closed form": [_share(run.closed_form) for run in runs],
        "bubble ratio": [_share(run.bubble_ratio) for run in runs],
        "span bubble": [_share(run.span_bubble) for run in runs],
        "inflation (makespan / equal stages)": [_ratio(run.inflation) for run in runs],
        "balance x filling": [f"{run.balance:.4f} x {run.filling:.4f}" for run in runs],
        "in flight at most": [
            count_text(max(run.schedule.peak_in_flight()), flight_noun(run.schedule))
            for run in runs
        ],
    }
    if any(max(run.peak_memory) for run in runs):
        rows["memory of the fullest rank"] = [size_text(max(run.peak_memory)) for run in runs]
    body = "".join(
        f'<tr><th style="{CELL}; text-align: left; font-weight: normal">{name}</th>'
        + "".join(f'<td style="{CELL}">{cell}</td>' for cell in cells)
        + "</tr>"
        for name, cells in rows.items()
    )
    return f'<table style="{STYLE}">{body}</table>'


def _step_rows(step: Step | None) -> dict[str, list[str]]:
    if step is None:
        return {}
    return {
        "replicas": [str(len(step.runs))],
        "step": [_ms(step.step_ms)],
        "reductions after the last op": [_ms(step.exposed_reduction_ms)],
        "optimizer and gathers": [_ms(step.update_ms)],
    }


def _or_absent(show: Callable[[float], str]) -> Callable[[float | None], str]:
    return lambda value: ABSENT if value is None else show(value)


_ms = _or_absent(lambda value: ms_text(value, digits=6))
_share = _or_absent(lambda value: f"{value:.2%}")
_ratio = _or_absent(lambda value: f"{value:.4f}")
