"""``lab/benchmarks/fleet.py``: many ranks that do not exist, and a controller that does."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.distributed
def test_a_controller_takes_the_windows_of_a_fleet() -> None:
    words = ["--ranks", "16", "300", "--rows", "64", "--windows", "8"]
    command = [
        sys.executable,
        "lab/benchmarks/fleet.py",
        str(ROOT / "tests/traces/lm-topk-shaped.jsonl.gz"),
        *words,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    small, large = done.stdout.splitlines()
    assert small.startswith("16 ranks, 16 listed, 8 windows")
    assert large.startswith("300 ranks, 64 listed, 8 windows")
    sizes = [re.search(r"report ([0-9.]+) kB", line) for line in (small, large)]
    assert all(sizes)
    first, second = (float(found[1]) for found in sizes if found)
    assert second > 2 * first, "each rank that is listed has its row"
