"""The chaos test in short: a few events of either kind. CONTRIBUTING.md says how to run hundreds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.distributed, pytest.mark.long]

ROOT = Path(__file__).parents[2]


def test_nothing_is_lost_doubled_or_leaked(tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    command = [sys.executable, "-m", "tools.chaos", "--events", "4", "--per-episode", "2", "--seed", "9"]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path / "kept"), "--json", str(summary)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    found = json.loads(summary.read_text())
    assert found["events"] >= 4
    assert found["windows_journaled"] > 0
