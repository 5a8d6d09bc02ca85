"""Jobs that are silent: when that shows, and when their series leave."""

import pytest

from gravac.protocol import WindowReport
from gravac_controller.live import presence
from tests.controller.metrics.test_table import scrape
from tests.support.in_process import InProcess, post, register, run
from tools.harness.builders import Trainer


def test_fallback_and_silence_are_visible(app: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    decision = register(app).decision
    report: WindowReport = Trainer().report(decision)
    post(app, "/v1/jobs/job/windows", report.model_copy(update={"phase": "fallback", "seconds": 1.0}))
    assert scrape(app)["gravac_job_phase"][("fallback",)] == 1
    since_report(app, monkeypatch, 31)
    assert scrape(app)["gravac_job_state"] == {("running",): 0, ("stale",): 1, ("ended",): 0}
    assert app.client.get("/v1/jobs/job").json()["state"] == "stale"


def since_report(app: InProcess, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the clock to this long after the last report."""
    last = app.services.store.jobs["job"].live.presence.reported_time
    assert last is not None
    monkeypatch.setattr(presence, "unix_now", lambda: last + seconds)


def test_a_long_window_is_not_stale_too_soon(app: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    post(app, "/v1/jobs/job/windows", Trainer().report(register(app).decision))  # a window of 25 s
    since_report(app, monkeypatch, 124)
    assert app.client.get("/v1/jobs/job").json()["state"] == "running"
    since_report(app, monkeypatch, 126)
    assert app.client.get("/v1/jobs/job").json()["state"] == "stale"


def test_jobs_that_are_silent_for_a_day_leave(app: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    run(app, Trainer(), register(app).decision, 1)
    since_report(app, monkeypatch, 86_000)
    assert scrape(app)["gravac_steps_total"] == {(): 50}
    since_report(app, monkeypatch, 86_500)
    seen = scrape(app)
    assert "gravac_steps_total" not in seen
    assert seen["gravac_jobs"][("stale",)] == 1
    assert scrape(app, "/v1/jobs/job/metrics") == {}
    assert len(app.client.get("/v1/sd/prometheus").json()) == 1
