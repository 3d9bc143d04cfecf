"""Data of a what-if page: the names of its numbers, and pictures of runs that share columns."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pipesim.base.ops import COMPUTE_KINDS
from pipesim.base.text import count_text
from pipesim.plot.gantt.chart import run_title
from pipesim.plot.page.data import Columns, Picture, picture_of
from pipesim.plot.page.window import Window
from pipesim.plot.style import IDLE_STYLES
from pipesim.run.run import Run

if TYPE_CHECKING:
    import pandas as pd

# Column of numbers in a sweep's table -> its name on the page and its unit.
NUMBERS = {
    "makespan_ms": ("makespan", "ms"),
    "step_ms": ("step, with its end", "ms"),
    "inflation": ("inflation (makespan / equal stages)", "ratio"),
    "bubble_fraction": ("bubble fraction", "share"),
    "closed_form_bubble_fraction": ("closed form", "share"),
    "excess_bubble_fraction": ("excess over closed form", "share"),
    "bubble_ratio": ("bubble ratio", "share"),
    "span_bubble": ("span bubble", "share"),
    "lower_bound_ms": ("lower bound", "ms"),
    "balance": ("balance", "ratio"),
    "filling": ("filling", "ratio"),
    "peak_memory_bytes": ("memory of fullest rank", "bytes"),
}


def shown_numbers(table: "pd.DataFrame") -> list[str]:
    """Return the columns of numbers that a page shows of a sweep's table.

    Those with a number at some point; not a memory that is 0, nor steps equal to the makespans.
    """
    found = [name for name in NUMBERS if np.isfinite(table[name]).any()]
    if table.step_ms.equals(table.makespan_ms):
        found.remove("step_ms")
    if not table.peak_memory_bytes.max() > 0:
        found.remove("peak_memory_bytes")
    return found


class PageFullError(Exception):
    """The charts of a sweep are more than a page can hold; the message says what is too much."""


def pictures_of(
    runs: Iterable[Run | None], errors: Sequence[str | None], most: int
) -> tuple[list[Picture | None], list[str]]:
    """Return the picture of every run, without the memory of ranks, and the costs' sources.

    Parameters
    ----------
    runs, errors
        The run of each row of a table, and the reason if it has none.
    most
        Largest number of ops in all.

    Raises
    ------
    PageFullError
        If the pictures would have more bars than `most`; the rest is then not run.
    ValueError
        If a row has neither run nor error, or there are not as many runs as rows.
    """
    pictures: list[Picture | None] = []
    sources: dict[str, None] = {}
    bars = 0
    for row, (run, error) in enumerate(zip(runs, errors, strict=True)):
        if error is not None:
            pictures.append(None)
            continue
        if run is None:
            raise ValueError(f"row {row} of the table has numbers, but there is no run of it")
        bars += len(run.schedule)
        if bars > most:
            points = count_text(len(errors), "point")
            whose = points if row + 1 == len(errors) else f"the first {row + 1} of {points}"
            raise PageFullError(f"{whose} have {bars:,} ops, and a page holds {most:,}")
        window = Window(0.0, run.makespan)
        pictures.append(picture_of(run, run_title(run), window, with_held=False))
        sources |= {run.pipeline.source: None}
    return pictures, [source for source in sources if source]


def blank_picture(pictures: Iterable[Picture | None]) -> Picture:
    """Return the empty picture with the rows, kinds of op and idle causes of all pictures.

    Each kind and cause has one box without a place, by which the legend knows its colour.
    """
    there = [picture for picture in pictures if picture is not None]
    return replace(
        there[0],
        title="",
        end=max(picture.end for picture in there),
        shares=[""] * max(len(picture.shares) for picture in there),
        darker=next((p.darker for p in there if p.darker is not None), None),
        bars=_blank([p.bars for p in there], [kind.name for kind in COMPUTE_KINDS]),
        idle=_blank([p.idle for p in there], IDLE_STYLES),
        limits={words: np.nan for picture in there for words in picture.limits},
        messages={name: column[:0] for name, column in there[0].messages.items()},
        path=_nowhere(there[0].path),
    )


def _blank(groups: Sequence[dict[str, Columns]], order: Iterable[str]) -> dict[str, Columns]:
    found: dict[str, Columns] = {}
    for group in groups:
        for name, columns in group.items():
            found.setdefault(name, _nowhere(columns))
    return {name: found[name] for name in order if name in found}


def _nowhere(boxes: Columns) -> Columns:
    """Return the columns of the first box, without a place in time."""
    first = {name: column[:1] for name, column in boxes.items()}
    return first | {side: np.full_like(first[side], np.nan) for side in ("left", "right")}


def boxes_of(picture: Picture) -> dict[str, Columns]:
    """Return the columns of a picture's boxes, by the name of the renderer that draws them."""
    boxes = {f"bars {kind}": columns for kind, columns in picture.bars.items()}
    boxes |= {f"idle {cause}": columns for cause, columns in picture.idle.items()}
    return boxes | {"critical path": picture.path, "messages": picture.messages}


def packed(pictures: Iterable[Picture | None]) -> tuple[list[Any], list[dict[str, Any] | None]]:
    """Return the distinct columns of pictures, and each picture with its columns by number.

    Runs of one schedule have their stages, micro-batches and colours in common. A picture is a
    `title`, `shares`, `limits`, and `boxes`: the numbers of the columns by name of the renderer
    that draws them.

    Examples
    --------
    >>> from pipesim import Pipeline, simulate
    >>> pipes = [Pipeline.from_costs([1, 1], [2, last]) for last in (2, 3)]
    >>> runs = [simulate(pipe, "1f1b", microbatches=2) for pipe in pipes]
    >>> pictures, _ = pictures_of(runs, [None, None], most=16)
    >>> columns, points = packed([*pictures, None])
    >>> one, other = (point["boxes"]["bars F"] for point in points[:2])
    >>> [name for name in one if one[name] != other[name]], points[2]
    (['left', 'right'], None)
    """
    columns: list[Any] = []
    known: dict[Any, int] = {}

    def number(column: Any) -> int:
        key = (column.dtype.str, column.shape, column.tobytes())
        if key not in known:
            known[key] = len(columns)
            columns.append(column)
        return known[key]

    points: list[dict[str, Any] | None] = []
    for picture in pictures:
        if picture is None:
            points.append(None)
            continue
        points.append(
            {
                "title": picture.title,
                "shares": picture.shares,
                "limits": picture.limits,
                "boxes": {
                    name: {of: number(column) for of, column in box.items()}
                    for name, box in boxes_of(picture).items()
                },
            }
        )
    return columns, points
