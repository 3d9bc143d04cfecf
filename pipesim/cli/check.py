"""The command `pipesim check`: the content of a schedule file, or all its faults."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipesim.base.checks import check_count
from pipesim.base.errors import ConfigError, DeadlockError, ScheduleError
from pipesim.base.files import CONFIG_ENDINGS, has_ending, is_schedule_file
from pipesim.base.text import count_text, text_table
from pipesim.cli.flags import PROTOCOL_WORDS, Commands, add_json_flag
from pipesim.cli.outputs import to_json

if TYPE_CHECKING:
    from pipesim.base.types import IntArray
    from pipesim.files.schedule_csv.schedule_file import ScheduleFile
    from pipesim.schedules.order.listed_actions import Actions
    from pipesim.schedules.order.schedule import Schedule
    from pipesim.schedules.program.program import Program

MOST_OPS = 20_000  # in a file up to which all protocols are tried
SHOWN = 50  # faults on the screen; in JSON there are all of them


def add(commands: Commands, words: str) -> None:
    """Add the command and its flags to the command line."""
    check = commands.add_parser(
        "check",
        help=words,
        description=(
            "Check a CSV file of PyTorch's pipelining: every fault with its place, or what the "
            "schedule is."
        ),
        epilog="Exit status: 0 valid; 2 faults; 3 only that the order cannot go on.",
    )
    check.add_argument("file", metavar="FILE.csv", help="one row a rank, cells such as 2F0")
    check.add_argument(
        "--protocol", default="eager", metavar="NAME", help=f"not to hang under: {PROTOCOL_WORDS}"
    )
    check.add_argument(
        "--queue-capacity", type=int, metavar="N", help="messages between two stages; default: any"
    )
    add_json_flag(check)
    check.set_defaults(execute=check_command)


def check_command(arguments: Namespace) -> None:
    """Print the content of a schedule file; faults are an error, and so is an order that hangs."""
    from pipesim.engine.graph.deadlock import check_deadlock
    from pipesim.files.schedule_csv.fault_grid import fault_grid
    from pipesim.files.schedule_csv.read import read_torch_schedule
    from pipesim.schedules.program.lowering import lower

    capacity = arguments.queue_capacity
    if capacity is not None:
        check_count("--queue-capacity", capacity)
    _check_ending(arguments.file)
    file = read_torch_schedule(arguments.file)
    schedule, actions = file.schedule, file.actions
    if schedule is None or actions is None:
        if arguments.json:
            print(to_json(_as_plain_values(file, None)))
        lines = [f"{file.path}: {_verdict(file)}", *file.fault_lines(SHOWN)]
        picture = fault_grid(file)
        text = "\n".join([*lines, *([""] if picture else []), *picture.splitlines()])
        raise ScheduleError(text)
    program = lower(schedule, arguments.protocol)
    try:
        check_deadlock(program, queue_capacity=capacity)
    except DeadlockError as error:
        if arguments.json:
            print(to_json(_as_plain_values(file, error, _cells(program, actions))))
        raise _with_cells(error, program, actions, file.path) from None
    if arguments.json:
        print(to_json(_as_plain_values(file, None)))
    else:
        print(_report(file, schedule))
        print(_protocols(schedule, capacity, arguments.protocol))


def _check_ending(path: str) -> None:
    """Check that a file's ending may be that of a schedule: else every line would be a fault.

    A file without an ending may be a pipe.
    """
    if Path(path).suffix and not is_schedule_file(path):
        is_config = has_ending(path, CONFIG_ENDINGS)
        what, config = ("a config", path) if is_config else ("no .csv file", "CONFIG")
        written = f"pipesim run {config} --export-schedule order.csv"
        raise ConfigError(
            path, [f"is {what}; check takes a schedule file (.csv), such as `{written}` writes"]
        )


def _with_cells(
    error: DeadlockError, program: "Program", actions: "Actions", path: str
) -> DeadlockError:
    """Return a deadlock error that names the cells of the file at which the ranks stand."""
    from pipesim.files.schedule_csv.schedule_file import place_text

    head, *lines = str(error).splitlines()
    cells = _cells(program, actions)
    for number, stands in enumerate(error.cycle[: len(lines)]):
        if cells is not None and lines[number].startswith(f"  rank {stands.rank} "):
            place = place_text(stands.rank, int(cells[stands.rank][stands.place]))
            lines[number] = f"  {place}: {lines[number].strip()}"
    what = f"{path}: every op is there, but {head}"
    return DeadlockError("\n".join([what, *lines]), error.cycle)


def _cells(program: "Program", actions: "Actions") -> "list[IntArray] | None":
    """Return the cells of each rank's instructions; None where the file does not list them."""
    import numpy as np

    from pipesim.schedules.program.lowering import AS_LISTED

    if program.listed and not (actions.transfers and program.protocol in AS_LISTED):
        return None
    wanted = actions.computes | program.listed
    places = np.unique(np.stack([actions.rank[wanted], actions.cell[wanted]]), axis=1)
    return [places[1, places[0] == rank] for rank in range(program.ranks)]


def _protocols(schedule: "Schedule", capacity: int | None, protocol: str) -> str:
    """Return a text line for each protocol: whether the order hangs; one line for large orders.

    That line is for `protocol`, under which the order is known to go on.
    """
    from pipesim.engine.graph.deadlock import check_deadlock
    from pipesim.schedules.program.lowering import PROTOCOLS, lower

    lines = []
    for name in PROTOCOLS if len(schedule) <= MOST_OPS else (protocol,):
        try:
            if name != protocol:
                check_deadlock(lower(schedule, name), queue_capacity=capacity)
            lines.append(f"  {name}: goes on to its end")
        except DeadlockError as error:
            who = str(error).splitlines()[0].rpartition(": ")[2]
            where = " / ".join(stands.instruction for stands in error.cycle[:4])
            lines.append(f"  {name}: hangs, {who}, at {where}")
    return "\n".join(["", "sends and receives under each protocol:", *lines])


def _verdict(file: "ScheduleFile") -> str:
    count = len(file.faults) + file.unlisted
    return f"{count:,} fault{'' if count == 1 else 's'}"


def _report(file: "ScheduleFile", schedule: "Schedule") -> str:
    sizes = [count_text(schedule.ranks, "rank"), count_text(schedule.stages, "stage")]
    sizes.append(count_text(schedule.microbatches, "micro-batch"))
    if schedule.slices > 1:
        sizes.append(f"{count_text(schedule.slices, 'slice')} each")
    kinds = ", ".join(kind.name for kind in sorted(schedule.kinds))
    dialect = "; written as BW, B, W, as PyTorch 2.5 does" if file.dialect == "legacy" else ""
    lines = [f"{file.path}: valid", f"{', '.join(sizes)}; ops {kinds}{dialect}"]
    transfers = 0 if file.actions is None else len(file.actions) - len(schedule)
    if transfers:
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


def _per_rank(schedule: "Schedule") -> list[dict[str, int]]:
    from pipesim.schedules.order.dataflow import rank_phases

    peaks = schedule.peak_in_flight()
    return [
        {"rank": rank, "ops": sum(phases), **phases._asdict(), "peak_in_flight": peaks[rank]}
        for rank, phases in enumerate(rank_phases(schedule))
    ]


def _as_plain_values(
    file: "ScheduleFile", hang: DeadlockError | None, cells: "list[IntArray] | None" = None
) -> dict[str, Any]:
    """Return the report as plain values for JSON; rows and cells from 1, ranks from 0."""
    values: dict[str, Any] = {
        "file": file.path,
        "valid": file.schedule is not None and hang is None,
        "deadlock": None
        if hang is None
        else [
            {
                "row": stands.rank + 1,
                "rank": stands.rank,
                "cell": None if cells is None else int(cells[stands.rank][stands.place]) + 1,
                "instruction": stands.instruction,
                "awaited": stands.awaited,
            }
            for stands in hang.cycle
        ],
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
            "transfers": 0 if file.actions is None else len(file.actions) - len(schedule),
            "placement": placement.name,
            "rank_of_stage": placement.table.tolist(),
            "per_rank": _per_rank(schedule),
        }
    return values
