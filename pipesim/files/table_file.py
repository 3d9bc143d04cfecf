"""Tables as .csv or .parquet files."""

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from pipesim.base.files import TABLE_ENDINGS, check_library, replacing

if TYPE_CHECKING:
    import pandas as pd


def check_table_file(path: str | PathLike[str]) -> None:
    """Check that a table can be written to a file of this name, before there is a table.

    Raises
    ------
    ValueError
        If its ending is neither .csv nor .parquet, or Parquet's library is not installed.
    """
    ending = Path(path).suffix.lower()
    if ending not in TABLE_ENDINGS:
        raise ValueError(f"{path}: a table is written as {' or '.join(TABLE_ENDINGS)}")
    check_library(str(path))


def write_table(table: "pd.DataFrame", path: str | PathLike[str]) -> None:
    """Write a table as .csv or .parquet, whole or not at all; numbers in full precision.

    Raises
    ------
    ValueError
        If the ending is neither, or Parquet's library is not installed.
    """
    check_table_file(path)
    with replacing(path) as temporary:
        if Path(path).suffix.lower() == ".parquet":
            table.to_parquet(temporary, index=False)
        else:
            table.to_csv(temporary, index=False)
