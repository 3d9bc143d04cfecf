"""One run on a page: its Gantt chart, and below it what the ranks hold, on one time axis."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from bokeh.models import (
    Arrow,
    ColumnDataSource,
    CustomJS,
    CustomJSHover,
    FixedTicker,
    HoverTool,
    Legend,
    LegendItem,
    LinearAxis,
    PlainText,
    Range1d,
    Title,
    VeeHead,
)
from bokeh.plotting import figure

from pipesim.plot.gantt_chart import BAR
from pipesim.plot.html_data import CLOSED_FORM, LOWER_BOUND, Columns, Picture
from pipesim.plot.style import (
    END_EDGE,
    END_STYLES,
    HATCH_COLOUR,
    IDLE_STYLES,
    KIND_COLOURS,
    KIND_WORDS,
    LABEL_COLOURS,
)
from pipesim.text_table import size_text

if TYPE_CHECKING:
    from bokeh.models import GlyphRenderer

TALLEST, LOWEST = 26, 13  # of a row [pixels]
ALL_ROWS = 520  # that a chart takes before its rows get lower [pixels]
LEFT, RIGHT = 62, 78  # for the names of ranks and the shares [pixels]
DIMMED = 0.12  # opacity of the bars of other micro-batches
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
TIME = "{0,0.000} ms"  # a number format of tooltips
FLIGHT = "micro-batches in flight on each rank, of all its stages"
LIMIT_DASHES = {CLOSED_FORM: "dashed", LOWER_BOUND: "dotted"}


@dataclass(frozen=True, slots=True)
class Chart:
    """The parts of one run's chart that the controls of a page reach.

    Parameters
    ----------
    figure
        The Gantt chart.
    bars
        A renderer a kind of op.
    messages, sent
        All transfers, and those that are drawn: of the micro-batch that is picked.
    held
        Figures of what the ranks hold, by unit.
    """

    figure: figure
    bars: list["GlyphRenderer"]
    messages: ColumnDataSource
    sent: ColumnDataSource
    held: dict[str, figure]


def draw_chart(picture: Picture, time: Range1d, critical_path: bool = False) -> Chart:
    """Return the chart of a run, on a time axis that charts may share.

    The critical path is shown at first, or only after a click on the legend.
    """
    rows = len(picture.shares)
    title = picture.title if picture.saved is None else f"{picture.title}; {picture.saved[2]}"
    fig = _new_figure(title, rows, time)
    _name_rows(fig, picture.shares)
    idle = [_draw_idle(fig, cause, boxes) for cause, boxes in picture.idle.items()]
    bars = {kind: _draw_bars(fig, kind, columns) for kind, columns in picture.bars.items()}
    ends = [_draw_end(fig, kind, boxes) for kind, boxes in picture.ends.items()]
    sent = ColumnDataSource({name: [] for name in ("x0", "y0", "x1", "y1")})
    fig.segment(
        "x0", "y0", "x1", "y1", source=sent, line_color="black", line_width=1.5, name="transfers"
    )
    limits = [_draw_limit(fig, rows, words, at) for words, at in picture.limits.items()]
    _draw_saved(fig, rows, picture.saved)
    path = _draw_path(fig, picture.path, critical_path)
    _add_labels(fig, bars)
    kinds = [
        LegendItem(label=KIND_WORDS[kind], renderers=[bar], index=_lightest(picture.bars[kind]))
        for kind, bar in bars.items()
    ]
    if picture.darker is not None:
        kinds.append(LegendItem(label=picture.darker, renderers=[]))
    _add_legend(fig, [*kinds, *idle, *ends, *limits, path])
    return Chart(
        figure=fig,
        bars=list(bars.values()),
        messages=ColumnDataSource(picture.messages),
        sent=sent,
        held={unit: _draw_held(unit, curves, time) for unit, curves in picture.held.items()},
    )


def _new_figure(title: str, rows: int, time: Range1d) -> figure:
    row = float(np.clip(ALL_ROWS / rows, LOWEST, TALLEST))
    fig = figure(
        frame_height=round(rows * row),
        sizing_mode="stretch_width",
        x_range=time,
        y_range=Range1d(rows - 0.5, -0.5),
        title=Title(text=PlainText(text=title), tags=[title], text_font_size="12px"),
        tools="xpan,xwheel_zoom,xbox_zoom,reset,save",
        active_scroll="xwheel_zoom",
        active_drag="xpan",
        output_backend="webgl",
        toolbar_location="above",
        min_border_left=LEFT,
        min_border_right=RIGHT,
        x_axis_label="time [ms]",
    )
    fig.toolbar.logo = None
    fig.toolbar.autohide = True
    fig.grid.visible = False
    fig.outline_line_color = None
    fit = CustomJS(args={"figure": fig}, code="pipesim.fit(figure)")
    fig.js_on_change("inner_width", fit)
    return fig


def _name_rows(fig: figure, at_the_right: Sequence[str]) -> None:
    """Name the ranks at the left, and write a text for each at the right."""
    ranks = list(range(len(at_the_right)))
    fig.yaxis.ticker = FixedTicker(ticks=ranks)
    fig.yaxis.major_label_overrides = {rank: f"rank {rank}" for rank in ranks}
    right = LinearAxis(ticker=FixedTicker(ticks=ranks))
    right.major_label_overrides = dict(enumerate(at_the_right))
    fig.add_layout(right, "right")
    for axis in fig.yaxis:
        axis.axis_line_color = axis.major_tick_line_color = axis.minor_tick_line_color = None


def _draw_idle(fig: figure, cause: str, boxes: Columns) -> LegendItem:
    """Shade the idle stretches of one cause."""
    face, hatch, words = IDLE_STYLES[cause]
    look = _look(face, hatch, HATCH_COLOUR) | {"line_color": None, "name": f"idle {cause}"}
    stretch = fig.quad(**BOX, source=ColumnDataSource(boxes), **look)
    _tell(fig, stretch, ("idle", words))
    return LegendItem(label=words, renderers=[stretch])


def _draw_bars(fig: figure, kind: str, columns: Columns) -> "GlyphRenderer":
    """Draw the ops of one kind."""
    bar = fig.quad(
        **BOX,
        source=ColumnDataSource(columns),
        name=f"bars {kind}",
        fill_color="colour",
        line_color="white",
        line_width=0.5,
        nonselection_fill_alpha=DIMMED,
        nonselection_line_alpha=DIMMED,
    )
    fig.add_tools(_hover_of(bar, kind))
    return bar


def _lightest(columns: Columns) -> int | None:
    """Return the number of a bar that has the colour of its kind, if there is one."""
    colour = columns["colour"]
    return int(colour.sum(axis=1).argmax()) if len(colour) else None


def _hover_of(bar: "GlyphRenderer", kind: str) -> HoverTool:
    source = {"source": bar.data_source, "kind": kind}
    op = CustomJSHover(args=source, code="return pipesim.nameOp(source, kind, special_vars.index)")
    wait = CustomJSHover(args=source, code="return pipesim.tellWait(source, special_vars.index)")
    return HoverTool(
        renderers=[bar],
        tooltips=[
            ("op", "@stage{custom}"),
            ("stage", "@stage on rank @rank"),
            ("micro-batch", "@microbatch"),
            ("ready", f"@ready{TIME}"),
            ("start", f"@left{TIME}"),
            ("end", f"@right{TIME}"),
            ("idle before", "@waited{custom}"),
        ],
        formatters={"@stage": op, "@waited": wait},
        attachment="vertical",
        visible=False,
    )


def _draw_end(fig: figure, kind: str, boxes: Columns) -> LegendItem:
    """Draw what comes at the end of a step."""
    face, hatch, words = END_STYLES[kind]
    look = _look(face, hatch, END_EDGE) | {"line_color": END_EDGE, "name": f"end {kind}"}
    end = fig.quad(**BOX, source=ColumnDataSource(boxes), **look)
    _tell(fig, end, ("end of step", words))
    return LegendItem(label=words, renderers=[end])


def _tell(fig: figure, box: "GlyphRenderer", what: tuple[str, str]) -> None:
    """Have a box say, when one hovers over it, what it is, and from when to when."""
    told = [what, ("from", f"@left{TIME}"), ("to", f"@right{TIME}")]
    fig.add_tools(HoverTool(renderers=[box], tooltips=told, visible=False))


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


def _draw_limit(fig: figure, rows: int, words: str, time: float) -> LegendItem:
    """Draw a line at a makespan that the run is measured against."""
    source = ColumnDataSource({"x": [time, time], "y": [-0.5, rows - 0.5]})
    dash = LIMIT_DASHES[words]
    line = fig.line(
        "x", "y", source=source, line_color="black", line_dash=dash, line_width=1.5, name=words
    )
    return LegendItem(label=f"{words}: {time:.5g} ms", renderers=[line])


def _draw_saved(fig: figure, rows: int, saved: tuple[float, float, str] | None) -> None:
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


def _draw_path(fig: figure, boxes: Columns, visible: bool) -> LegendItem:
    """Outline the ops on the critical path."""
    look = {"fill_color": None, "line_color": "black", "line_width": 2.0, "visible": visible}
    path = fig.quad(**BOX, source=ColumnDataSource(boxes), name="critical path", **look)
    return LegendItem(label="critical path", renderers=[path])


def _add_labels(fig: figure, bars: Mapping[str, "GlyphRenderer"]) -> None:
    """Write the micro-batch into each bar that is wide enough, as far as one has zoomed."""
    labels = ColumnDataSource({"x": [], "y": [], "text": [], "colour": []})
    fig.text(
        "x",
        "y",
        "text",
        source=labels,
        text_color="colour",
        text_font_size="10px",
        text_align="center",
        text_baseline="middle",
        name="labels",
    )
    write = CustomJS(
        args={
            "figure": fig,
            "bars": list(bars.values()),
            "colours": [LABEL_COLOURS[kind] for kind in bars],
            "labels": labels,
        },
        code="pipesim.label(figure, bars, colours, labels)",
    )
    for name in ("start", "end"):
        fig.x_range.js_on_change(name, write)
    for name in ("inner_width", "inner_height"):
        fig.js_on_change(name, write)
    for bar in bars.values():
        bar.js_on_change("visible", write)
        bar.data_source.js_on_change("data", write)
        bar.data_source.selected.js_on_change("indices", write)


def _add_legend(fig: figure, items: list[LegendItem]) -> None:
    legend = Legend(
        items=items,
        click_policy="hide",
        ncols=1,  # until the page has measured what there is room for
        orientation="horizontal",
        location="center",
        label_text_font_size="11px",
        border_line_color=None,
        padding=2,
        spacing=8,
    )
    fig.add_layout(legend, "below")


def _draw_held(unit: str, curves: Sequence[Columns], time: Range1d) -> figure:
    """Return the figure of what every rank holds, a row a rank, all on one scale."""
    peaks = [float(curve["held"].max()) for curve in curves]
    highest = max(max(peaks), 1.0)
    words = FLIGHT if unit == "micro-batches" else "bytes held on each rank"
    fig = _new_figure(f"{words}; at the right the peak", len(curves), time)
    show = size_text if unit == "bytes" else "{:.0f}".format
    _name_rows(fig, [show(peak) for peak in peaks])
    foot = [np.full(len(curve["held"]) - 1, rank + BAR / 2) for rank, curve in enumerate(curves)]
    held_by = [curve["held"][:-1] for curve in curves]
    bottom, value = np.concatenate(foot), np.concatenate(held_by)
    columns = {
        "left": np.concatenate([curve["time"][:-1] for curve in curves]),
        "right": np.concatenate([curve["time"][1:] for curve in curves]),
        "bottom": bottom.astype(np.float32),
        "top": (bottom - BAR * value / highest).astype(np.float32),
        "held": value,
    }
    step = fig.quad(
        **BOX,
        source=ColumnDataSource(columns),
        fill_color=KIND_COLOURS["F"],
        line_color=KIND_COLOURS["F"],
        line_width=0.5,
        name=f"held {unit}",
    )
    _tell(fig, step, ("held", "@held{0,0}"))
    return fig
