"""The command `pipesim lower`: the instructions of every rank, side by side."""

from argparse import Namespace

from pipesim.base.errors import ConfigError, ScheduleError
from pipesim.base.text import count_text
from pipesim.cli.assignments import assignment
from pipesim.cli.flags import (
    PROTOCOL_WORDS,
    Commands,
    add_config_argument,
    add_json_flag,
    add_set_flag,
)
from pipesim.cli.outputs import to_json


def add(commands: Commands, words: str) -> None:
    """Add the command and its flags to the command line."""
    lower = commands.add_parser(
        "lower",
        help=words,
        description="Print what every rank does in order under a protocol, side by side; slots "
        "are no times. Exit status 3 if it hangs.",
    )
    add_config_argument(lower)
    lower.add_argument("--protocol", metavar="NAME", help=PROTOCOL_WORDS)
    lower.add_argument(
        "--names",
        choices=("pytorch", "deepspeed"),
        default="pytorch",
        help="whose names to use: 0SEND_F0, or SendActivation 0",
    )
    add_set_flag(lower)
    add_json_flag(lower)
    lower.set_defaults(execute=lower_command)


def lower_command(arguments: Namespace) -> None:
    """Print the instructions of every rank in order, its sends and receives among its ops.

    Raises
    ------
    DeadlockError
        If the instructions hang; those that are reached are printed first.
    """
    from pipesim.config.read import read_config
    from pipesim.engine.graph.deadlock import deadlock_error
    from pipesim.engine.graph.event_graph import event_graph
    from pipesim.engine.graph.instruction_grid import NAMES, instruction_grid
    from pipesim.engine.workload import bind
    from pipesim.schedules.program.lowering import lower as lower_schedule

    overrides = dict(map(assignment, arguments.set))
    if arguments.protocol is not None:
        overrides["run.protocol"] = arguments.protocol
    config = read_config(arguments.config, overrides)
    section = config.sections.run
    program = lower_schedule(config.schedule, section.protocol)
    try:
        workload = bind(program, config.pipeline, section.eager_limit_bytes)
    except ScheduleError as error:
        raise ConfigError(config.name, [f"run.schedule: {error}"]) from None
    graph = event_graph(program, queue_capacity=section.queue_capacity, meets=workload.meets)
    hang = deadlock_error(graph) if graph.stuck().any() else None
    named = NAMES[arguments.names]
    if arguments.json:
        ranks = [
            [named(program, i) for i in range(program.offsets[r], program.offsets[r + 1])]
            for r in range(program.ranks)
        ]
        values = {"schedule": program.name, "protocol": program.protocol, "ranks": ranks}
        told = None if hang is None else [stands._asdict() for stands in hang.cycle]
        print(to_json(values | {"deadlock": told}))
    else:
        instructions = count_text(len(program), "instruction")
        print(f"{program.title}, {instructions}")
        print(instruction_grid(graph, named))
    if hang is not None:
        raise hang
