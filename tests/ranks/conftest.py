"""``run_ranks("scenario", world, name=value…)`` and ``run_each("scenario", world, cases)``: see ``harness``."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from ranks import harness


@pytest.fixture(scope="session")
def nursery() -> Iterator[harness.Nursery]:
    with harness.Nursery() as nursery:
        yield nursery


@pytest.fixture
def run_ranks(nursery: harness.Nursery, tmp_path: Path) -> harness.RunRanks:
    return partial(nursery.run_ranks, tmp_path)


@pytest.fixture
def run_each(nursery: harness.Nursery, tmp_path: Path) -> harness.RunEach:
    return partial(nursery.run_each, tmp_path)
