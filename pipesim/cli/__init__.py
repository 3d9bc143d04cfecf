"""The command line: `pipesim`, also `python -m pipesim`.

Exit status: 0 done; 2 bad input; 3 the run cannot finish: it hangs, or is over
a memory limit. What a command needs is imported when
it runs, so that `--help` is quick.
"""

import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence

from pipesim.base.errors import DeadlockError, MemoryLimitError, PipesimError
from pipesim.cli import check, compare, lower, profile, run, schedules, split, sweep

BAD_INPUT, CANNOT_FINISH = 2, 3


COMMANDS = (
    run,
    compare,
    sweep,
    profile,
    split,
    lower,
    schedules,
    check,
)


def build_parser() -> ArgumentParser:
    """Return the parser of the command line."""
    parser = ArgumentParser(
        prog="pipesim",
        description="Simulate pipeline-parallel training with unequal stages, op by op.",
        epilog="Exit status: 0 done; 2 bad input; 3 the run cannot finish.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    arguments = build_parser().parse_args(argv)
    try:
        arguments.execute(arguments)
        if sys.stdout is not None:  # it is when it was closed
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone, as in `pipesim ... | head`; keep the interpreter from complaining.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (DeadlockError, MemoryLimitError) as error:
        return _complain(error, CANNOT_FINISH)
    except (PipesimError, ValueError) as error:
        return _complain(error, BAD_INPUT)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _complain(f"{place}{error.strerror or error}", BAD_INPUT)
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    return 0


def _complain(error: object, status: int) -> int:
    for line in str(error).splitlines():
        print(f"pipesim: {line}", file=sys.stderr)
    return status
