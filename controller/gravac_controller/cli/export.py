"""``gravac export``: the windows of a trace as a table, in CSV or Parquet."""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import click

from gravac.traces import TraceError
from gravac.wording import display_path, printable
from gravac_controller.cli.source import CannotUse, TraceFile, by_ending
from gravac_controller.errors import MissingExtra, needs
from gravac_controller.report.summary import empty_job, windows_of
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


WRITERS = {".csv": write_csv, ".parquet": write_parquet}


@click.command()
@click.argument("trace", type=TraceFile())
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The file to write, by its ending: .csv, or .parquet, which needs pip install 'gravac[parquet]'.",
)
def export(trace: Path, output: Path) -> None:
    """Export the windows of TRACE as a table for other tools: CSV or Parquet.

    It has one row per window (the columns of the page's CSV). Unknown values are empty.

    TRACE is the journal of a job, gzipped or not, its folder, or its name in GRAVAC_DATA_DIR, else in gravac-runs.

    \b
    Example:
      gravac export gravac-runs/my-job -o my-job.csv
    """
    write = by_ending(output, WRITERS, "--output")
    live, notes = empty_job(), list[str]()
    try:
        written = write(of_windows(view for view, _ in windows_of(trace, live, notes)), output)
    except (TraceError, MissingExtra, OSError) as error:
        raise CannotUse(printable(str(error))) from None
    click.echo(f"{display_path(output)}: {written} windows of {printable(live.spec_and_decision()[0].job)}")
    for note in notes:
        click.echo(f"note: {printable(note)}", err=True)
