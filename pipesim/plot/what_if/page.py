"""The parts of a what-if page: sliders, numbers, a curve, and the chart of all points."""

from collections.abc import Iterable, Sequence
from html import escape
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from bokeh.layouts import column, row
from bokeh.models import (
    Button,
    CategoricalSlider,
    ColumnDataSource,
    CustomJS,
    CustomJSTickFormatter,
    Div,
    FixedTicker,
    HoverTool,
    Range1d,
    Select,
    UIElement,
)
from bokeh.plotting import figure

from pipesim.base.types import IntArray
from pipesim.plot.page.chart import draw_chart
from pipesim.plot.page.page import MARGIN, how_to, microbatch_picker
from pipesim.plot.page.summary import ABSENT
from pipesim.plot.page.window import MOST_BARS
from pipesim.plot.style import CURVES
from pipesim.plot.what_if.data import (
    NUMBERS,
    PageFullError,
    blank_picture,
    boxes_of,
    packed,
    pictures_of,
    shown_numbers,
)
from pipesim.plot.what_if.dials import Dial, dials_of
from pipesim.run.run import Run

if TYPE_CHECKING:
    import pandas as pd

ERROR = "error"  # the column of a sweep's table
MOST_POINTS = 400  # most points with charts in one page
SLIDER_WIDTH, TABLE_WIDTH = 330, 555  # [pixels]
CURVE_HEIGHT, LEAST_CURVE_WIDTH = 290, 300  # [pixels]
SIDES = (5, 15, 5, 15)
TABLE_STYLE = """
table { border-collapse: collapse; font: 12px sans-serif; font-variant-numeric: tabular-nums;
        table-layout: fixed; width: 545px; overflow-wrap: anywhere; }
td { padding: 2px 8px; border-bottom: 1px solid #ddd; text-align: right; }
td:first-child { text-align: left; width: 160px; padding-left: 0; }
td:last-child { width: 155px; }
p { font: 11px sans-serif; color: #606060; margin: 4px 0; width: 545px; }
"""


def draw_page(table: "pd.DataFrame", runs: Iterable[Run | None]) -> tuple[UIElement, CustomJS]:
    """Return the page, and the callback that shows the point at its sliders."""
    dials, rows = dials_of(table)
    names = shown_numbers(table)
    errors = [error if isinstance(error, str) else None for error in table[ERROR]]
    try:
        below, chart = _chart(runs, errors)
    except PageFullError as error:
        below, chart = [_no_chart(str(error))], None
    shown, curve = _curve(dials, names) if dials else (None, None)
    sliders = _sliders(dials)
    note = Div(
        width=SLIDER_WIDTH - 30,
        styles={"color": "#a02020"},
        margin=SIDES,
        disable_math=True,
        name="note",
    )
    numbers = Div(width=TABLE_WIDTH, stylesheets=[TABLE_STYLE], disable_math=True, name="numbers")
    page = _data(table, rows, names, errors) | {
        "sliders": sliders,
        "note": note,
        "table": numbers,
        "chart": chart,
        "curve": curve,
    }
    show = CustomJS(args={"page": page}, code="whatIf.show(page)")
    # The page is reached through the other callback, so that its data is in the file once.
    compare = CustomJS(args={"show": show}, code="whatIf.compare(show.args.page)")
    button = Button(label="compare with this point", align="end", name="compare")
    button.js_on_event("button_click", compare)
    for control in (*sliders, *([] if curve is None else [curve["number"], curve["axis"]])):
        control.js_on_change("value", show)
    picker = [] if chart is None else [chart["picker"]]
    left = column(*sliders, row(*picker, button), note, width=SLIDER_WIDTH)
    top = row(
        *filter(None, (left, numbers, shown)),
        sizing_mode="stretch_width",
        styles={"flex-wrap": "wrap"},
    )
    return column(top, *below, sizing_mode="stretch_width", margin=(8, 16, 8, 8)), show


def _data(
    table: "pd.DataFrame", rows: IntArray, names: Sequence[str], errors: Sequence[str | None]
) -> dict[str, Any]:
    """Return the data of the page: the row at each setting of the sliders, and rows' contents."""
    heads = {"schedule": "schedule", "ranks": "ranks", "microbatches": "micro-batches"}
    return {
        "rows": rows.ravel().astype(np.int32),
        "strides": [prod(rows.shape[number + 1 :]) for number in range(rows.ndim)],
        "heads": {
            words: table[name].astype(object).where(table[name].notna(), ABSENT).map(str).tolist()
            for name, words in heads.items()
        },
        "numbers": {
            name: {"words": words, "unit": unit, "values": table[name].to_numpy(np.float64)}
            for name, (words, unit) in NUMBERS.items()
            if name in names
        },
        "errors": {str(row): error for row, error in enumerate(errors) if error is not None},
        "base": next(row for row in rows.ravel().tolist() if errors[row] is None),
    }


def _sliders(dials: Sequence[Dial]) -> list[CategoricalSlider]:
    return [
        CategoricalSlider(
            title=dial.name,
            name=dial.name,
            categories=dial.texts,
            value=dial.texts[0],
            width=SLIDER_WIDTH - 30,
            margin=SIDES,
            stylesheets=[".bk-slider-title { white-space: normal; }"],
        )
        for dial in dials
    ]


def _chart(
    runs: Iterable[Run | None], errors: Sequence[str | None]
) -> tuple[list[UIElement], dict[str, Any]]:
    """Return the elements of the chart, still blank, and its parts that follow the sliders."""
    if len(errors) > MOST_POINTS:
        raise PageFullError(f"the sweep has {len(errors):,} points, and a page holds {MOST_POINTS}")
    pictures, sources = pictures_of(runs, errors, MOST_BARS)
    blank = blank_picture(pictures)
    last = MARGIN * blank.end or 1.0
    drawing = draw_chart(blank, Range1d(0.0, last, bounds=(0.0, last)))
    drawing.figure.name = "gantt"
    legend = {
        renderer.name: item
        for item in drawing.figure.legend[0].items
        for renderer in item.renderers
    }
    picker = microbatch_picker([drawing], [picture for picture in pictures if picture is not None])
    picker.margin = SIDES
    columns, points = packed(pictures)
    chart = {
        "figure": drawing.figure,
        "parts": [{"bars": drawing.bars, "messages": drawing.messages, "sent": drawing.sent}],
        "legend": legend,
        "limits": list(blank.limits),
        "blank": boxes_of(blank),
        "columns": columns,
        "points": points,
        "picker": picker,
    }
    told = [
        Div(text=f"Costs: {escape(text)}", disable_math=True, sizing_mode="stretch_width")
        for text in sources
    ]
    return [how_to(), drawing.figure, *told], chart


def _no_chart(reason: str) -> UIElement:
    """Return the note in the place of a chart that would be too large."""
    text = (
        f"<b>No chart: {reason}. The numbers are those of all points. Fewer values an axis, or "
        "fewer micro-batches, bring the chart back.</b>"
    )
    return Div(text=text, sizing_mode="stretch_width", name="no chart")


def _curve(dials: Sequence[Dial], names: Sequence[str]) -> tuple[UIElement, dict[str, Any]]:
    """Return the curve of a chosen number over an axis, and its parts that follow the sliders."""
    wide = {"sizing_mode": "stretch_width", "min_width": 120}
    number = Select(
        title="number",
        value=names[0],
        options=[(name, NUMBERS[name][0]) for name in names],
        **wide,
        name="number",
    )
    keys = [dial.name for dial in dials]
    axis = Select(title="over", value=keys[0], options=keys, name="axis", **wide)
    line = ColumnDataSource({"x": [], "y": [], "at": [], "text": []})
    mark = ColumnDataSource({"x": [], "y": []})
    fig = figure(
        height=CURVE_HEIGHT,
        sizing_mode="stretch_width",
        x_range=Range1d(0, 1),
        y_range=Range1d(0, 1),
        toolbar_location=None,
        tools="",
        name="curve",
        min_border_left=80,
        min_border_right=35,
    )
    fig.line("x", "y", source=line, line_color=CURVES[0][0], line_width=1.5)
    points = fig.scatter("x", "y", source=line, size=6, color=CURVES[0][0])
    fig.scatter("x", "y", source=mark, size=13, color=CURVES[1][0], name="mark")
    fig.add_tools(HoverTool(renderers=[points], tooltips=[("at", "@at"), ("is", "@text")]))
    fig.xaxis.ticker = FixedTicker(ticks=[])
    fig.xgrid.visible = False
    fig.yaxis.minor_tick_line_color = None
    units = {name: NUMBERS[name][1] for name in names}
    fig.yaxis.formatter = CustomJSTickFormatter(
        args={"number": number, "units": units},
        code="return whatIf.tick(tick, units[number.value])",
    )
    choices = row(number, axis, sizing_mode="stretch_width")
    shown = column(choices, fig, sizing_mode="stretch_width", min_width=LEAST_CURVE_WIDTH)
    return shown, {"figure": fig, "line": line, "mark": mark, "number": number, "axis": axis}
