"""One run on a page: its Gantt chart, and below it what the ranks hold, on one time axis."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from bokeh.models import (
    ColumnDataSource,
    CustomJS,
    FixedTicker,
    Legend,
    LegendItem,
    LinearAxis,
    PlainText,
    Range1d,
    Title,
)
from bokeh.plotting import figure

from pipesim.plot.gantt.chart import BAR
from pipesim.plot.page.bars import draw_bars, label_bars, lightest
from pipesim.plot.page.data import Picture
from pipesim.plot.page.held import Held
from pipesim.plot.page.marks import (
    BOX,
    draw_end,
    draw_idle,
    draw_limit,
    draw_path,
    draw_saved,
    tell,
)
from pipesim.plot.style import KIND_COLOURS, KIND_WORDS

if TYPE_CHECKING:
    from bokeh.models import GlyphRenderer

TALLEST, LOWEST = 26, 13  # of a row [pixels]
ALL_ROWS = 520  # that a chart takes before its rows get lower [pixels]
LEFT, RIGHT = 62, 78  # for the names of ranks and the shares [pixels]


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
    idle = [draw_idle(fig, cause, boxes) for cause, boxes in picture.idle.items()]
    bars = {kind: draw_bars(fig, kind, columns) for kind, columns in picture.bars.items()}
    ends = [draw_end(fig, kind, boxes) for kind, boxes in picture.ends.items()]
    sent = ColumnDataSource({name: [] for name in ("x0", "y0", "x1", "y1")})
    fig.segment(
        "x0", "y0", "x1", "y1", source=sent, line_color="black", line_width=1.5, name="transfers"
    )
    limits = [draw_limit(fig, rows, words, at) for words, at in picture.limits.items()]
    draw_saved(fig, rows, picture.saved)
    path = draw_path(fig, picture.path, critical_path)
    label_bars(fig, bars)
    kinds = [
        LegendItem(label=KIND_WORDS[kind], renderers=[bar], index=lightest(picture.bars[kind]))
        for kind, bar in bars.items()
        if len(picture.bars[kind]["left"])  # else there is no colour to show
    ]
    if picture.darker is not None:
        kinds.append(LegendItem(label=picture.darker, renderers=[]))
    _add_legend(fig, [*kinds, *idle, *ends, *limits, path])
    return Chart(
        figure=fig,
        bars=list(bars.values()),
        messages=ColumnDataSource(picture.messages),
        sent=sent,
        held={unit: _draw_held(unit, held, time) for unit, held in picture.held.items()},
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


def _draw_held(unit: str, held: Held, time: Range1d) -> figure:
    """Return the figure of what every rank holds, a row a rank, all on one scale."""
    curves = held.curves
    fig = _new_figure(f"{held.words}; at the right the peak of the run", len(curves), time)
    _name_rows(fig, held.peaks)
    foot = [np.full(len(curve["held"]) - 1, rank + BAR / 2) for rank, curve in enumerate(curves)]
    held_by = [curve["held"][:-1] for curve in curves]
    bottom, value = np.concatenate(foot), np.concatenate(held_by)
    columns = {
        "left": np.concatenate([curve["time"][:-1] for curve in curves]),
        "right": np.concatenate([curve["time"][1:] for curve in curves]),
        "bottom": bottom.astype(np.float32),
        "top": (bottom - BAR * value / max(held.highest, 1)).astype(np.float32),
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
    tell(fig, step, ("held", "@held{0,0}"))
    return fig
