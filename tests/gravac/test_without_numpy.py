"""Neither torch nor gravac brings numpy, so every codec and aggregator works without it, in plain torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
sys.modules["numpy"] = None  # what imports it fails, as where it is not installed
from gravac import kernels
from gravac.aggregators import AGGREGATORS
from gravac.compressors import COMPRESSORS
from tests.support.maths.aggregator_checks import run
from tests.support.maths.members import ways

for member in (*sorted(COMPRESSORS), *sorted(AGGREGATORS), *ways("topk", "bf16")):
    one, two = run(2, member, 1)
    assert one[0][0].mean.equal(two[0][0].mean), member
print(kernels.active())
"""


@pytest.mark.distributed
def test_every_member_works_without_numpy() -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "GRAVAC_KERNELS": "reference",  # compiling takes numpy, and the file of compiled kernels is here already
        "PYTHONWARNINGS": "ignore:Failed to initialize NumPy",
    }
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split() == ["reference"]
