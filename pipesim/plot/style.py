"""Colours, hatches and figure sizes that all pictures share.

The colours are told apart with the common kinds of colour blindness, and by their lightness in
black and white: forwards are light, weight gradients darker, then recomputing, input gradients,
and whole backwards the darkest. The later chunks of a rank are darker, but never as dark as the
next kind. Causes of idle time differ by hatch.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from pipesim.base.files import FIGURE_ENDINGS, replacing
from pipesim.run.idle import CAUSES

KIND_COLOURS = {"F": "#a6d3f0", "B": "#0f5e9c", "I": "#b5561f", "W": "#c9a227", "R": "#4a9a8a"}
LAST_CHUNK = {"F": 0.86, "B": 0.65, "I": 0.86, "W": 0.86, "R": 0.92}  # how light, the first: 1
LABEL_COLOURS = {"F": "black", "B": "white", "I": "white", "W": "black", "R": "black"}
KIND_WORDS = {
    "F": "forward (F)",
    "B": "backward (B)",
    "I": "input gradient (I)",
    "W": "weight gradient (W)",
    "R": "recompute (R)",
}
IDLE_LOOKS: dict[str, tuple[str, str | None]] = {  # key of a cause -> face, hatch
    "fill": ("#f2f2f2", None),
    "wait_forward": ("white", "...."),
    "wait_gradient": ("white", "////"),
    "blocked": ("#e6e6e6", "\\\\\\\\"),
    "queue_full": ("white", "xxxx"),
    "drain": ("white", "----"),
}
# Key of a cause -> face, hatch, words; in the order of the causes.
IDLE_STYLES = {cause.key: (*IDLE_LOOKS[cause.key], cause.words) for cause in CAUSES}
MEMORY_STYLES = {  # what it is -> face, words; from below, the darkest first
    "params": ("#0b3d66", "parameters"),
    "grads": ("#b5561f", "gradients"),
    "optimizer": ("#d9b23a", "optimizer"),
    "activations": ("#d9edf9", "activations"),
}
HATCH_COLOUR = "#b0b0b0"
END_STYLES = {  # kind -> face, hatch, words
    "REDUCE": ("#d9c2ea", "||||", "gradients reduced"),
    "TIED": ("#d9c2ea", "++++", "tied embedding reduced"),
    "OPTIMIZER": ("#3d3d3d", None, "optimizer"),
    "GATHER": ("#d9c2ea", "oo", "parameters gathered"),
}
END_EDGE = "#5b3a6b"
# Curves differ by marker without colour, too; after the last they go on with other lines.
CURVES = (
    ("#0f5e9c", "o"),
    ("#d9822b", "s"),
    ("#2f8f5b", "^"),
    ("#8a4f9e", "D"),
    ("#5c5c5c", "v"),
    ("#c2457a", "P"),
)
LINES = ("-", "-.", ":")


def new_axes(width: float, height: float) -> Axes:
    """Return the Axes of a new figure of this size [inches], with a tight layout."""
    import matplotlib.pyplot as plt

    _, ax = plt.subplots(figsize=(width, height), layout="constrained")
    return ax


def lay_out(ax: Axes) -> None:
    """Give the Axes the size that they will have, if the layout of their figure is automatic."""
    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure)
    engine = figure.get_layout_engine()
    if engine is not None:
        with missing_glyphs_ignored():
            engine.execute(figure)


@contextmanager
def missing_glyphs_ignored() -> Iterator[None]:
    """Let texts in a script that the font lacks pass without a warning for each letter."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        yield


def save(ax: Axes, path: str | PathLike[str], dpi: int = 150) -> None:
    """Write the figure of an Axes to a .png, .svg or .pdf file, whole or not at all.

    The same figure gives the same bytes: no date is written. Text in .svg and .pdf stays text. A
    .png has at most 256 colours, which looks the same and takes a third of the space.

    Raises
    ------
    ValueError
        If the ending is none of these.
    """
    ending = Path(path).suffix.lower()
    if ending not in FIGURE_ENDINGS:
        raise ValueError(f"{path}: a figure is written as {', '.join(FIGURE_ENDINGS)}")
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure)
    # Letters stay letters, not shapes: as text in an SVG, as a TrueType font inside a PDF.
    fonts = mpl.rc_context({"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "pipesim"})
    with replacing(path) as temporary, fonts, missing_glyphs_ignored():
        figure.savefig(temporary, dpi=dpi, metadata=dates.get(ending))
        if ending == ".png":
            _reduce_colours(temporary)


def _reduce_colours(path: Path) -> None:
    """Write a .png anew with a palette; of this kind of palette no colour is far off."""
    with Image.open(path) as picture:
        coloured = picture.convert("RGB")
    palette = Image.Quantize.MAXCOVERAGE
    coloured.quantize(method=palette, dither=Image.Dither.NONE).save(path, optimize=True)
