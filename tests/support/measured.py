"""Runs a benchmark and checks what all of them promise."""

import json
import math
from typing import Any

import pytest
from click.testing import CliRunner

from gravac_controller.cli import main

FIELDS = {"name", "against", "n", "cf", "seconds", "baseline", "ratio", "quartiles"}


def bench(*words: str) -> dict[str, Any]:
    """The JSON object of a benchmark that must succeed, what all of them promise checked."""
    done = CliRunner().invoke(main, ["bench", *words, "--json"])
    assert done.exit_code == 0, done.output
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["benchmark"] == words[0]
    assert result["machine"]["date"].endswith("+00:00")
    assert result["machine"]["cores"] >= 1
    assert result["machine"]["torch"]
    assert result["rows"]
    for row in result["rows"]:
        assert set(row) >= FIELDS
        for name in ("seconds", "baseline", "ratio", *(("cpu_ratio",) if words[0] == "hook" else ())):
            assert 0 < row[name] < math.inf, row
        assert 0 < row["quartiles"][0] <= row["ratio"] <= row["quartiles"][1] < math.inf, row
        assert str(row["name"]) in done.stderr, "the table shows it"
    for limit in result.get("limits", ()):
        assert limit["copy_bytes_per_second"] == pytest.approx(8 * limit["n"] / limit["copy_seconds"])
        moved = 12 * limit["n"]
        assert limit["read_add_write_bytes_per_second"] == pytest.approx(
            moved / limit["read_add_write_seconds"]
        )
        assert "Limit of this machine" in done.stderr
    return result
