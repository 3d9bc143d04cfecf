"""Pictures of runs: each takes `ax=None` and returns the Axes; none shows or saves anything.

`save` writes a figure to a file; `write_html` a page to zoom into and hover over, and
`write_what_if` one with sliders for what a sweep varies.
"""

from pipesim.plot.curves import bubble, lines
from pipesim.plot.gantt.chart import gantt
from pipesim.plot.heat_map import heat_map
from pipesim.plot.in_flight import in_flight
from pipesim.plot.memory import memory
from pipesim.plot.page.page import write_html
from pipesim.plot.style import save
from pipesim.plot.what_if.write import write_what_if

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
