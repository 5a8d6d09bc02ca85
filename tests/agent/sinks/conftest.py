"""What tests of sinks share."""

from pathlib import Path

import pytest

from gravac_agent.sinks import feed


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(feed, "PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(feed, "CLOSE_SECONDS", 60.0)  # clients start slowly on a busy machine
    monkeypatch.chdir(tmp_path)
