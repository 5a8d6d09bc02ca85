"""Own time by rank and window, which shows which rank was slow when, in a table of bounded size.

When it is full, neighboring windows (or ranks) are merged. A cell holds the largest value of what it covers, so one
slow rank in one window is never averaged away.
"""

import statistics
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from gravac.protocol import RankRow, WindowReport
from gravac.signals import figures

MOST_ROWS, MOST_COLUMNS = 128, 240
LARGEST = 65_535
"""Percent; a cell is two bytes, so a job takes at most 61 kB."""


@dataclass(slots=True)
class HeatCells:
    """Windows first to last (inclusive). ``cells``: percent of the median rank's own time, by row; 0: unknown."""

    first: int
    last: int
    cells: "array[int]"


class RankHeat:
    """The table of one job. Rank r is in row r // ``ranks_per_row``."""

    def __init__(self, most_rows: int = MOST_ROWS, most_columns: int = MOST_COLUMNS) -> None:
        self.ranks_per_row, self.windows_per_column = 1, 1
        self.columns: list[HeatCells] = []
        self._most_rows, self._most_columns = most_rows, most_columns
        self._in_last = 0  # windows in the last column

    def add(self, report: WindowReport) -> None:
        """Add the ranks of a window. Call it in the order of windows."""
        found = shares(report.ranks)
        if not found:
            return
        self._widen(max(rank for rank, _ in found))
        cells = array("H", bytes(2 * (max(rank for rank, _ in found) // self.ranks_per_row + 1)))
        for rank, percent in found:
            row = rank // self.ranks_per_row
            cells[row] = max(cells[row], percent)
        new = HeatCells(report.window, report.window, cells)
        if self.columns and self._in_last < self.windows_per_column:
            self.columns[-1] = _joined(self.columns[-1], new)
            self._in_last += 1
            return
        if len(self.columns) == self._most_columns:
            pairs = zip(self.columns[::2], self.columns[1::2], strict=True)
            self.columns = [_joined(first, second) for first, second in pairs]
            self.windows_per_column *= 2
        self.columns.append(new)
        self._in_last = 1

    def _widen(self, rank: int) -> None:
        while rank // self.ranks_per_row >= self._most_rows:
            self.ranks_per_row *= 2
            for column in self.columns:
                halves = (column.cells[::2], column.cells[1::2])
                column.cells = _larger(*halves)


def shares(ranks: Iterable[RankRow]) -> list[tuple[int, int]]:
    """Return (rank, percent of the median rank's own time, at least 1) where the own time is known."""
    own = [(row.rank, seconds) for row in ranks if (seconds := figures.own_step_seconds(row))]
    if not own:
        return []
    middle = statistics.median(seconds for _, seconds in own)
    return [(rank, min(LARGEST, max(1, round(100 * seconds / middle)))) for rank, seconds in own]


def _joined(first: HeatCells, second: HeatCells) -> HeatCells:
    return HeatCells(first.first, second.last, _larger(first.cells, second.cells))


def _larger(left: "array[int]", right: "array[int]") -> "array[int]":
    """Return the larger value of each cell; where one is shorter, the other's."""
    longer, shorter = (left, right) if len(left) >= len(right) else (right, left)
    both = array("H", map(max, longer, shorter))
    both.extend(longer[len(shorter) :])
    return both
