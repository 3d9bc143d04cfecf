"""Tables as .csv or .parquet files."""

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from pipesim.io.files import TABLE_ENDINGS, replacing

if TYPE_CHECKING:
    import pandas as pd


def write_table(table: "pd.DataFrame", path: str | PathLike[str]) -> None:
    """Write a table as .csv or .parquet, whole or not at all; numbers in full precision.

    Raises
    ------
    ValueError
        If the ending is neither.
    ImportError
        If Parquet's library is not installed: pip install 'pipesim[parquet]'.
    """
    ending = Path(path).suffix.lower()
    if ending not in TABLE_ENDINGS:
        raise ValueError(f"{path}: a table is written as {' or '.join(TABLE_ENDINGS)}")
    with replacing(path) as temporary:
        if ending == ".parquet":
            table.to_parquet(temporary, index=False)
        else:
            table.to_csv(temporary, index=False)
