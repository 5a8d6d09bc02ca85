"""Rows of a tournament: errors name file and line, and one that is being written is left out."""

from pathlib import Path
from typing import Any

import pytest

from gravac_lab.tournament import RowError, read_rows
from lab.tests.support.tournament import row, written


def test_a_row_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, row("dense", [2.0, 1.0]), end='{"task":"lm","pl')
    assert [run.plan for run in read_rows([path])] == ["dense"]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([row("dense", [1.0]), {"task": "lm"}], "line 2: has no 'plan'"),
        ([row("dense", [1.0], ranks="four")], "line 1: is no row .*four"),
        ([row("dense", [1.0]), row("dense", [1.0])], "line 2: task='lm' plan='dense' .* was there before"),
        ([row("dense", [])], "line 1: is no row .*needs points"),
    ],
)
def test_errors_name_file_line_and_what_is_wrong(
    rows: list[dict[str, Any]], says: str, tmp_path: Path
) -> None:
    with pytest.raises(RowError, match=f"rows.jsonl, {says}"):
        read_rows([written(tmp_path, *rows)])
