"""What tests of the agent share."""

import pytest


@pytest.fixture
def real_pauses() -> None:
    """For tests that count requests."""


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Pauses between attempts do not grow, and are short where the test does not ask for ``real_pauses``."""
    if "real_pauses" not in request.fixturenames:
        monkeypatch.setattr("gravac_agent.reporting.outbox.FIRST_PAUSE_SECONDS", 0.1)
        monkeypatch.setattr("gravac_agent.reporting.http_reporter.FIRST_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr("gravac_agent.reporting.outbox.MAX_PAUSE_SECONDS", 1.0)
