"""Aligned tables, and numbers with units as text."""

from collections.abc import Iterable, Mapping, Sequence


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
    """Return the range of numbers as text: `least to most`, or the number that all are."""
    least, most = min(values), max(values)
    return f"{least:g}" if least == most else f"{least:g} to {most:g}"


def size_text(size: float, digits: int = 4) -> str:
    """Return a number of bytes as text in the unit that suits it: 140 GB, 62.5 MB.

    Examples
    --------
    >>> size_text(140_000_000_000), size_text(999), size_text(12_345_678, digits=3)
    ('140 GB', '999 B', '12.3 MB')
    """
    unit, scale = size_unit(size)
    return f"{size / scale:.{digits}g} {unit}"


def size_unit(size: float) -> tuple[str, int]:
    """Return the unit that suits a number of bytes, and the bytes in that unit."""
    for unit, scale in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= scale:
            return unit, scale
    return "B", 1


def size_cells(sizes: Iterable[float], scale: int) -> list[str]:
    """Return numbers of bytes as cells of a column, in a unit of `scale` bytes.

    Examples
    --------
    >>> unit, scale = size_unit(12_345_678)
    >>> unit, size_cells([12_345_678, 500_000], scale)
    ('MB', ['12.35', '0.50'])
    """
    return [f"{size / scale:.2f}" for size in sizes]


def ms_text(time: float, digits: int = 5) -> str:
    """Return a time [ms] as text with its unit; long times without a power of ten.

    Examples
    --------
    >>> ms_text(2003.894), ms_text(57.0), ms_text(123_456.7), ms_text(281.14, digits=4)
    ('2003.9 ms', '57 ms', '123457 ms', '281.1 ms')
    """
    return f"{time:.0f} ms" if time >= 10**digits else f"{time:.{digits}g} ms"


def count_text(count: int, noun: str) -> str:
    """Return a count with its noun as text: 1 rank, 2 ranks, 2 micro-batches."""
    return f"{count} {noun if count == 1 else plural(noun)}"


def plural(noun: str) -> str:
    """Return the plural of a noun: ranks, micro-batches."""
    return f"{noun}es" if noun.endswith("ch") else f"{noun}s"
