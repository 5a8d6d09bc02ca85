"""The table of own time by rank: bounded, and slow ranks are never averaged away."""

import itertools
import time

import pytest

from gravac.protocol import PhaseSeconds, RankRow, WindowReport
from gravac_controller.views.heat import MOST_COLUMNS, MOST_ROWS, RankHeat
from tools.harness.cluster import window_report


def row(rank: int, own: float, steps: int = 10) -> RankRow:
    """Return a rank with ``own`` seconds of own work a step, and ten times that waiting for the network."""
    phases = PhaseSeconds(
        data_wait=0.0, compute=own * steps, compress=0.0, communicate=10 * own * steps, decompress=0.0
    )
    return RankRow(
        rank=rank,
        steps=steps,
        step_seconds=11 * own * steps,
        phases=phases,
        samples=0,
        nonfinite_steps=0,
        failed_steps=0,
        memory_bytes=0,
    )


def window(number: int, *own: float) -> WindowReport:
    return window_report(window=number, ranks=tuple(row(rank, seconds) for rank, seconds in enumerate(own)))


def cells(heat: RankHeat) -> list[list[int]]:
    return [list(column.cells) for column in heat.columns]


def test_own_time_against_the_median_rank() -> None:
    heat = RankHeat()
    heat.add(window(0, 0.1, 0.1, 0.15))
    assert cells(heat) == [[100, 100, 150]]


def test_full_columns_are_merged_and_hold_the_largest() -> None:
    heat = RankHeat(most_columns=4)
    for number in range(9):
        heat.add(window(number, 0.1, 0.1, 0.3 if number == 2 else 0.1))
    assert heat.windows_per_column == 4
    assert [(column.first, column.last) for column in heat.columns] == [(0, 3), (4, 7), (8, 8)]
    assert cells(heat) == [[100, 100, 300], [100, 100, 100], [100, 100, 100]]


def test_many_ranks_share_rows_and_the_slowest_shows() -> None:
    heat = RankHeat(most_rows=4)
    heat.add(window(0, *[0.1] * 4))
    heat.add(window(1, *[0.1] * 9, 0.25))
    assert heat.ranks_per_row == 4
    assert cells(heat) == [[100], [100, 100, 250]]


def test_a_lost_window_is_a_gap_between_columns() -> None:
    heat = RankHeat()
    for number in (0, 1, 5):
        heat.add(window(number, 0.1, 0.1))
    assert [(column.first, column.last) for column in heat.columns] == [(0, 0), (1, 1), (5, 5)]


def test_ranks_without_time_are_unknown() -> None:
    heat = RankHeat()
    heat.add(window_report(window=0, ranks=(row(0, 0.1), row(1, 0.0), row(2, 0.1, steps=0))))
    assert cells(heat) == [[100]]
    heat.add(window_report(window=1, ranks=()))
    assert len(heat.columns) == 1


@pytest.mark.parametrize("ranks", [2, 1024])
def test_size_is_bounded(ranks: int) -> None:
    heat, one = RankHeat(), window(0, *[0.1] * ranks)
    for number in range(600):
        heat.add(one.model_copy(update={"window": number}))
    assert len(heat.columns) <= MOST_COLUMNS
    assert all(len(column.cells) <= MOST_ROWS for column in heat.columns)
    ends = [(column.first, column.last) for column in heat.columns]
    assert (ends[0][0], ends[-1][1]) == (0, 599)
    assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(ends))


def test_a_wide_window_costs_little() -> None:
    """It is added on the event loop that serves all requests."""
    heat, one = RankHeat(), window(0, *[0.1] * 1024)
    began = time.process_time()
    for number in range(10):
        heat.add(one.model_copy(update={"window": number}))
    assert (time.process_time() - began) / 10 < 0.02
