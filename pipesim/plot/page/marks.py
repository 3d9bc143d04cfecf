"""What a page's chart draws beside the ops: idle time, a step's end, limits, the critical path."""

from typing import TYPE_CHECKING, Any

from bokeh.models import Arrow, ColumnDataSource, CustomJSHover, HoverTool, LegendItem, VeeHead
from bokeh.plotting import figure

from pipesim.base.text import ms_text
from pipesim.plot.gantt.legend import CLOSED_FORM, LOWER_BOUND
from pipesim.plot.page.data import Columns
from pipesim.plot.style import END_EDGE, END_STYLES, HATCH_COLOUR, IDLE_STYLES

if TYPE_CHECKING:
    from bokeh.models import GlyphRenderer

BOX = {"left": "left", "right": "right", "bottom": "bottom", "top": "top"}
HATCHES = {
    ".": "dot",
    "/": "right_diagonal_line",
    "\\": "left_diagonal_line",
    "x": "diagonal_cross",
    "-": "horizontal_line",
    "|": "vertical_line",
    "+": "cross",
    "o": "ring",
}
LIMIT_DASHES = {CLOSED_FORM: "dashed", LOWER_BOUND: "dotted"}


def draw_idle(fig: figure, cause: str, boxes: Columns) -> LegendItem:
    """Shade the idle stretches of one cause."""
    face, hatch, words = IDLE_STYLES[cause]
    look = _look(face, hatch, HATCH_COLOUR) | {"line_color": None, "name": f"idle {cause}"}
    return _draw_boxes(fig, boxes, look, ("idle", words))


def draw_end(fig: figure, kind: str, boxes: Columns) -> LegendItem:
    """Draw what comes at the end of a step."""
    face, hatch, words = END_STYLES[kind]
    look = _look(face, hatch, END_EDGE) | {"line_color": END_EDGE, "name": f"end {kind}"}
    return _draw_boxes(fig, boxes, look, ("end of step", words))


def _draw_boxes(
    fig: figure, boxes: Columns, look: dict[str, Any], what: tuple[str, str]
) -> LegendItem:
    drawn = fig.quad(**BOX, source=ColumnDataSource(boxes), **look)
    tell(fig, drawn, what)
    return LegendItem(label=what[1], renderers=[drawn])


def tell(fig: figure, box: "GlyphRenderer", what: tuple[str, str]) -> None:
    """Have a box say, when one hovers over it, what it is, and from when to when."""
    told = [what, ("from", "@left{custom}"), ("to", "@right{custom}")]
    formatters = {"@left": time_formatter(), "@right": time_formatter()}
    fig.add_tools(HoverTool(renderers=[box], tooltips=told, formatters=formatters, visible=False))


def time_formatter() -> CustomJSHover:
    """Return what writes a time [ms] into a tooltip."""
    return CustomJSHover(code="return pipesim.tellTime(value)")


def _look(face: str, hatch: str | None, colour: str) -> dict[str, Any]:
    """Return how a box with a hatch of matplotlib's looks."""
    if hatch is None:
        return {"fill_color": face}
    return {
        "fill_color": face,
        "hatch_pattern": HATCHES[hatch[0]],
        "hatch_color": colour,
        "hatch_scale": 8.0,
        "hatch_weight": 0.8,
    }


def draw_limit(fig: figure, rows: int, words: str, time: float) -> LegendItem:
    """Draw a line at a makespan that the run is measured against."""
    source = ColumnDataSource({"x": [time, time], "y": [-0.5, rows - 0.5]})
    dash = LIMIT_DASHES[words]
    line = fig.line(
        "x", "y", source=source, line_color="black", line_dash=dash, line_width=1.5, name=words
    )
    return LegendItem(label=f"{words}: {ms_text(time)}", renderers=[line])


def draw_saved(fig: figure, rows: int, saved: tuple[float, float, str] | None) -> None:
    """Draw an arrow from the end of the run to that of the slowest one."""
    if saved is None:
        return
    start, end, _ = saved
    middle = (rows - 1) / 2
    fig.add_layout(
        Arrow(
            x_start=start,
            x_end=end,
            y_start=middle,
            y_end=middle,
            start=VeeHead(size=7),
            end=VeeHead(size=7),
            name="saved",
        )
    )


def draw_path(fig: figure, boxes: Columns, visible: bool) -> LegendItem:
    """Outline the ops on the critical path."""
    look = {"fill_color": None, "line_color": "black", "line_width": 2.0, "visible": visible}
    path = fig.quad(**BOX, source=ColumnDataSource(boxes), name="critical path", **look)
    return LegendItem(label="critical path", renderers=[path])
