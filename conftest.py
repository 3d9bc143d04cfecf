"""What can be collected here: the doctests of the runtime only where PyTorch is installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["pipesim/runtime/*"]
