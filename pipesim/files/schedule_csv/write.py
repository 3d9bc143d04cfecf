"""Writing schedules as files that PyTorch's pipelining loads.

0F0,0F1,0B0,0B1        the order of two micro-batches on two stages, one row a rank
1F0,1B0,1F1,1B1
"""

import csv
from collections.abc import Iterator
from itertools import pairwise
from os import PathLike

import numpy as np

from pipesim.base.errors import ScheduleError
from pipesim.base.files import replacing
from pipesim.base.ops import Kind
from pipesim.schedules.order.schedule import Schedule


def write_schedule(schedule: Schedule, path: str | PathLike[str]) -> None:
    """Write the order of a schedule as a CSV file of PyTorch's pipelining.

    It holds the compute ops, and the sends and receives if the schedule is from a file that lists
    them. PyTorch loads it with `_load_csv`; `export_notes` says what PyTorch does not take.

    Raises
    ------
    ScheduleError
        If its slices are of unequal fractions, or it recomputes apart from the backward, which the
        format cannot hold.
    OSError
        If the file cannot be written.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "mine.csv"
    ...     write_schedule(Schedule.from_orders(["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]), path)
    ...     print(path.read_text())
    0F0,0F1,0B0,0B1
    1F0,1B0,1F1,1B1
    """
    check_exportable(schedule)
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="ascii") as file:
        csv.writer(file).writerows(_rows(schedule))


def check_exportable(schedule: Schedule) -> None:
    """Check that the format can hold a schedule.

    Raises
    ------
    ScheduleError
        If its slices are of unequal fractions, or it has ops that recompute.
    """
    if schedule.separate_recompute:
        raise ScheduleError(
            f"{schedule.name}: a schedule file has no action that recomputes (R); build the "
            "schedule without such ops, so that backwards recompute by themselves"
        )
    fractions = schedule.fractions
    if max(fractions) - min(fractions) > 1e-9:
        raise ScheduleError(
            f"{schedule.name}: a schedule file holds slices of equal fractions only, "
            f"not {list(fractions)}"
        )


def export_notes(schedule: Schedule) -> list[str]:
    """Return notes on what a file of the schedule lacks, and on what PyTorch does not take in it.

    Examples
    --------
    >>> export_notes(Schedule.from_orders(["0F0", "1F0"]))
    ['PyTorch does not load it: there are no backwards']
    """
    notes = []
    if schedule.placement.directions > 1:
        notes.append("PyTorch does not load it: stages are on two ranks, one for each direction")
    if schedule.slices > 1:
        notes.append("PyTorch does not load it: it knows no slices, and passes over them")
    if schedule.kinds == {Kind.F}:
        notes.append("PyTorch does not load it: there are no backwards")
    if set(schedule.weight_versions) != {1}:
        notes.append("the file does not hold how many versions of its weights each stage keeps")
    return notes


def _rows(schedule: Schedule) -> Iterator[list[str]]:
    """Yield the cells of every rank: its ops, and its sends and receives where they are listed."""
    source = schedule if schedule.listed is None else schedule.listed
    names = [kind.name for kind in Kind]
    stages, kinds = source.stage.tolist(), source.kind.tolist()
    columns = zip(stages, kinds, source.microbatch.tolist(), strict=True)
    texts = [f"{stage}{names[kind]}{microbatch}" for stage, kind, microbatch in columns]
    for number in np.flatnonzero(source.slice).tolist():
        texts[number] += f".{source.slice[number]}"
    second = np.zeros(len(texts), dtype=bool)  # second ops of pairs, which share the cell before
    second[1:] = (source.group[1:] >= 0) & (source.group[1:] == source.group[:-1])
    for number in np.flatnonzero(second).tolist():
        texts[number - 1] = f"({texts[number - 1]};{texts[number]})OVERLAP_F_B"
    offsets = np.searchsorted(source.rank, np.arange(schedule.ranks + 1)).tolist()
    left_out = second.tolist()
    for first, last in pairwise(offsets):
        yield [texts[number] for number in range(first, last) if not left_out[number]]
