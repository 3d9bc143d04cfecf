"""The command line: `pipesim`, also `python -m pipesim`.

Exit status: 0 done; 2 bad input; 3 the run cannot finish: it hangs, or is over
a memory limit. What a command needs is imported when
it runs, so that `--help` is quick.
"""

import os
import sys
from collections.abc import Sequence

from pipesim.base.errors import DeadlockError, MemoryLimitError, PipesimError
from pipesim.cli.parser import build_parser

BAD_INPUT, CANNOT_FINISH = 2, 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    arguments = build_parser().parse_args(argv)
    try:
        from pipesim.cli import commands
        from pipesim.cli.check import check
        from pipesim.cli.compare import compare
        from pipesim.cli.lower import lower
        from pipesim.cli.profile import profile
        from pipesim.cli.split import split
        from pipesim.cli.sweep import sweep

        command = {
            "run": commands.run,
            "compare": compare,
            "lower": lower,
            "profile": profile,
            "sweep": sweep,
            "split": split,
            "schedules": commands.schedules,
            "check": check,
        }[arguments.command]
        command(arguments)
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
