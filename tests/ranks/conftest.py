"""``run_ranks("scenario", world, name=value…)`` and ``run_each("scenario", world, cases)``: see ``harness``.

A file with ``FRESH_RANKS = True`` gets new processes for each.
"""

from functools import partial
from pathlib import Path

import pytest

from tests.support.ranks import harness


@pytest.fixture
def run_ranks(tmp_path: Path, request: pytest.FixtureRequest) -> harness.RunRanks:
    return partial(harness.run_ranks, tmp_path, fresh=getattr(request.module, "FRESH_RANKS", False))


@pytest.fixture
def run_each(tmp_path: Path, request: pytest.FixtureRequest) -> harness.RunEach:
    return partial(harness.run_each, tmp_path, fresh=getattr(request.module, "FRESH_RANKS", False))
