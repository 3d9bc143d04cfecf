"""A run -> the config that describes it, as a table of sections: what config files hold."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipesim.pipeline.components import COST_FIELDS, SIZE_FIELDS, Device, Stage
from pipesim.pipeline.links import Link
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.placement import PLACEMENTS
from pipesim.run.run import Run
from pipesim.schedules.families.registry import FAMILIES


def run_config(run: Run, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the config of a run, as plain values; what has its default is left out.

    Names of stages and a placement of one's own have no key in a config.

    Parameters
    ----------
    run
        What was simulated. Its schedule is told by name: one from a file or of one's own is not
        in the config.
    options
        Options of the schedule: a run does not know what its schedule was made with.

    Examples
    --------
    >>> from pipesim.run.simulate import simulate
    >>> pipe = Pipeline.from_costs(forward=[1, 2], backward=[2, 4], latency_ms=0.5)
    >>> run_config(simulate(pipe, "1f1b", microbatches=4))
    {'run': {'schedule': '1f1b', 'microbatches': 4, 'engine': 'simpy', 'protocol': 'eager'},
     'stages': {'forward_ms': [1.0, 2.0], 'backward_ms': [2.0, 4.0]},
     'devices': {'ranks': 2, 'placement': 'linear'}, 'links': {'latency_ms': 0.5}}
    """
    pipe, schedule = run.pipeline, run.schedule
    options = dict(options or {})
    family = FAMILIES.get(schedule.family)
    usual = {} if family is None else dict(family.options)
    batches = (usual | options).get("batches", 1)  # which run one after the other
    how = {
        "schedule": schedule.name,
        "microbatches": schedule.microbatches // batches,
        "options": options,
        "engine": run.engine,
        "protocol": run.program.protocol,
        "queue_capacity": run.queue_capacity,
        "eager_limit_bytes": run.eager_limit_bytes,
    }
    of_devices = ("speed", "overhead_ms", "memory_bytes")
    name = schedule.placement.name
    place = {"ranks": pipe.ranks, "placement": name if name in PLACEMENTS else None}
    sections = {
        "title": pipe.title,
        "source": pipe.source,
        "run": _given(how),
        "stages": _stages(pipe),
        "devices": _given(place) | _each(pipe.devices, of_devices, Device()),
        "links": _links(pipe),
    }
    return _given(sections)


def _given(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value not in (None, "", {})}


def _stages(pipe: Pipeline) -> dict[str, Any]:
    fields = (*COST_FIELDS.values(), *SIZE_FIELDS, "input_grad_frees_bytes", "overlap_ms")
    factor = {"overlap_factor": pipe.overlap_factor} if pipe.overlap_factor != 1.0 else {}
    return _each(pipe.stages, fields, Stage(forward_ms=0.0)) | factor


def _each(parts: Sequence[Any], fields: Sequence[str], default: Any) -> dict[str, Any]:
    """Return the fields of some parts as lists, one value a part; without what is not given.

    Where one part has a value for each micro-batch all get them.
    """
    found: dict[str, Any] = {}
    for name in fields:
        values = [getattr(part, name) for part in parts]
        defaulted = name != "forward_ms" and set(values) == {getattr(default, name)}
        if None in values or defaulted:
            continue
        if any(isinstance(value, tuple) for value in values):
            values = np.stack(np.broadcast_arrays(*values)).tolist()
        found[name] = values
    return found


def _links(pipe: Pipeline) -> dict[str, Any]:
    """Return latency and bandwidth: one number where it holds for every pair, or one a pair."""
    pairs = pipe.ranks * (pipe.ranks - 1)
    found = {}
    for name in ("latency_ms", "bandwidth_gb_s"):
        values = {pair: getattr(link, name) for pair, link in sorted(pipe.links.items())}
        same = set(values.values())
        if same <= {getattr(Link(), name)}:
            continue
        if len(same) == 1 and len(values) == pairs:
            found[name] = same.pop()
        else:
            found[name] = {f"{near}->{far}": value for (near, far), value in values.items()}
    return found
