"""Ways to split layers into stages, side by side: by what is balanced, one's own, by simulation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pipesim.base.types import Progress
from pipesim.engine.op_costs import stage_ms
from pipesim.pipeline.components import Device
from pipesim.pipeline.layers import LayerProfile
from pipesim.pipeline.partition.partition import fair_split, stage_places
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.training import Training
from pipesim.run.memory_limit import ops_over_limit
from pipesim.run.resolve import ScheduleLike, resolve_schedule
from pipesim.run.run import Run
from pipesim.run.simulate import simulate
from pipesim.schedules.order.schedule import Schedule
from pipesim.studies.splits.candidates import held_by_stage, split_pipeline
from pipesim.studies.splits.refinement import refine_split

if TYPE_CHECKING:
    import pandas as pd

OWN, SIMULATED = "config", "simulated"
BALANCED = ("layers", "param_bytes", "stash_bytes", "time")


@dataclass(frozen=True, slots=True)
class Choice:
    """A way to split the layers, and its simulation."""

    name: str
    counts: tuple[int, ...]
    run: Run

    @property
    def stage_ms(self) -> list[float]:
        """Time of one micro-batch on every stage, on its device [ms]."""
        return stage_ms(self.run.schedule, self.run.pipeline)

    @property
    def held(self) -> tuple[int, ...]:
        """The most bytes that each rank holds."""
        return self.run.peak_memory

    @property
    def over(self) -> bool:
        """Whether a rank holds more than it has memory for."""
        return bool(ops_over_limit(self.run.schedule, self.run.pipeline))


def compare_splits(
    profile: LayerProfile,
    stages: int,
    schedule: ScheduleLike,
    microbatches: int | None = None,
    *,
    counts: Sequence[int] | None = None,
    options: dict[str, Any] | None = None,
    protocol: str = "eager",
    queue_capacity: int | None = None,
    eager_limit_bytes: int | None = None,
    training: Training | None = None,
    progress: Progress | None = None,
    **pipeline_options: Any,
) -> "pd.DataFrame":
    """Return a table of ways to split layers into stages, one row a way.

    Columns: split_by ("layers", "param_bytes", "stash_bytes", "time", the share of each stage
    as even as can be; "config", the given counts; "simulated", made better by simulation), split
    (layers of every stage), stage_ms (one micro-batch on every stage, on its device),
    makespan_ms, bubble_fraction, peak_bytes (of every rank), over_memory.

    Parameters
    ----------
    profile
        The layers.
    stages
        Number of stages.
    schedule, microbatches, options, protocol, queue_capacity, eager_limit_bytes
        As for `simulate`.
    counts
        A split of one's own, to stand beside the others.
    training
        What is held for the parameters besides themselves; by default nothing.
    progress
        Called with the moves of one round that have been simulated, and all of them.
    pipeline_options
        Handed to `Pipeline.from_costs`: ranks, placement, latency_ms, speed, memory_bytes, ...

    Raises
    ------
    ValueError
        If there are fewer layers than stages, the counts lose or repeat a layer, or nothing fits
        into the memory.

    Examples
    --------
    >>> profile = LayerProfile(forward_ms=(1,) * 16, backward_ms=(2,) * 16)
    >>> compare_splits(profile, 4, "1f1b", 4)[["split_by", "split", "makespan_ms"]]
        split_by         split  makespan_ms
    0     layers  [4, 4, 4, 4]         84.0
    1       time  [4, 4, 4, 4]         84.0
    2  simulated  [5, 4, 4, 3]         82.0
    """
    import pandas as pd

    places = stage_places(stages, pipeline_options)
    first = fair_split(profile, places.placement, _unlimited(places), by="time")
    pipe = split_pipeline(profile, first, training, pipeline_options)
    order = resolve_schedule(pipe, schedule, microbatches, options)
    choices = split_choices(
        profile,
        pipe,
        order,
        counts=counts,
        training=training,
        progress=progress,
        how={
            "protocol": protocol,
            "queue_capacity": queue_capacity,
            "eager_limit_bytes": eager_limit_bytes,
        },
        pipeline_options=pipeline_options,
    )
    return pd.DataFrame(map(plain_choice, choices))


def split_choices(
    profile: LayerProfile,
    pipe: Pipeline,
    schedule: Schedule,
    *,
    how: dict[str, Any],
    pipeline_options: dict[str, Any],
    counts: Sequence[int] | None = None,
    wanted: str = "time",
    training: Training | None = None,
    progress: Progress | None = None,
) -> list[Choice]:
    """Return the ways to split layers that the profile has numbers for; the simulated one last.

    Parameters
    ----------
    profile, counts, training, progress, pipeline_options
        As for `compare_splits`.
    pipe
        Some split of the layers: its devices count.
    schedule
        The order; one that goes by the costs is made anew for each split.
    how
        As for `simulate`: protocol, queue_capacity, eager_limit_bytes.
    wanted
        A way that must be among them.

    Raises
    ------
    ValueError
        As `compare_splits`, or if the profile lacks what is wanted.
    """

    def choice(name: str, split: Sequence[int]) -> Choice:
        cut = split_pipeline(profile, split, training, pipeline_options)
        order = schedule.made_for(cut)
        run = simulate(cut, order, engine="replay", memory_limit=False, **how)
        return Choice(name, tuple(split), run)

    ways = {"time", "layers", wanted} | set(profile.columns())
    splits = {by: _fair(profile, schedule, pipe, training, by) for by in BALANCED if by in ways}
    choices = [choice(by, split) for by, split in splits.items()]
    if counts is not None:
        choices.append(choice(OWN, counts))
    start = splits["time"] if counts is None else counts
    found = refine_split(
        profile,
        start,
        schedule,
        training=training,
        progress=progress,
        **how,
        **pipeline_options,
    )
    return [*choices, Choice(SIMULATED, found.counts, found.run)]


def plain_choice(choice: Choice) -> dict[str, Any]:
    """Return a choice as plain values."""
    return {
        "split_by": choice.name,
        "split": list(choice.counts),
        "stage_ms": choice.stage_ms,
        "makespan_ms": choice.run.makespan,
        "bubble_fraction": choice.run.bubble_fraction,
        "peak_bytes": list(choice.held),
        "over_memory": choice.over,
    }


def _fair(
    profile: LayerProfile, schedule: Schedule, pipe: Pipeline, training: Training | None, by: str
) -> tuple[int, ...]:
    """Return the min-max split within memory, or the one without limits where none was found."""
    peaks = held_by_stage(schedule)
    split = partial(fair_split, profile, schedule.placement, by=by)
    try:
        return split(pipe.devices, in_flight=peaks, training=training)
    except ValueError:
        return split(_unlimited(pipe))


def _unlimited(pipe: Pipeline) -> list[Device]:
    """Return the devices of a pipeline without their memory limits."""
    return [replace(device, memory_bytes=None) for device in pipe.devices]
