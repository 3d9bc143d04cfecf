"""Layer costs in a CSV file: one row a layer, columns as `LayerProfile.from_frame` names them."""

import csv
from os import PathLike
from typing import TYPE_CHECKING

from pipesim.base.errors import ConfigError
from pipesim.base.files import replacing
from pipesim.pipeline.layer_table import ALIASES, AMOUNTS, SIZES
from pipesim.pipeline.layers import LayerProfile

if TYPE_CHECKING:
    import pandas as pd


def read_layers(path: str | PathLike[str]) -> LayerProfile:
    """Return the layer profile in a CSV file.

    Parameters
    ----------
    path
        A file with a header: `layer,forward_ms,backward_ms,param_bytes,stash_bytes,output_bytes`,
        the further columns of `LayerProfile`, or the aliases that `from_frame` names. In errors
        `F_ms[3]` is the cell of that column in the row of layer 3, counted from 0.

    Raises
    ------
    ConfigError
        If the file cannot be read or holds no such table; the message names the file.
    """
    import pandas as pd

    try:
        _check_rows(path)
        frame = pd.read_csv(
            path,
            skipinitialspace=True,
            encoding="utf-8-sig",
            converters={"layer": str},  # names are texts: 01 stays 01
        )
        frame = frame.rename(columns=str.strip)
        return LayerProfile.from_frame(frame.apply(_numbers))
    except (OSError, ValueError) as error:  # pandas' parser errors are ValueErrors
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        faults = [f"no layer costs: {line}" for line in str(reason).splitlines()]
        raise ConfigError(str(path), faults) from None


def write_layers(profile: LayerProfile, path: str | PathLike[str]) -> None:
    """Write a layer profile to a CSV file that `read_layers` reads, whole or not at all.

    Numbers in full precision. The profile's source is not in it.

    Parameters
    ----------
    profile
        Its labels are texts: `read_layers` refuses a label that is a number for every layer.
    path
        The file; its folder is made if it is missing.

    Raises
    ------
    OSError
        If the file cannot be written; whatever was there stays.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> path = Path(mkdtemp()) / "layers.csv"
    >>> write_layers(LayerProfile([0.1, 2], [0.2, 4], names=["embedding", "head"]), path)
    >>> print(path.read_text().rstrip())
    layer,forward_ms,backward_ms
    embedding,0.1,0.2
    head,2,4
    """
    columns = profile.columns()
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def _numbers(column: "pd.Series") -> "pd.Series":
    """Return a column with its texts of numbers as numbers, if it is one of amounts or sizes.

    pandas reads every cell of a column as text where one of them is no number.
    """
    import pandas as pd

    name = str(column.name)
    if ALIASES.get(name, name) not in (*AMOUNTS, *SIZES) or column.dtype.kind in "biuf":
        return column
    numbers = pd.to_numeric(column, errors="coerce")
    return numbers.astype(object).where(numbers.notna(), column)


def _check_rows(path: str | PathLike[str]) -> None:
    """Check that every row has as many fields as the header; pandas would shift or drop some."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file)
        columns = len(next(rows, []))
        for row in rows:
            if row and len(row) != columns:
                raise ValueError(f"line {rows.line_num}: {len(row)} fields for {columns} columns")
