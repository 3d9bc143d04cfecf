"""Pictures of runs: each takes `ax=None` and returns the Axes; none shows or saves anything.

`save` writes a figure to a file; `write_html` a page to zoom into and hover over, and
`write_what_if` one with sliders for what a sweep varies.
"""

from pipesim.plot.bubble_curve import bubble, lines
from pipesim.plot.gantt_chart import gantt
from pipesim.plot.heat import heat_map
from pipesim.plot.html import write_html
from pipesim.plot.memory_curve import in_flight
from pipesim.plot.rank_memory import memory
from pipesim.plot.style import save
from pipesim.plot.what_if import write_what_if

__all__ = [
    "bubble",
    "gantt",
    "heat_map",
    "in_flight",
    "lines",
    "memory",
    "save",
    "write_html",
    "write_what_if",
]
