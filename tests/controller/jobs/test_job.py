"""Agents' requests: idempotent, ordered, journaled before they are answered."""

import errno
import json
import os
from collections.abc import Callable

import pytest

from gravac.protocol import End, Event, WindowAnswer
from gravac.replays.replay import check
from tests.support.in_process import JSON, InProcess, journal, post, register, run
from tools.harness.builders import Trainer, spec


def test_a_job_from_registration_to_end(app: InProcess) -> None:
    answer = register(app)
    assert (answer.next_window, answer.decision.window) == (0, -1)
    last = run(app, Trainer(), answer.decision, 12)
    assert last.window == 11
    view = app.client.get("/v1/jobs/job").json()
    assert view["state"] == "running"
    assert view["windows"] == 12
    assert view["steps"] == 600
    assert view["decision"] == json.loads(last.model_dump_json())
    assert view["latest"]["report"]["window"] == 11
    assert view["baseline_step_seconds"] == pytest.approx(0.5)
    assert view["totals"]["dense_bytes"] == sum(400_000 + n for n in range(12))
    assert [event["event"]["kind"] for event in view["events"]] == ["registered"]
    post(app, "/v1/jobs/job/end", End(incarnation="first", windows=12, steps=600, message="done"))
    assert app.client.get("/v1/jobs/job").json()["state"] == "ended"
    trace = check(app.services.settings.data_dir / "job" / "journal.jsonl")
    assert trace.ok, trace.differences
    assert trace.windows == 12


def test_the_end_of_a_resumed_job_counts_the_whole_job(app: InProcess) -> None:
    """The checkpoint was taken after three windows, and the first start went on for another."""
    decision = run(app, Trainer(), register(app).decision, 4)
    register(app, incarnation="second", first_window=3)
    run(app, Trainer(incarnation="second", window=4), decision, 4)
    post(app, "/v1/jobs/job/end", End(incarnation="second", windows=7, steps=350, message="finished"))
    last = json.loads((app.services.settings.data_dir / "job" / "journal.jsonl").read_text().splitlines()[-1])
    assert (last["kind"], last["body"]["windows"], last["body"]["steps"]) == ("end", 8, 400)
    assert check(app.services.settings.data_dir / "job" / "journal.jsonl").ok


def test_an_end_may_count_windows_that_never_arrived(app: InProcess) -> None:
    run(app, Trainer(), register(app).decision, 1)
    post(app, "/v1/jobs/job/end", End(incarnation="first", windows=3, steps=150, message="finished"))
    last = json.loads((app.services.settings.data_dir / "job" / "journal.jsonl").read_text().splitlines()[-1])
    assert (last["body"]["windows"], last["body"]["steps"]) == (3, 150)


def test_registering_again_changes_nothing(app: InProcess) -> None:
    first = register(app)
    assert register(app) == first
    assert journal(app) == ["job", "decision", "event"]


def test_a_window_sent_again_is_answered_again_and_counted_once(app: InProcess) -> None:
    decision = register(app).decision
    report = Trainer().report(decision)
    answers = {post(app, "/v1/jobs/job/windows", report) for _ in range(3)}
    assert len(answers) == 1
    assert journal(app).count("window") == 1
    assert app.client.get("/v1/jobs/job").json()["totals"]["windows"] == 1


def test_other_content_for_a_known_window_is_a_conflict(app: InProcess) -> None:
    decision = register(app).decision
    report = Trainer().report(decision)
    post(app, "/v1/jobs/job/windows", report)
    problem = json.loads(
        post(app, "/v1/jobs/job/windows", report.model_copy(update={"samples": 1}), status=409)
    )
    assert "window 0 was reported before with other content" in problem["detail"]
    assert journal(app).count("window") == 1


def test_a_gap_is_accepted_and_journaled_before_its_window(app: InProcess) -> None:
    decision = run(app, Trainer(), register(app).decision, 1)
    post(app, "/v1/jobs/job/windows", Trainer(window=3).report(decision))
    assert journal(app)[-3:] == ["event", "window", "decision"]
    events = app.client.get("/v1/jobs/job").json()["events"]
    assert events[-1]["event"] == {"kind": "gap", "window": 3, "message": "windows 1 to 2 never arrived"}
    skipped = Trainer(window=1).report(decision)
    post(app, "/v1/jobs/job/windows", skipped, status=409)
    assert check(app.services.settings.data_dir / "job" / "journal.jsonl").ok


def test_a_replaced_start_is_refused(app: InProcess) -> None:
    decision = register(app).decision
    old = Trainer()
    decision = run(app, old, decision, 2)
    again = register(app, incarnation="second")
    assert again.next_window == 2
    assert again.decision == decision
    ended = End(incarnation="first", windows=2, steps=100, message="")
    for path, record in (("windows", old.report(decision)), ("end", ended)):
        problem = json.loads(post(app, f"/v1/jobs/job/{path}", record, status=409))
        assert problem["reason"] == "superseded"
        assert "run 'second' registered later and took it over" in problem["detail"]
    never = old.report(decision, incarnation="never")
    problem = json.loads(post(app, "/v1/jobs/job/windows", never, status=409))
    assert problem["reason"] == "wrong_incarnation"
    run(app, Trainer(incarnation="second", window=2), decision, 1)
    assert check(app.services.settings.data_dir / "job" / "journal.jsonl").ok


def test_after_the_end_only_a_new_start_may_report(app: InProcess) -> None:
    decision = register(app).decision
    trainer = Trainer()
    last = trainer.report(decision)
    answer = post(app, "/v1/jobs/job/windows", last)
    end = End(incarnation="first", windows=1, steps=50, message="done")
    for _ in range(2):
        post(app, "/v1/jobs/job/end", end)
    assert journal(app).count("end") == 1
    assert post(app, "/v1/jobs/job/windows", last) == answer  # a late retry
    post(app, "/v1/jobs/job/windows", trainer.report(decision), status=409)
    post(app, "/v1/jobs", spec(), status=409)
    register(app, incarnation="second")
    assert app.client.get("/v1/jobs/job").json()["state"] == "running"
    run(app, Trainer(incarnation="second", window=1), decision, 1)


def test_the_same_event_twice_is_journaled_once(app: InProcess) -> None:
    register(app)
    event = Event(kind="nonfinite", window=0, message="rank 1 had an infinite gradient")
    first = post(app, "/v1/jobs/job/events", event)
    assert post(app, "/v1/jobs/job/events", event) == first
    assert journal(app) == ["job", "decision", "event", "event"]


def test_a_job_continues_at_another_controller_from_its_own_state(
    open_app: Callable[..., InProcess], tmp_path: object
) -> None:
    first = open_app()
    decision = run(first, trainer := Trainer(), register(first).decision, 6)
    state = register(first).policy_state
    first.close()
    path = first.services.settings.data_dir / "job" / "journal.jsonl"
    path.rename(path.with_suffix(".lost"))
    second = open_app()
    answer = register(second, policy_state=state, first_window=6)
    assert answer.decision == decision
    assert answer.next_window == 6
    run(second, trainer, decision, 2)
    assert check(path).ok


def test_a_full_disk_refuses_windows_and_then_continues(
    app: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    decision = run(app, trainer := Trainer(), register(app).decision, 3)
    lines = journal(app)
    report = trainer.report(decision)
    real_fsync = os.fsync

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    response = app.client.post("/v1/jobs/job/windows", content=report.model_dump_json(), headers=JSON)
    assert response.status_code == 503
    assert response.headers["content-type"] == "application/problem+json"
    assert "No space left on device" in response.json()["detail"]
    assert journal(app) == lines
    assert app.client.get("/v1/jobs/job").json()["windows"] == 3
    monkeypatch.setattr(os, "fsync", real_fsync)
    answer = post(app, "/v1/jobs/job/windows", report)
    assert WindowAnswer.model_validate_json(answer).decision.window == 3
    assert journal(app) == [*lines, "window", "decision"]
    assert app.client.get("/v1/jobs/job").json()["windows"] == 4
    assert check(app.services.settings.data_dir / "job" / "journal.jsonl").ok


def test_jobs_of_one_controller_are_independent(app: InProcess) -> None:
    for name in ("b", "a", "c"):
        run(app, Trainer(job=name), register(app, job=name).decision, 2)
    page = app.client.get("/v1/jobs?limit=2").json()
    assert [item["job"] for item in page["items"]] == ["a", "b"]
    rest = app.client.get(f"/v1/jobs?after={page['next']}").json()
    assert ([item["job"] for item in rest["items"]], rest["next"]) == (["c"], None)


def test_jobs_are_bounded(open_app: Callable[..., InProcess]) -> None:
    app = open_app(max_jobs=1)
    register(app)
    problem = json.loads(post(app, "/v1/jobs", spec("other"), status=429))
    assert "already holds 1 jobs" in problem["detail"]


def test_a_job_whose_first_write_failed_is_not_a_job(app: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _fd: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
        post(app, "/v1/jobs", spec(), status=503)
    assert app.client.get("/v1/jobs").json()["items"] == []
    run(app, Trainer(), register(app).decision, 1)
