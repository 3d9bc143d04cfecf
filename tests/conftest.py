import os

import matplotlib
from hypothesis import settings

matplotlib.use("Agg")

# In continuous integration the same examples every time; at a developer's, new ones.
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("developer", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "developer")
