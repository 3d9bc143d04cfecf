"""Building a schedule by its name, on the placement that it needs."""

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pipesim.base.checks import check_count, hint
from pipesim.base.errors import ScheduleError
from pipesim.base.text import count_text
from pipesim.base.types import FloatArray
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.placement import PLACEMENTS, Placement
from pipesim.schedules.closed_forms import ClosedForm, equal_times
from pipesim.schedules.families import (
    chimera,
    dualpipe,
    gpipe,
    hanayo,
    interleaved,
    one_f_one_b,
    pipedream,
    sliced,
    v_family,
    zb_auto,
    zb_v,
    zero_bubble,
)
from pipesim.schedules.families.facts import Family
from pipesim.schedules.order.schedule import Schedule

if TYPE_CHECKING:
    import pandas as pd

# The modules of the named schedules, in the order in which they are listed.
MODULES = (
    gpipe,
    one_f_one_b,
    interleaved,
    zero_bubble,
    zb_auto,
    zb_v,
    v_family,
    dualpipe,
    chimera,
    hanayo,
    sliced,
    pipedream,
)
FAMILIES: dict[str, Family] = {
    name: family for module in MODULES for name, family in module.FAMILIES.items()
}

MOST_KEPT = 2_000_000  # ops of all schedules that are kept for the next call
MOST_FORWARDS = 50_000_000  # forwards, with one op or two more each


def schedule_names() -> tuple[str, ...]:
    """Return the names of all schedules.

    Examples
    --------
    >>> schedule_names()[:4]
    ('gpipe_forward', 'gpipe', '1f1b', '1f1b_eager')
    """
    return tuple(FAMILIES)


def build_schedule(
    name: str,
    ranks: int | None = None,
    microbatches: int | None = None,
    *,
    placement: Placement | None = None,
    pipeline: Pipeline | None = None,
    **options: Any,
) -> Schedule:
    """Return a schedule by its name.

    Parameters
    ----------
    name
        One of `schedule_names()`.
    ranks
        Number of ranks p.
    microbatches
        Number of micro-batches m.
    placement
        Instead of `ranks`, where the stages live.
    pipeline
        Instead of both, the pipeline to run on: its number of stages and ranks, and for a
        schedule that goes by them its costs. Without it such a schedule takes F = I = W = 1.
    options
        Those of the schedule: `pipesim schedules` lists them.

    Raises
    ------
    ScheduleError
        If the name or an option is unknown, or p, m and the number of stages do not go together.
    ValueError
        If a count is not a whole number of at least 1, or an option has a bad value.

    Examples
    --------
    >>> print(build_schedule("1f1b", ranks=2, microbatches=3))
    1f1b: 2 ranks, 3 micro-batches
    rank 0 | F0 F1 .  B0 F2 B1 .  B2
    rank 1 | .  F0 B0 F1 B1 F2 B2 .
    """
    if name not in FAMILIES:
        raise ScheduleError(f"unknown schedule {name!r}; {hint(name, FAMILIES)}")
    family = FAMILIES[name]
    check_options(name, options)
    chunks = options.pop("chunks", None) if family.chunks is None else family.chunks
    if chunks is not None:
        chunks = check_count("chunks", chunks)
    if pipeline is not None:
        placement = _placement_on(name, family, pipeline, chunks)
    elif placement is None:
        ranks = check_count("ranks", ranks)
        placement = _own_placement(name, family, ranks * (chunks or 2), ranks)
    elif ranks not in (None, placement.ranks):
        raise ValueError(f"ranks = {ranks} for a placement on {placement.ranks} ranks")
    else:
        _check_chunks(name, chunks, placement.stages, placement.ranks)
    _check_placement(name, family, placement)
    microbatches = check_count("microbatches", microbatches)
    forwards = placement.stages * microbatches * _repeats(options)
    if forwards > MOST_FORWARDS:
        raise ScheduleError(
            f"{name}: {forwards:,} forwards ({placement.stages} stages x {microbatches} "
            f"micro-batches, with the options) would not fit into memory; {MOST_FORWARDS:,} do"
        )
    if not family.by_cost:
        return _kept_or_built(name, placement, microbatches, options)
    make = partial(_made_for_costs, name, placement, microbatches, options)
    return make(pipeline or _unit_costs(placement)).relabelled(remake=make)


_kept: OrderedDict[Any, Schedule] = OrderedDict()  # of the last few calls


def _kept_or_built(
    name: str, placement: Placement, microbatches: int, options: Mapping[str, Any]
) -> Schedule:
    """Return a schedule that does not go by the costs, the same object for the same again."""
    key = (name, placement.name, placement, microbatches, repr(sorted(options.items())))
    if key not in _kept:
        built = FAMILIES[name].build(placement, microbatches, **options).relabelled(family=name)
        if len(built) > MOST_KEPT:
            return built
        _kept[key] = built
        while sum(map(len, _kept.values())) > MOST_KEPT:
            _kept.popitem(last=False)
    _kept.move_to_end(key)
    return _kept[key]


def check_options(name: str, options: Mapping[Any, Any]) -> None:
    """Check that a schedule has options by these names.

    Raises
    ------
    ScheduleError
        If it has not.
    """
    known = FAMILIES[name].options
    unknown = sorted(str(option) for option in options if option not in known)
    if unknown:
        raise ScheduleError(f"{name} has no option {unknown[0]!r}; {hint(unknown[0], known)}")


def closed_form_bubble(
    schedule: Schedule, equal: Callable[[], Pipeline] | None = None
) -> float | None:
    """Return the bubble fraction of equal stages by the closed form of a schedule's family.

    None where no formula is known, and outside of its range.

    Parameters
    ----------
    schedule
        The order, as its family built it.
    equal
        What makes the pipeline of equal stages. It is called only if the formula goes by times,
        which gives None without it.

    Examples
    --------
    >>> closed_form_bubble(build_schedule("1f1b", ranks=4, microbatches=4)) == 3 / 7
    True
    >>> pipe = Pipeline.from_costs(1.0, input_grad=1.0, weight_grad=1.0, stages=4)
    >>> closed_form_bubble(build_schedule("zb_h1", 4, 8), lambda: pipe) == 3 / 27
    True
    """
    form = _closed_form(schedule)
    if form.of_counts is not None:
        return form.of_counts(schedule)
    if form.of_times is None or equal is None:
        return None
    bubble = float(form.of_times(schedule, equal_times([equal()]))[0])
    return None if math.isnan(bubble) else bubble


def closed_form_bubbles(schedule: Schedule, equal: Sequence[Pipeline]) -> FloatArray:
    """Return `closed_form_bubble` for K pipelines of equal stages, array (K,); NaN for None."""
    form = _closed_form(schedule)
    if form.of_times is not None:
        return form.of_times(schedule, equal_times(equal))
    bubble = None if form.of_counts is None else form.of_counts(schedule)
    return np.full(len(equal), np.nan if bubble is None else bubble)


def closed_forms() -> "pd.DataFrame":
    """Return the closed forms of the bubble fraction of equal stages, one row a schedule.

    Columns: schedule; formula, of idle / (p x makespan) without transfers, "-" where none is
    known; range, in which it holds, or what is known instead of a formula; source. Outside of
    its range `run.closed_form` is None. On p ranks with m micro-batches, v chunks a rank and k
    slices; F, I, W and B = I + W are the times of the ops of a stage, of a chunk where a rank
    has several; T = F + B; F&B is that of an overlapped pair.

    Examples
    --------
    >>> table = closed_forms().set_index("schedule")
    >>> table.loc["1f1b", "formula"], table.loc["zb_h2", "range"]
    ('(p-1)/(m+p-1)', 'W <= F, m >= 2p-1')
    """
    import pandas as pd

    rows = [
        (name, "-", f"none known: {family.bubble_note}", family.source)
        if (form := family.closed_form) is None
        else (name, form.formula, form.valid or "everywhere", family.source)
        for name, family in FAMILIES.items()
    ]
    return pd.DataFrame(rows, columns=["schedule", "formula", "range", "source"])


def _closed_form(schedule: Schedule) -> ClosedForm:
    """Return the closed form of a schedule's family, one without a function if it has none."""
    family = FAMILIES.get(schedule.family)
    return (family and family.closed_form) or ClosedForm(formula="-")


def _placement_on(name: str, family: Family, pipe: Pipeline, chunks: int | None) -> Placement:
    """Return the placement of a family on the stages and ranks of a pipeline."""
    stages, ranks, given = len(pipe.stages), pipe.ranks, pipe.placement
    _check_chunks(name, chunks, stages, ranks)
    own = given.name not in PLACEMENTS and family.placement == "linear"
    if own or given.name == family.placement:
        return given
    return _own_placement(name, family, stages, ranks)


def _own_placement(name: str, family: Family, stages: int, ranks: int) -> Placement:
    """Return the placement that a family is made for."""
    try:
        return PLACEMENTS[family.placement](stages, ranks)
    except ValueError as error:
        step = ranks * (2 if family.placement == "wave" else 1)
        near = [str(n) for n in (stages // step * step, (stages // step + 1) * step) if n]
        way_out = f"split into {' or '.join(near)} stages"
        raise ScheduleError(f"{name}: {error}; {way_out}") from None


def _check_placement(name: str, family: Family, placement: Placement) -> None:
    """Check that a placement is the one that a family is made for.

    Those with one stage a rank take any order of the ranks.
    """
    stages, ranks = placement.stages, placement.ranks
    if family.placement == "linear":
        fits = placement.directions == 1
    else:
        try:
            wanted = PLACEMENTS[family.placement](stages, ranks)
            fits = bool(np.array_equal(wanted.table, placement.table))
        except ValueError:
            fits = False
    if not fits:
        raise ScheduleError(
            f"{name} needs the {family.placement} placement, not the {placement.name} one of "
            f"{count_text(stages, 'stage')} on {count_text(ranks, 'rank')}"
        )


def _repeats(options: Mapping[str, Any]) -> int:
    """Return how many times as many ops some options make."""
    slices, batches = options.get("slices", 1), options.get("batches", 1)
    counts = (slices if np.ndim(slices) == 0 else len(slices), batches)
    return math.prod(n for n in counts if isinstance(n, int))


def _made_for_costs(
    name: str,
    placement: Placement,
    microbatches: int,
    options: Mapping[str, Any],
    pipeline: Pipeline,
) -> Schedule:
    """Return a schedule that goes by the costs for those of a pipeline."""
    built = FAMILIES[name].build(placement, microbatches, pipeline=pipeline, **options)
    return built.relabelled(family=name)


def _check_chunks(name: str, chunks: int | None, stages: int, ranks: int) -> None:
    if chunks is not None and stages != ranks * chunks:
        raise ScheduleError(_other_stages(name, chunks, stages, ranks))


def _other_stages(name: str, chunks: int, stages: int, ranks: int) -> str:
    text = (
        f"{name} needs {count_text(chunks, 'stage')} a rank, "
        f"the pipeline has {count_text(stages, 'stage')} on {count_text(ranks, 'rank')}"
    )
    if stages % (ranks * chunks) == 0:
        return f"{text}; pipe.regroup(chunks={chunks}) merges them"
    if stages % chunks == 0:
        return f"{text}; give ranks = {stages // chunks}, or split into {ranks * chunks} stages"
    return f"{text}; split into {ranks * chunks} stages"


def _unit_costs(placement: Placement) -> Pipeline:
    return Pipeline.from_costs(
        1.0, input_grad=1.0, weight_grad=1.0, stages=placement.stages, placement=placement
    )
