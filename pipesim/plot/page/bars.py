"""The ops on a page's chart: bars, their tooltips, and the micro-batches in them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from bokeh.models import ColumnDataSource, CustomJS, CustomJSHover, CustomJSTransform, HoverTool
from bokeh.plotting import figure

from pipesim.plot.page.data import Columns
from pipesim.plot.page.marks import BOX, time_formatter
from pipesim.plot.style import LABEL_COLOURS
from pipesim.run.idle import CAUSES

if TYPE_CHECKING:
    from bokeh.models import GlyphRenderer

DIMMED = 0.12  # opacity of the bars of other micro-batches


def draw_bars(fig: figure, kind: str, columns: Columns) -> "GlyphRenderer":
    """Draw the ops of one kind."""
    source = ColumnDataSource(columns)
    strength = CustomJSTransform(
        args={"source": source, "scale": np.inf},
        v_func="return pipesim.strengths(source.data, scale)",
        tags=[np.inf],
    )
    bar = fig.quad(
        **BOX,
        source=source,
        name=f"bars {kind}",
        fill_color="colour",
        fill_alpha={"field": "left", "transform": strength},
        selection_fill_alpha=1.0,
        line_color="white",
        line_width=0.5,
        nonselection_fill_alpha=DIMMED,
        nonselection_line_alpha=DIMMED,
    )
    fig.add_tools(_hover_of(bar, kind))
    return bar


def lightest(columns: Columns) -> int | None:
    """Return the number of a bar that has the colour of its kind, if there is one."""
    colour = columns["colour"]
    return int(colour.sum(axis=1).argmax()) if len(colour) else None


def _hover_of(bar: "GlyphRenderer", kind: str) -> HoverTool:
    op = CustomJSHover(
        args={"source": bar.data_source, "kind": kind},
        code="return pipesim.nameOp(source, kind, special_vars.index)",
    )
    wait = CustomJSHover(
        args={
            "source": bar.data_source,
            "causes": {cause.key: cause.words for cause in CAUSES},
            "inputs": [cause.key for cause in CAUSES if cause.ends_with_input],
        },
        code="return pipesim.tellWait(source, causes, inputs, special_vars.index)",
    )
    return HoverTool(
        renderers=[bar],
        tooltips=[
            ("op", "@stage{custom}"),
            ("stage", "@stage on rank @rank"),
            ("micro-batch", "@microbatch"),
            ("ready", "@ready{custom}"),
            ("start", "@left{custom}"),
            ("end", "@right{custom}"),
            ("idle before", "@waited{custom}"),
        ],
        formatters={"@stage": op, "@waited": wait}
        | {place: time_formatter() for place in ("@ready", "@left", "@right")},
        attachment="vertical",
        visible=False,
    )


def label_bars(fig: figure, bars: Mapping[str, "GlyphRenderer"]) -> None:
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
