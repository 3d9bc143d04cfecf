"""The command `pipesim schedules`: every schedule and its properties."""

from argparse import Namespace

from pipesim.base.text import text_table
from pipesim.cli.flags import Commands, add_json_flag
from pipesim.cli.outputs import to_json


def add(commands: Commands, words: str) -> None:
    """Add the command and its flags to the command line."""
    schedules = commands.add_parser("schedules", help=words)
    add_json_flag(schedules)
    schedules.set_defaults(execute=schedules_command)


def schedules_command(arguments: Namespace) -> None:
    """Print every schedule with its placement, phases, peak, bubble, options and source."""
    from pipesim.schedules.families.registry import FAMILIES

    rows = [
        {
            "name": name,
            "placement": family.placement,
            "chunks": "v" if family.chunks is None else str(family.chunks),
            "backward": family.backward,
            "warm-up": family.warm_up,
            "peak held": family.peak,
            "bubble": family.bubble,
            "options": ", ".join(f"{key}={value}" for key, value in family.options.items()) or "-",
            "source": family.source,
            "summary": family.summary,
        }
        for name, family in FAMILIES.items()
    ]
    if arguments.json:
        print(to_json(rows))
        return
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    print(text_table(columns, left=tuple(columns)))
    print(
        "on rank r of p, with m micro-batches, v chunks a rank, k slices; "
        "bubble: of equal stages without transfers,\n"
        "F, B = I + W the times of a stage, or of a chunk, T = F + B\n"
        "option chunks: what layers are split for; of given stages there are v = stages / p"
    )
