"""Ranks are killed and their number changes under torchrun. CONTRIBUTING.md says how to kill twenty."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.distributed, pytest.mark.long, pytest.mark.timeout(620)]

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("part", "starts", "ranks"),
    [("kills", 3, None), ("worlds", 3, [2, 3, 2]), ("alone", 3, [2, 1, 2])],
    ids=["kills", "worlds", "alone"],
)
def test_nothing_is_lost_at_a_restart(
    part: str, starts: int, ranks: list[int] | None, tmp_path: Path
) -> None:
    summary = tmp_path / "summary.json"
    command = [
        sys.executable,
        "-m",
        "tools.elastic",
        part,
        "--kills",
        "2",
        "--seed",
        "5",
        "--json",
        str(summary),
    ]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path / "runs")],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    log = tmp_path / f"runs/{part}/torchrun.log"
    assert done.returncode == 0, done.stdout + done.stderr[-2000:] + log.read_text()[-6000:]
    found = json.loads(summary.read_text())[part]
    assert found["starts"] == starts
    assert found["off"] < 1e-6 < 1e-3 < found["smallest residual at a restart"]
    assert found["windows"] >= 8
    assert found.get("ranks") == ranks
