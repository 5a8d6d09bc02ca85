"""A trace as a table, in CSV or Parquet: a row for each window, or for each step where the trace lists steps."""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from gravac.protocol import STEP_COLUMNS as DETAIL
from gravac.protocol import WindowReport
from gravac.traces import TraceError, read_trace
from gravac_controller.extras import needs
from gravac_controller.report.summary import journal_path
from gravac_controller.views.columns import COLUMNS, PHASES, Value, row_of
from gravac_controller.views.models import WindowView

WHOLE = ("epoch", "payload_bytes", "nonfinite_ranks", "failed_ranks")
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


def of_steps(path: Path, notes: list[str]) -> Table:
    """One row per step, of the windows that list their steps.

    Raises TraceError, also where no window lists its steps; so does reading the rows.
    """
    columns = [ExportColumn("step", "integer"), ExportColumn("window", "integer")]
    for name in DETAIL:
        unit = "_seconds" if name in PHASES else ""
        columns.append(ExportColumn(name + unit, "integer" if name in WHOLE else "number"))
    rows = _steps(path, notes)
    first = next(rows, None)
    if first is None:
        message = "no window lists its steps: train with the agent's setting step_rows (GRAVAC_STEP_ROWS=20)"
        raise TraceError(str(path), None, message)
    return Table(tuple(columns), chain([first], rows))


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


def _steps(path: Path, notes: list[str]) -> Iterator[tuple[Value, ...]]:
    trace = read_trace(journal_path(path))
    for line in trace:
        if isinstance(line.record, WindowReport) and line.record.steps is not None:
            detail = line.record.steps
            rows = zip(*(getattr(detail, name) for name in DETAIL), strict=True)
            for step, row in enumerate(rows, detail.first_step):
                yield (step, line.record.window, *row)
    notes += trace.notes
