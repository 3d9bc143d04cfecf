"""Tables aligned for people."""

from collections.abc import Mapping, Sequence


def text_table(columns: Mapping[str, Sequence[str]], left: Sequence[str] = ()) -> str:
    """Return a table as text: a header, then one line a row; cells are right-aligned.

    Parameters
    ----------
    columns
        Header -> cells, all of the same length.
    left
        The columns to align at their left.

    Examples
    --------
    >>> print(text_table({"rank": ["0", "1"], "busy": ["8.0", "12.5"]}))
    rank  busy
       0   8.0
       1  12.5
    """
    aligned = []
    for header, cells in columns.items():
        width = max(len(header), *map(len, cells), 0)
        align = str.ljust if header in left else str.rjust
        aligned.append([align(cell, width) for cell in (header, *cells)])
    return "\n".join("  ".join(row).rstrip() for row in zip(*aligned, strict=True))


def span_text(values: Sequence[float]) -> str:
    """Return a set of numbers as text: the one number they all are, or `least to most`."""
    least, most = min(values), max(values)
    return f"{least:g}" if least == most else f"{least:g} to {most:g}"


def count_text(count: int, noun: str) -> str:
    """Return a count with its noun: 1 rank, 2 ranks, 2 micro-batches."""
    plural = "es" if noun.endswith("ch") else "s"
    return f"{count} {noun}{plural if count != 1 else ''}"
