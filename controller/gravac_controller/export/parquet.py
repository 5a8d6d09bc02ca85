"""A table as Parquet, through pyarrow, which the extra ``gravac[parquet]`` brings."""

from itertools import islice
from pathlib import Path

from gravac_controller.export.tables import Table
from gravac_controller.extras import needs

AT_ONCE = 10_000
"""Rows in a row group."""


def write_parquet(table: Table, path: Path) -> int:
    """Write it: 64-bit integers and floats, text; unknown is null. Returns the rows.

    Raises MissingExtra without pyarrow, OSError, and what reading the rows does.
    """
    with needs("parquet", "pyarrow"):
        import pyarrow
        from pyarrow.parquet import ParquetWriter
    types = {"integer": pyarrow.int64(), "number": pyarrow.float64(), "text": pyarrow.string()}
    schema = pyarrow.schema([(column.name, types[column.kind]) for column in table.columns])
    rows = 0
    with ParquetWriter(path, schema) as writer:
        rest = iter(table.rows)
        while some := list(islice(rest, AT_ONCE)):
            values = zip(*some, strict=True)
            arrays = [
                pyarrow.array(each, type=types[column.kind])
                for column, each in zip(table.columns, values, strict=True)
            ]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))
            rows += len(some)
    return rows
