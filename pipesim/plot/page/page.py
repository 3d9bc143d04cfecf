"""A page with Gantt charts to zoom into, to hover over and to mail: one HTML file."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from pipesim.base.files import PAGE_ENDING, check_library, has_ending, replacing
from pipesim.plot.gantt.chart import run_titles, runs_of
from pipesim.plot.gantt.step_end import EndBoxes, end_boxes, step_titles
from pipesim.plot.page.data import Picture, picture_of
from pipesim.plot.page.summary import summary_table
from pipesim.plot.page.window import Window, choose_window
from pipesim.run.run import Run
from pipesim.run.step import Step

if TYPE_CHECKING:
    from bokeh.document import Document
    from bokeh.models import UIElement

    from pipesim.plot.page.chart import Chart

UUID = r"\b[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b"
MARGIN = 1.003  # of the time axis, so that lines stay inside
NOTHING = "nothing"
HOW_TO = (
    "hover: what an op waited for; click: follow its micro-batch; click the legend: show or hide; "
    "wheel: zoom; drag: move"
)
SCRIPTS = ("page/page.js", "what_if/what_if.js")


def write_html(
    runs: Run | Step | Iterable[Run],
    path: str | PathLike[str],
    *,
    critical_path: bool = False,
    window: tuple[float, float] | None = None,
    notes: Iterable[str] = (),
) -> None:
    """Write a page with the Gantt chart of one run, or of several on one time axis.

    It is one file, which needs no network. One can zoom, hover over an op or an idle stretch,
    and pick a micro-batch, by a click or from the list: its ops and transfers light up. A click
    on the legend shows and hides idle time by its cause, kinds of ops, limits, and the critical
    path. Below stands what every rank holds over time, and a table of the numbers.

    Parameters
    ----------
    runs
        One run, several, or a step with its replicas.
    path
        The file, .html.
    critical_path
        Whether the critical path is outlined at first; a click on the legend changes that.
    window
        Begin and end of the part that is shown [ms], the same of all runs; by default all, or as
        much from the begin on as a browser can take, and the page says so.
    notes
        Texts to stand above the charts, such as what is not on them, and why.

    Raises
    ------
    ValueError
        If the ending is another one, Bokeh is not installed, there is no run, or all is over
        before the window begins.
    """
    check_page(path)
    step = runs if isinstance(runs, Step) else None
    runs = runs_of(runs)
    last = max(run.makespan for run in runs) if step is None else step.step_ms
    part = choose_window(runs, last, window)
    pictures = _pictures(runs, step, part)
    slowest = [] if step is None else [step.runs[step.slowest_replica]]
    table = summary_table(slowest or runs, step)
    sources = dict.fromkeys(run.pipeline.source for run in runs if run.pipeline.source)
    below = [table, *(f"Costs: {escape(text)}" for text in sources)]
    above = [f"<b>{escape(text)}</b>" for text in (part.notice, *notes) if text]
    page = _page(pictures, above, below, critical_path)
    save_page(page, pictures[0].title.partition("\n")[0], path)


def check_page(path: str | PathLike[str]) -> None:
    """Check that a page can be written to a path.

    Raises
    ------
    ValueError
        If the ending is not .html, or Bokeh is not installed.
    """
    if not has_ending(path, (PAGE_ENDING,)):
        raise ValueError(f"{path}: a page is written as {PAGE_ENDING}")
    check_library(str(path))


def save_page(page: "UIElement | Document", title: str, path: str | PathLike[str]) -> None:
    """Write a page as one file, with all that its callbacks call."""
    from bokeh.embed import file_html
    from bokeh.resources import INLINE

    with replacing(path) as temporary:
        html = file_html(page, INLINE, title, template=_template())
        temporary.write_text(_named_alike(html), "utf-8")


def _pictures(runs: Sequence[Run], step: Step | None, window: Window) -> list[Picture]:
    """Return what the charts draw of the part of the runs in a window."""
    beside: Sequence[Run]
    if step is None:
        titles, beside = run_titles(runs), runs
        ends: list[dict[str, EndBoxes]] = [{} for _ in runs]
    else:
        titles, beside, ends = step_titles(step), (), _ends_by_replica(step)
    return [
        picture_of(run, title, window, after, beside=beside)
        for run, title, after in zip(runs, titles, ends, strict=True)
    ]


def _page(
    pictures: Sequence[Picture], above: Sequence[str], below: Sequence[str], critical_path: bool
) -> "UIElement":
    """Return charts on one time axis, with texts above and below."""
    from bokeh.layouts import column, row
    from bokeh.models import Div, Range1d

    from pipesim.plot.page.chart import draw_chart

    begin = min(picture.begin for picture in pictures)
    end = max(picture.end for picture in pictures)
    last = begin + (MARGIN * (end - begin) or 1.0)
    time = Range1d(begin, last, bounds=(begin, last))
    charts = [draw_chart(picture, time, critical_path) for picture in pictures]
    parts: list[Any] = [row(microbatch_picker(charts, pictures), _held_choice(charts)), how_to()]
    for chart in charts:
        parts += [chart.figure, *chart.held.values()]
    tops, feet = (
        [Div(text=text, disable_math=True, sizing_mode="stretch_width") for text in texts]
        for texts in (above, below)
    )
    return column(*tops, *parts, *feet, sizing_mode="stretch_width", margin=(8, 16, 8, 8))


def how_to() -> "UIElement":
    """Return the line that says what a chart does when one hovers, clicks and drags."""
    from bokeh.models import Div

    return Div(text=HOW_TO, styles={"color": "#606060"}, sizing_mode="stretch_width", name="how to")


def microbatch_picker(charts: Sequence["Chart"], pictures: Sequence[Picture]) -> "UIElement":
    """Return the list of micro-batches, of which one lights up; a click on a bar picks it, too."""
    from bokeh.models import CustomJS, Select

    columns = [columns["microbatch"] for each in pictures for columns in each.bars.values()]
    shown = np.unique(np.concatenate(columns)).tolist()
    select = Select(title="micro-batch", value="all", options=["all", *map(str, shown)], width=110)
    parts = [{"bars": c.bars, "messages": c.messages, "sent": c.sent} for c in charts]
    pick = CustomJS(args={"charts": parts}, code="pipesim.pick(charts, cb_obj.value)")
    select.js_on_change("value", pick)
    for chart in charts:
        find = "select.value = pipesim.find(bars, cb_obj.x, cb_obj.y)"
        arguments = {"bars": chart.bars, "select": select}
        chart.figure.js_on_event("tap", CustomJS(args=arguments, code=find))
    return select


def _held_choice(charts: Sequence["Chart"]) -> "UIElement":
    """Return the buttons that choose what is shown below of what ranks hold."""
    from bokeh.layouts import column
    from bokeh.models import CustomJS, Div, RadioButtonGroup

    units = list(dict.fromkeys(unit for chart in charts for unit in chart.held))
    shown = 1 if len(charts) == 1 else 0  # several charts are for comparing
    for chart in charts:
        for unit, figure in chart.held.items():
            figure.visible = unit == [NOTHING, *units][shown]
    buttons = RadioButtonGroup(labels=[NOTHING, *units], active=shown)
    figures = [[c.held[unit] for c in charts if unit in c.held] for unit in units]
    show = CustomJS(args={"units": figures}, code="pipesim.show(units, cb_obj.active - 1)")
    buttons.js_on_change("active", show)
    return column(Div(text="held by each rank"), buttons)


def _ends_by_replica(step: Step) -> list[dict[str, EndBoxes]]:
    """Return what comes at the end of a step, for each replica by kind."""
    boxes = end_boxes(step)
    return [
        {kind: of.where(of.replica == replica) for kind, of in boxes.items()}
        for replica in range(len(step.runs))
    ]


def _named_alike(html: str) -> str:
    """Return a page with the same names in it each time, for those that Bokeh draws at random."""
    names = dict.fromkeys(re.findall(UUID, html))
    for number, name in enumerate(names):
        html = html.replace(name, f"part-{number}")
    return html


def _template() -> str:
    """Return what a page has beside Bokeh's own: the functions that its callbacks call."""
    code = "".join(files("pipesim.plot").joinpath(name).read_text("utf-8") for name in SCRIPTS)
    return f"{{% block preamble %}}<script>{code}</script>{{% endblock %}}"
