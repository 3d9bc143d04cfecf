import os
import sys

import matplotlib
import pytest
from hypothesis import settings

matplotlib.use("Agg")


# In continuous integration the same examples every time; at a developer's, new ones.
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("developer", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "developer")


@pytest.fixture(autouse=True)
def close_figures():
    """Close what a test has drawn: commands leave their figures to the end of the process."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
