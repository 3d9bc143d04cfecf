"""Points of a study as pipelines to run, thousands at once where only costs vary.

Reading a config takes a millisecond or two. Where points differ in nothing but costs of stages,
one of them is read, and the costs of the others are put into arrays beside it. They are checked
as strictly: a value that is not plainly good sends its point through the reading of configs,
which says what is wrong.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pipesim.base.checks import MOST_MS
from pipesim.base.errors import PipesimError
from pipesim.base.types import FloatArray
from pipesim.config.axes import IMBALANCE
from pipesim.config.read import Config, parse_pipeline, parse_schedule
from pipesim.config.sections import Sections
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.variants import CostVariants, cost_fields
from pipesim.schedules.order.schedule import Schedule
from pipesim.studies.sweep.imbalance import scaled, stage_factors, stage_work
from pipesim.studies.sweep.study import Point, Study

# What a faulty point raises; anything else is a fault of the program.
FAULTS = (PipesimError, ValueError, ArithmeticError, MemoryError)

MOST_OPS = 2_000_000  # in all schedules that a reader keeps

_COST = re.compile(
    r"stages\.((?:forward|backward|input_grad|weight_grad|recompute)_ms)(?:\[(\d+)\])?"
)


@dataclass(frozen=True, slots=True)
class Bundle:
    """Points that run the same schedule in the same way: their numbers, and a pipeline each."""

    numbers: list[int]
    config: Config
    pipelines: Sequence[Pipeline]


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader of the points of a study, which keeps what they share."""

    study: Study
    schedules: dict[Any, Schedule] = field(default_factory=dict)

    def bundles(self, points: Sequence[Point]) -> Iterator[Bundle | tuple[int, Exception]]:
        """Yield bundles of points, and for each faulty point its number and its error.

        Which bundle a point gets into does not change its numbers.
        """
        alone: dict[Any, Bundle] = {}
        for numbers in self._alike(points):
            variants = self._variants([points[number] for number in numbers])
            if variants is not None:
                config, good, pipelines = variants
                chosen = [n for n, ok in zip(numbers, good, strict=True) if ok]
                yield Bundle(chosen, config, pipelines)
                numbers = [n for n, ok in zip(numbers, good, strict=True) if not ok]
            for number in numbers:
                try:
                    config = self.read(points[number])
                except FAULTS as error:
                    yield number, error
                    continue
                bundle = alone.setdefault(_way(config), Bundle([], config, []))
                bundle.numbers.append(number)
                bundle.pipelines.append(config.pipeline)  # type: ignore[attr-defined]  # a list
        yield from alone.values()

    def read(self, point: Point) -> Config:
        """Return the config at a point.

        Raises
        ------
        ConfigError, ScheduleError, ValueError
            If it is faulty.
        """
        study = self.study
        document = study.filled(point)
        sections, pipeline = parse_pipeline(document, study.name, study.directory)
        if study.imbalance is not None:
            pipeline = scaled(pipeline, self._factors(point, stage_work(pipeline)))
        return Config(study.name, sections, pipeline, self._schedule(sections, pipeline))

    def _schedule(self, sections: Sections, pipeline: Pipeline) -> Schedule:
        run, placed = sections.run, pipeline.placement
        key = (run.schedule, run.microbatches, json.dumps(run.options, default=str), placed.name)
        known = self.schedules.get((key, placed))
        if known is None:
            study = self.study
            known = parse_schedule(sections, pipeline, study.name, study.directory)
            # One that goes by the costs is another for each pipeline.
            if known.remake is None:
                self.schedules[key, placed] = known
                while sum(map(len, self.schedules.values())) > MOST_OPS and len(self.schedules) > 1:
                    del self.schedules[next(iter(self.schedules))]
        return known

    def _factors(self, point: Point, work: Sequence[float]) -> FloatArray:
        assert self.study.imbalance is not None
        named = dict(zip(self.study.keys, point, strict=True))
        return stage_factors(self.study.imbalance, named, work)

    def _alike(self, points: Sequence[Point]) -> Iterator[list[int]]:
        """Yield lists of the numbers of points that differ at most in costs of equal shape."""
        keys = self.study.keys
        costs = [place for place, key in enumerate(keys) if _COST.fullmatch(key)]
        others = [
            place
            for place, key in enumerate(keys)
            if place not in costs and not key.startswith(f"{IMBALANCE}.")
        ]
        groups: dict[Any, list[int]] = {}
        for number, point in enumerate(points):
            other = json.dumps([point[place] for place in others], default=str) if others else ""
            shape = tuple(_shape(point[place]) for place in costs)
            groups.setdefault((other, shape), []).append(number)
        yield from groups.values()

    def _variants(self, points: Sequence[Point]) -> tuple[Config, list[bool], CostVariants] | None:
        """Return the config of points that differ in costs, which are good, and their pipelines.

        None where they have to be read one by one.
        """
        keys = self.study.keys
        varied = [(place, _COST.fullmatch(key)) for place, key in enumerate(keys)]
        by_costs = any(match for _, match in varied)
        if not by_costs and self.study.imbalance is None:
            return None
        bare = replace(self.study, imbalance=None)
        try:
            config = Reader(bare, self.schedules).read(points[0])
        except FAULTS:
            return None
        pipe = config.pipeline
        overlap = any(stage.overlap_ms is not None for stage in pipe.stages)
        stages = config.sections.stages
        derived = by_costs and stages is not None and stages.recompute is not None  # from forwards
        remade = config.schedule.remake is not None
        if pipe.microbatches is not None or remade or overlap or derived:
            return None
        shape = (len(points), len(pipe.stages))
        costs = {
            name: np.tile([float(getattr(stage, name)) for stage in pipe.stages], (shape[0], 1))
            for name in cost_fields(pipe)
        }
        for place, match in varied:
            if match is None:
                continue
            column = np.array([point[place] for point in points], dtype=np.float64)
            table = costs.get(match[1])
            if table is None:
                return None
            if match[2] is not None:
                table[:, int(match[2])] = column
            else:
                table[:] = column if column.ndim == 2 else column[:, np.newaxis]
        good = np.ones(shape[0], dtype=bool)
        if self.study.imbalance is not None:
            work = sum(costs.values(), start=np.zeros(shape))
            for number, point in enumerate(points):
                try:
                    factors = self._factors(point, work[number])
                except ValueError:  # there is no such stage
                    good[number] = False
                    continue
                for table in costs.values():
                    table[number] *= factors
            good &= np.all([(table <= MOST_MS).all(axis=1) for table in costs.values()], axis=0)
        variants = CostVariants(pipe, {name: table[good] for name, table in costs.items()})
        return config, good.tolist(), variants


def _shape(value: Any) -> int | str | None:
    """Return the length of a list of amounts, 0 for one amount, the text of any other value."""
    if _is_amount(value):
        return 0
    if isinstance(value, list) and value and all(map(_is_amount, value)):
        return len(value)
    return repr(value)


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= MOST_MS


def _way(config: Config) -> Any:
    """Return the key by which configs are bundled: equal for those that can be run together."""
    run = config.sections.run
    return (
        id(config.schedule),
        config.pipeline.microbatches is None,
        run.engine,
        run.protocol,
        run.queue_capacity,
        run.eager_limit_bytes,
        config.training,
        run.memory_limit,
    )


def structural(key: str) -> bool:
    """Return whether a key may change the ops of a schedule or their order.

    Examples
    --------
    >>> structural("run.microbatches"), structural("stages.forward_ms[3]")
    (True, False)
    """
    free = (
        "stages.",
        "links.",
        "devices.speed",
        "devices.overhead_ms",
        "devices.memory_bytes",
        "training.",
        "title",
        "source",
    )
    return not key.startswith((*free, f"{IMBALANCE}.")) or key in (
        "stages.count",
        "training.replicas",  # with a section [batch], the number of micro-batches
    )
