"""The table of the README is what the committed jobs say."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.long


def test_the_readme_has_the_rows_that_the_program_prints() -> None:
    command = [sys.executable, "-m", "lab.benchmarks.speedups"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert printed.count("\n") == 4
    assert printed in (ROOT / "README.md").read_text()
