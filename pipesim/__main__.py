"""`python -m pipesim`: the same as the command `pipesim`."""

import sys

from pipesim.cli import main

if __name__ == "__main__":
    sys.exit(main())
