"""A page with Gantt charts to zoom into, to hover over and to mail: one HTML file."""

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from os import PathLike
from typing import TYPE_CHECKING, Any

from pipesim.io.files import check_library, replacing
from pipesim.plot.gantt_chart import run_title
from pipesim.plot.gantt_step import EndBoxes, end_boxes, step_titles
from pipesim.plot.html_data import MOST_BARS, choose_window, picture_of
from pipesim.plot.html_summary import summary_table
from pipesim.run import Run
from pipesim.step import Step

if TYPE_CHECKING:
    from bokeh.models import UIElement

    from pipesim.plot.html_chart import Chart

MARGIN = 1.003  # of the time axis, so that lines stay inside
NOTHING = "nothing"


def write_html(
    runs: Run | Step | Iterable[Run],
    path: str | PathLike[str],
    *,
    window: tuple[float, float] | None = None,
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
        The file.
    window
        Begin and end of the part that is shown [ms]; by default all, or as much from the begin
        on as a browser can take, and the page says so.

    Raises
    ------
    ValueError
        If Bokeh is not installed, or nothing of the run is in the window.
    """
    check_library(str(path))
    from bokeh.embed import file_html
    from bokeh.resources import INLINE

    step = runs if isinstance(runs, Step) else None
    runs = list(runs.runs) if isinstance(runs, Step) else runs
    runs = [runs] if isinstance(runs, Run) else list(runs)
    titles = step_titles(step) if step is not None else [run_title(run) for run in runs]
    ends = [{} for _ in runs] if step is None else _ends_by_replica(step)
    page = _page(runs, titles, ends, window, None if step is None else step.step_ms)
    with replacing(path) as temporary:
        html = file_html(page, INLINE, titles[0].partition("\n")[0], template=_template())
        temporary.write_text(html, "utf-8")


def _page(
    runs: Sequence[Run],
    titles: Sequence[str],
    ends: Sequence[dict[str, EndBoxes]],
    window: tuple[float, float] | None,
    until: float | None,
) -> "UIElement":
    from bokeh.layouts import column, row
    from bokeh.models import Div, Range1d

    from pipesim.plot.html_chart import draw_chart

    windows = [choose_window(run, window, MOST_BARS // len(runs)) for run in runs]
    begin = min(each.begin for each in windows)
    end = max(until or 0.0, *(each.end for each in windows)) if window is None else window[1]
    if any(each.notice for each in windows):
        end = max(each.end for each in windows)
    last = begin + (MARGIN * (end - begin) or 1.0)
    time = Range1d(begin, last, bounds=(begin, last))
    charts = [
        draw_chart(picture_of(run, title, part, after), time)
        for run, title, part, after in zip(runs, titles, windows, ends, strict=True)
    ]
    notices = dict.fromkeys(each.notice for each in windows if each.notice)
    sources = dict.fromkeys(run.pipeline.source for run in runs if run.pipeline.source)
    parts: list[Any] = [Div(text=f"<b>{escape(text)}</b>") for text in notices]
    parts.append(row(_picker(charts, runs), _held_choice(charts)))
    for chart in charts:
        parts += [chart.figure, *chart.held.values()]
    parts.append(Div(text=summary_table(runs), sizing_mode="stretch_width"))
    parts += [Div(text=f"Costs: {escape(text)}", sizing_mode="stretch_width") for text in sources]
    return column(*parts, sizing_mode="stretch_width")


def _picker(charts: Sequence["Chart"], runs: Sequence[Run]) -> "UIElement":
    """Return the list of micro-batches, of which one lights up; a click on a bar picks it, too."""
    from bokeh.models import CustomJS, Select

    count = max(run.schedule.microbatches for run in runs)
    select = Select(
        title="micro-batch", value="all", options=["all", *map(str, range(count))], width=110
    )
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


def _template() -> str:
    """Return what a page has beside Bokeh's own: the functions that its callbacks call."""
    script = files("pipesim.plot").joinpath("html_page.js").read_text("utf-8")
    return f"{{% block preamble %}}<script>{script}</script>{{% endblock %}}"
