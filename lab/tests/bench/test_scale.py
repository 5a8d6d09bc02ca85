"""``lab/benchmarks/scale.py`` with few ranks: what it counts is what the formulas say, and nothing is missing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.distributed
@pytest.mark.usefixtures("networks")
def test_many_ranks_start_agree_tick_and_report(tmp_path: Path) -> None:
    out, ranks = tmp_path / "rows.jsonl", 16
    command = [sys.executable, "-m", "lab.benchmarks.scale", "--ranks", str(ranks), "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = map(json.loads, out.read_text().splitlines())
    assert row["rows"] == row["metrics_rows"] == ranks
    assert row["windows"] >= 1
    for name, way in row["ways"].items():  # gloo adds some headers to each message
        assert 0.99 * way["formula"] < way["sent"] < 1.03 * way["formula"] + 300 * way["messages"], name
    # Of 16 ranks, two on each host, each sends one of its four messages inside the host.
    assert row["tick"]["sent"] == pytest.approx(2 * 3 * row["tick"]["bytes"], rel=0.1)
    assert row["controller_memory"]["rss"] < 150e6
    again = subprocess.run(
        [*command[:3], "table", str(out)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert again.stdout == done.stdout
