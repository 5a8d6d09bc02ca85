"""A trace as a Parquet table, through pyarrow, which the extra ``gravac[parquet]`` brings."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from gravac_controller.columns import COLUMNS, row_of
from gravac_controller.extras import needs
from gravac_controller.views import WindowView

AT_ONCE = 10_000
"""Windows in a row group."""


def write_parquet(windows: Iterable[WindowView], path: Path) -> int:
    """Write the table: 64-bit integers and floats, text; unknown is null. Returns the rows.

    Raises MissingExtra without pyarrow, OSError.
    """
    with needs("parquet", "pyarrow"):
        import pyarrow
        from pyarrow.parquet import ParquetWriter
    types = {"integer": pyarrow.int64(), "number": pyarrow.float64(), "text": pyarrow.string()}
    schema = pyarrow.schema([(column.name, types[column.kind]) for column in COLUMNS])
    rows = 0
    with ParquetWriter(path, schema) as writer:
        rest = map(row_of, windows)
        while some := list(islice(rest, AT_ONCE)):
            values = zip(*some, strict=True)
            arrays = [
                pyarrow.array(each, type=types[column.kind])
                for column, each in zip(COLUMNS, values, strict=True)
            ]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))
            rows += len(some)
    return rows
