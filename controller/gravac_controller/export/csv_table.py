"""A trace as CSV: one row a window, the columns of the page's own CSV (``gravac_controller.columns``)."""

import csv
from collections.abc import Iterable
from pathlib import Path

from gravac_controller.columns import NAMES, row_of
from gravac_controller.views import WindowView


def write_csv(windows: Iterable[WindowView], path: Path) -> int:
    """Write the table; numbers are as short as they can be without losing a bit, unknown is empty. Returns the rows.

    Raises OSError.
    """
    rows = 0
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(NAMES)
        for view in windows:
            writer.writerow(row_of(view))
            rows += 1
    return rows
