"""The runs of a sweep's points with every op, where the table has only their numbers."""

from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any

from pipesim.base.types import Progress
from pipesim.config.simulate import simulate_config
from pipesim.run.run import Run
from pipesim.studies.sweep.points import FAULTS, Reader
from pipesim.studies.sweep.study import read_study


def sweep_runs(
    path: str | PathLike[str],
    overrides: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Iterator[Run | None]:
    """Yield the run of every point of a sweep, in the order of the rows of `sweep_config`.

    Each is made when it is asked for; of several replicas it is the slowest one's. Its makespan
    is that of the row, to the bit, and its other numbers but for rounding. A point that
    cannot be run is None: its row says why.

    Parameters
    ----------
    path
        A config file with a section [sweep].
    overrides
        Keys to set before anything is checked.
    progress
        Called with the number of points done and of all.

    Raises
    ------
    ConfigError
        If the config or an axis is faulty.

    Examples
    --------
    >>> for run in sweep_runs("experiments/configs/microbatch_size.toml"):
    ...     print(run.schedule.microbatches, run.makespan)
    64 319.5
    32 292.5
    16 310.5
    8 382.5
    4 544.5
    """
    study, points = read_study(path, {**(overrides or {}), "run.engine": "replay"})
    reader = Reader(study)
    for number, point in enumerate(points):
        try:
            run = simulate_config(reader.read(point))
        except FAULTS:
            run = None
        yield run
        if progress is not None:
            progress(number + 1, len(points))
