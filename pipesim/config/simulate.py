"""The simulated run of a config, or its whole step."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from pipesim.base.errors import ConfigError, DeadlockError, MemoryLimitError, PipesimError
from pipesim.base.types import Progress
from pipesim.config.read import Config
from pipesim.config.sections import Sections
from pipesim.pipeline.pipeline import Pipeline
from pipesim.pipeline.training import Training
from pipesim.run.run import Run
from pipesim.run.simulate import simulate
from pipesim.run.step import Step, simulate_slowest, simulate_step

T = TypeVar("T")


def simulate_config(config: Config, progress: Progress | None = None) -> Run:
    """Return the run that a config describes: the slowest replica, without the step's end.

    Raises
    ------
    ConfigError
        If the schedule does not fit the pipeline.
    DeadlockError
        If the run cannot go on.
    MemoryLimitError
        If a rank goes over the memory of its device, and run.memory_limit is not false.
    """
    training = config.training
    how = simulate if training is None else partial(simulate_slowest, training=training)
    return _simulated(config, how, config.pipeline, progress)


def simulate_step_config(config: Config, progress: Progress | None = None) -> Step:
    """Return the whole step that a config describes: its replicas, reductions, optimizer.

    Raises
    ------
    ConfigError, DeadlockError, MemoryLimitError
        As `simulate_config` does, and if the schedule has no end of a step.
    """
    training = config.training or Training()
    step = partial(simulate_step, training=training)
    return _simulated(config, step, config.pipeline, progress)


def run_options(sections: Sections) -> dict[str, Any]:
    """Return the keyword arguments of `simulate` that the section [run] gives."""
    names = ("engine", "protocol", "queue_capacity", "eager_limit_bytes", "memory_limit")
    return {name: getattr(sections.run, name) for name in names}


def _simulated(
    config: Config, how: Callable[..., T], pipe: Pipeline, progress: Progress | None
) -> T:
    options = run_options(config.sections)
    try:
        return how(pipe, config.schedule, progress=progress, **options)
    except (DeadlockError, MemoryLimitError):
        raise
    except (PipesimError, ValueError) as error:
        raise ConfigError(config.name, [f"run.schedule: {error}"]) from None
