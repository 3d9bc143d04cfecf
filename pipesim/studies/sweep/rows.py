"""Rows of a sweep's points, and the table of these rows."""

import json
from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pipesim.base.errors import ConfigError
from pipesim.base.types import FloatArray
from pipesim.config.simulate import run_options
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.variants import CostVariants
from pipesim.run.many import METRICS, simulate_many
from pipesim.run.step import simulate_step, without_end
from pipesim.studies.sweep.points import FAULTS, Bundle, Reader, structural
from pipesim.studies.sweep.study import Point, Study

if TYPE_CHECKING:
    import pandas as pd

# The results of a run in the order of `RESULTS`: texts and numbers as in JSON.
Row: TypeAlias = list[Any]

HEAD = ("schedule", "ranks", "microbatches")
ERROR = "error"
NUMBERS = (*METRICS, "step_ms")
RESULTS = (*HEAD, *NUMBERS, ERROR)
BLOCK = 256  # most points that are run together; they are lost when a sweep is interrupted


def blocks(study: Study, points: Sequence[Point], missing: Sequence[int]) -> list[list[int]]:
    """Return blocks of points that may share a schedule, each a list of their numbers.

    Parameters
    ----------
    study, points
        The study of the sweep, and its points.
    missing
        The numbers of the points to be run, in order.
    """
    places = [place for place, key in enumerate(study.keys) if structural(key)]
    groups: dict[str, list[int]] = {}
    for number in missing:
        key = json.dumps([points[number][place] for place in places], default=str)
        groups.setdefault(key, []).append(number)
    return [
        group[first : first + BLOCK]
        for group in groups.values()
        for first in range(0, len(group), BLOCK)
    ]


def block_rows(study: Study, points: Sequence[Point]) -> list[Row]:
    """Return the rows of some points of a study, one a point."""
    rows: dict[int, Row] = {}
    for bundle in _reader(study).bundles(points):
        if isinstance(bundle, Bundle):
            rows |= _bundle_rows(bundle)
        else:
            number, error = bundle
            rows[number] = _faulty(error)
    return [rows[number] for number in range(len(points))]


# The reader of the study that this process works on, by the study's digest.
_readers: dict[str, Reader] = {}


def _reader(study: Study) -> Reader:
    """Return the reader of a study, the same for all its blocks in this process."""
    if study.digest not in _readers:
        _readers.clear()
        _readers[study.digest] = Reader(study)
    return _readers[study.digest]


def _bundle_rows(bundle: Bundle) -> dict[int, Row]:
    """Return the rows of a bundle by number of the point; run one by one if they fail together."""
    if not bundle.numbers:
        return {}
    schedule, how = bundle.config.schedule, run_options(bundle.config.sections)
    del how["engine"]  # simulate_many has its own
    try:
        columns = _metrics(bundle, how)
        columns["step_ms"] = _step_times(bundle, columns["makespan_ms"], how)
    except FAULTS as error:
        if len(bundle.numbers) == 1:
            return {bundle.numbers[0]: _faulty(error)}
        rows: dict[int, Row] = {}
        for place, number in enumerate(bundle.numbers):
            pipelines = bundle.pipelines[place : place + 1]
            rows |= _bundle_rows(Bundle([number], bundle.config, pipelines))
        return rows
    head = [schedule.name, schedule.ranks, schedule.microbatches]
    numbers = zip(*(columns[name].tolist() for name in NUMBERS), strict=True)
    return {
        number: [*head, *(None if isnan(x) else x for x in row), None]
        for number, row in zip(bundle.numbers, numbers, strict=True)
    }


def _metrics(bundle: Bundle, how: Mapping[str, Any]) -> dict[str, FloatArray]:
    """Return the metrics of a bundle's points by name, each of its slowest replica; (points,)."""
    schedule = bundle.config.schedule
    made = [simulate_many(schedule, pipelines, **how) for pipelines in _replicas(bundle)]
    slowest = np.argmax([columns["makespan_ms"] for columns in made], axis=0)
    points = np.arange(len(slowest))
    return {
        name: np.array([columns[name] for columns in made])[slowest, points] for name in METRICS
    }


def _replicas(bundle: Bundle) -> Iterator[Sequence[Pipeline]]:
    """Yield the pipelines of the points for each replica; equal replicas count once."""
    training, pipelines = bundle.config.training, bundle.pipelines
    if training is None:
        yield pipelines
        return
    speeds = training.replica_speeds(bundle.config.schedule.ranks)
    for number in map(speeds.index, dict.fromkeys(speeds)):
        if isinstance(pipelines, CostVariants):
            base = training.holding(training.replica(pipelines.base, number))
            yield CostVariants(base, pipelines.costs)
        else:
            yield [training.holding(training.replica(pipe, number)) for pipe in pipelines]


def _step_times(bundle: Bundle, makespan: FloatArray, how: Mapping[str, Any]) -> FloatArray:
    """Return the step times of a bundle's points over all replicas [ms]; NaN without an end."""
    training, schedule = bundle.config.training, bundle.config.schedule
    if training is None:
        return makespan
    if without_end(schedule) is not None:
        return np.full_like(makespan, np.nan)
    options = {"training": training, "engine": "replay", **how}
    steps = (simulate_step(pipe, schedule, **options) for pipe in bundle.pipelines)
    return np.array([step.step_ms for step in steps])


def _faulty(error: Exception) -> Row:
    # A ConfigError names the file in every line, which is the same for all rows.
    text = error.faults[0] if isinstance(error, ConfigError) else str(error)
    first = (text.splitlines() or [type(error).__name__])[0]
    return [None] * (len(RESULTS) - 1) + [first]


def make_table(study: Study, points: Sequence[Point], rows: Mapping[int, Row]) -> "pd.DataFrame":
    """Return the table of a sweep: one row a point, in the order of the points."""
    import pandas as pd

    results = zip(*(rows[number] for number in range(len(points))), strict=True)
    columns: dict[str, Any] = dict(zip(RESULTS, results, strict=True))
    axes = zip(*points, strict=True)
    varied = {key: list(map(_cell, values)) for key, values in zip(study.keys, axes, strict=True)}
    for name in HEAD[1:]:
        some_missing = None in columns[name]
        columns[name] = pd.array(columns[name], dtype="Int64" if some_missing else "int64")
    for name in NUMBERS:
        columns[name] = pd.array(columns[name], dtype="float64")
    for name in (HEAD[0], ERROR):
        columns[name] = pd.Series(columns[name], dtype=object)
    first = {name: columns[name] for name in HEAD}
    table = pd.DataFrame(first | varied | {name: columns[name] for name in (*NUMBERS, ERROR)})
    table.attrs["axes"] = list(study.keys)
    table.attrs["mode"] = study.mode
    table.attrs["together"] = list(map(list, study.together))
    return table


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value
