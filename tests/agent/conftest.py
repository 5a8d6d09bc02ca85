"""What tests of the agent share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist


@pytest.fixture
def real_pauses() -> None:
    """For tests that count requests."""


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Pauses between attempts do not grow, and are short where the test does not ask for ``real_pauses``."""
    if "real_pauses" not in request.fixturenames:
        monkeypatch.setattr("gravac_agent.reporting.outbox.FIRST_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr("gravac_agent.reporting.outbox.MAX_PAUSE_SECONDS", 1.0)


@pytest.fixture
def world_of_one(tmp_path: Path) -> Iterator[None]:
    """A process group with this process alone."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()
