"""``run_ranks("scenario", world, name=value…)`` and ``run_each("scenario", world, cases)``: see ``harness``."""

from functools import partial
from pathlib import Path

import pytest

from tests.support.ranks import harness


@pytest.fixture
def run_ranks(tmp_path: Path) -> harness.RunRanks:
    return partial(harness.run_ranks, tmp_path)


@pytest.fixture
def run_each(tmp_path: Path) -> harness.RunEach:
    return partial(harness.run_each, tmp_path)
