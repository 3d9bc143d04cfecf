"""The command line: `pipesim`, also `python -m pipesim`.

Exit status: 0 done; 2 bad input; 3 the run cannot finish: it hangs, or is over a memory limit.
A command's flags are loaded when it is given, and what it needs when it runs, so that `--help` is
quick.
"""

import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from importlib import import_module

from pipesim.base.errors import DeadlockError, MemoryLimitError, PipesimError

BAD_INPUT, CANNOT_FINISH = 2, 3

# Each is a file of this name, whose `add` adds its flags. The line of help stands here, as `--help`
# shows it without loading the file.
COMMANDS = {
    "run": "simulate one step",
    "compare": "run several schedules on one config",
    "sweep": "run a config for every combination of its [sweep] axes",
    "profile": "measure the layers of a PyTorch model",
    "split": "split the layers of a config into stages",
    "lower": "print the instructions of every rank, sends and receives among them",
    "schedules": "list the schedules and what is known of them",
    "check": "check a schedule file",
}


def build_parser(only: str | None = None) -> ArgumentParser:
    """Return the parser of the command line.

    Parameters
    ----------
    only
        The command that is given: no other one's file is loaded; by default all are.
    """
    parser = ArgumentParser(
        prog="pipesim",
        description="Simulate pipeline-parallel training with unequal stages, op by op.",
        epilog="Exit status: 0 done; 2 bad input; 3 the run cannot finish.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, words in COMMANDS.items():
        if only in (None, name):
            import_module(f"pipesim.cli.{name}").add(commands, words)
        else:
            commands.add_parser(name, help=words)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    given = sys.argv[1:] if argv is None else list(argv)
    arguments = build_parser(only=given[0] if given else "").parse_args(given)
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
