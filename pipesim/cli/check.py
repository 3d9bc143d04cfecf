"""The command `pipesim check`: what a schedule file holds, or everything that is wrong with it."""

from argparse import Namespace
from typing import Any

from pipesim.cli.outputs import to_json
from pipesim.errors import DeadlockError, ScheduleError
from pipesim.fault_grid import fault_grid
from pipesim.io.torch_schedule import read_torch_schedule
from pipesim.phases import rank_phases
from pipesim.schedule import Schedule
from pipesim.schedule_file import ScheduleFile
from pipesim.text_table import count_text, text_table

SHOWN = 50  # faults on the screen; in JSON there are all of them


def check(arguments: Namespace) -> None:
    """Print what a schedule file holds; its faults are an error."""
    file = read_torch_schedule(arguments.file)
    if arguments.json:
        print(to_json(_as_plain_values(file)))
    if file.schedule is None:
        lines = [f"{file.path}: {_verdict(file)}", *file.fault_lines(SHOWN)]
        picture = fault_grid(file)
        text = "\n".join([*lines, *([""] if picture else []), *picture.splitlines()])
        raise DeadlockError(text) if file.deadlocked else ScheduleError(text)
    if not arguments.json:
        print(_report(file, file.schedule))


def _verdict(file: ScheduleFile) -> str:
    if file.deadlocked:
        return "every op is there, but the order cannot go on"
    count = len(file.faults) + file.unlisted
    return f"{count:,} fault{'' if count == 1 else 's'}"


def _report(file: ScheduleFile, schedule: Schedule) -> str:
    sizes = [count_text(schedule.ranks, "rank"), count_text(schedule.stages, "stage")]
    sizes.append(count_text(schedule.microbatches, "micro-batch"))
    if schedule.slices > 1:
        sizes.append(f"{count_text(schedule.slices, 'slice')} each")
    kinds = ", ".join(kind.name for kind in sorted(schedule.kinds))
    dialect = "; written as BW, B, W, as PyTorch 2.5 does" if file.dialect == "legacy" else ""
    lines = [f"{file.path}: valid", f"{', '.join(sizes)}; ops {kinds}{dialect}"]
    if file.listed is not None:
        transfers = len(file.listed) - len(schedule)
        lines.append(f"{transfers:,} sends and receives, each where it belongs")
    if file.timeless:
        lines.append(
            f"{count_text(file.timeless, 'cell')} of UNSHARD, RESHARD and REDUCE_GRAD: "
            "they take no time here"
        )
    if file.padding:
        lines.append(f"{count_text(file.padding, 'blank cell')}: they take no time either")
    rows = _per_rank(schedule)
    titles = {key.replace("_", " "): [str(row[key]) for row in rows] for key in rows[0]}
    note = "ops before the first backward, between, after the last forward; held at most"
    return "\n".join(
        [*lines, "", str(schedule.placement), "", text_table(titles), note, "", str(schedule)]
    )


def _per_rank(schedule: Schedule) -> list[dict[str, int]]:
    peaks = schedule.peak_in_flight()
    return [
        {"rank": rank, "ops": sum(phases), **phases._asdict(), "peak_in_flight": peaks[rank]}
        for rank, phases in enumerate(rank_phases(schedule))
    ]


def _as_plain_values(file: ScheduleFile) -> dict[str, Any]:
    """Return the whole as plain values; rows and cells count from 1, ranks from 0."""
    values: dict[str, Any] = {
        "file": file.path,
        "valid": file.schedule is not None,
        "deadlock": file.deadlocked,
        "faults": [
            {
                "row": None if fault.rank is None else fault.rank + 1,
                "rank": fault.rank,
                "cell": None if fault.cell is None else fault.cell + 1,
                "text": fault.text,
            }
            for fault in file.faults
        ],
        "unlisted_faults": file.unlisted,
        "dialect": file.dialect,
        "timeless_cells": file.timeless,
        "blank_cells": file.padding,
    }
    schedule = file.schedule
    if schedule is not None:
        placement = schedule.placement
        values |= {
            "name": schedule.name,
            "ranks": schedule.ranks,
            "stages": schedule.stages,
            "microbatches": schedule.microbatches,
            "slices": schedule.slices,
            "kinds": [kind.name for kind in sorted(schedule.kinds)],
            "transfers": 0 if file.listed is None else len(file.listed) - len(schedule),
            "placement": placement.name,
            "rank_of_stage": placement.table.tolist(),
            "per_rank": _per_rank(schedule),
        }
    return values
