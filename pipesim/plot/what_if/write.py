"""A what-if page: sliders for what a sweep varies; the chart and the numbers follow."""

from collections.abc import Iterable
from os import PathLike
from typing import TYPE_CHECKING

from pipesim.plot.page.page import check_page, save_page
from pipesim.run.run import Run

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 100_000  # in a page


def write_what_if(
    table: "pd.DataFrame", runs: Iterable[Run | None], path: str | PathLike[str]
) -> None:
    """Write a page with a slider for each axis of a sweep: its chart and numbers follow them.

    It is one file, which needs no network. The Gantt chart of the point at the sliders stands
    on a time axis that all points share. Beside it are the point's numbers, with the difference
    to another point, at first the first one, and a curve of any of them over any axis, at the
    other sliders' values. Keys that vary together have one slider. A point that cannot be run
    says why.

    A sweep of more points, or more ops, than a browser takes has no chart, and its page says so.

    Parameters
    ----------
    table
        What `sweep_config` returns.
    runs
        The runs of its rows, as `sweep_runs` gives them; as many are taken as can be shown.
    path
        The file, .html.

    Raises
    ------
    ValueError
        If the ending is another one, Bokeh is not installed, or the table is not that of a whole
        sweep, or of too many points.
    """
    check_page(path)
    from bokeh.document import Document
    from bokeh.events import DocumentReady

    from pipesim.plot.what_if.page import draw_page

    if len(table) > MOST_ROWS:
        raise ValueError(f"{path}: a page takes {MOST_ROWS:,} points, not {len(table):,}")
    document = Document()
    page, show = draw_page(table, runs)
    document.add_root(page)
    document.js_on_event(DocumentReady, show)
    save_page(document, f"what if: {', '.join(table.attrs['axes'])}", path)
