"""Writing schedules as files that PyTorch's pipelining loads.

0F0,0F1,0B0,0B1        the order of two micro-batches on two stages, one row a rank
1F0,1B0,1F1,1B1
"""

import csv
from os import PathLike

import numpy as np

from pipesim.dataflow import second_of_pair
from pipesim.errors import ScheduleError
from pipesim.io.files import replacing
from pipesim.ops import Kind
from pipesim.schedule import Schedule


def write_schedule(schedule: Schedule, path: str | PathLike[str]) -> None:
    """Write the order of a schedule as a CSV file of PyTorch's pipelining, compute ops only.

    PyTorch loads it with `_load_csv`; of what it does not take `export_notes` tells.

    Raises
    ------
    ScheduleError
        If its slices are of unequal fractions, which the format cannot hold.
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
    cells = _cell_texts(schedule)
    single = np.bincount(schedule.rank[~second_of_pair(schedule)], minlength=schedule.ranks)
    ends = np.cumsum(single).tolist()
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="ascii") as file:
        writer = csv.writer(file)
        for start, end in zip([0, *ends], ends, strict=False):
            writer.writerow(cells[start:end])


def check_exportable(schedule: Schedule) -> None:
    """Check that the format can hold a schedule.

    Raises
    ------
    ScheduleError
        If its slices are of unequal fractions.
    """
    fractions = schedule.fractions
    if max(fractions) - min(fractions) > 1e-9:
        raise ScheduleError(
            f"{schedule.name}: a schedule file holds slices of equal fractions only, "
            f"not {list(fractions)}"
        )


def export_notes(schedule: Schedule) -> list[str]:
    """Return what a file of a schedule does not hold, and what of it PyTorch does not take.

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


def _cell_texts(schedule: Schedule) -> list[str]:
    """Return the cells of all ranks; a pair is one cell."""
    names = [kind.name for kind in Kind]
    stages, kinds = schedule.stage.tolist(), schedule.kind.tolist()
    columns = zip(stages, kinds, schedule.microbatch.tolist(), strict=True)
    texts = [f"{stage}{names[kind]}{microbatch}" for stage, kind, microbatch in columns]
    for number in np.flatnonzero(schedule.slice).tolist():
        texts[number] += f".{schedule.slice[number]}"
    second = second_of_pair(schedule)
    for number in np.flatnonzero(second).tolist():
        texts[number - 1] = f"({texts[number - 1]};{texts[number]})OVERLAP_F_B"
    return [text for text, dropped in zip(texts, second.tolist(), strict=True) if not dropped]
