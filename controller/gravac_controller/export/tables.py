"""A trace as a table, in CSV or Parquet: a row for each window."""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from gravac_controller.errors import needs
from gravac_controller.views.columns import COLUMNS, Value, row_of
from gravac_controller.views.models import WindowView

ROW_GROUP = 10_000
"""Rows in a row group of Parquet."""


@dataclass(frozen=True, slots=True)
class ExportColumn:
    """A column. ``kind``: the type of its values; None is always possible and means unknown."""

    name: str
    kind: Literal["integer", "number", "text"]


@dataclass(frozen=True, slots=True)
class Table:
    """Columns, and an iterator over rows of that length."""

    columns: tuple[ExportColumn, ...]
    rows: Iterable[tuple[Value, ...]]


def of_windows(views: Iterable[WindowView]) -> Table:
    """One row per window."""
    return Table(tuple(ExportColumn(column.name, column.kind) for column in COLUMNS), map(row_of, views))


def write_csv(table: Table, path: Path) -> int:
    """Write a table as CSV and return the number of rows.

    Numbers have as many digits as their exact value needs. Unknown values are empty. Raises OSError, and what reading
    the rows raises.
    """
    rows = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(column.name for column in table.columns)
        for row in table.rows:
            writer.writerow(row)
            rows += 1
    return rows


def write_parquet(table: Table, path: Path) -> int:
    """Write a table as Parquet (64-bit integers and floats, text) and return the number of rows.

    Unknown values are null. Raises MissingExtra without pyarrow, OSError, and what reading the rows raises.
    """
    with needs("parquet", "pyarrow"):
        import pyarrow
        from pyarrow.parquet import ParquetWriter
    types = {"integer": pyarrow.int64(), "number": pyarrow.float64(), "text": pyarrow.string()}
    schema = pyarrow.schema([(column.name, types[column.kind]) for column in table.columns])
    rows = 0
    with ParquetWriter(path, schema) as writer:
        rest = iter(table.rows)
        while some := list(islice(rest, ROW_GROUP)):
            values = zip(*some, strict=True)
            arrays = [
                pyarrow.array(value, type=types[column.kind])
                for column, value in zip(table.columns, values, strict=True)
            ]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))
            rows += len(some)
    return rows
