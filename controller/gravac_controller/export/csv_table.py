"""A table as CSV; of windows it is the page's own CSV (``gravac_controller.views.columns``)."""

import csv
from pathlib import Path

from gravac_controller.export.tables import Table


def write_csv(table: Table, path: Path) -> int:
    """Write it; numbers are as short as they can be without losing a bit, unknown is empty. Returns the rows.

    Raises OSError, and what reading the rows does.
    """
    rows = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(column.name for column in table.columns)
        for row in table.rows:
            writer.writerow(row)
            rows += 1
    return rows
