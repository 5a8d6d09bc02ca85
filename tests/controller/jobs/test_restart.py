"""Restart = replay: what the journal says is what the controller says."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gravac.protocol import SCHEMA, Decision, End, Event
from gravac.replays.replay import check
from gravac.traces import TraceWriter, read_trace
from tests.support.in_process import InProcess, journal, post, register, run
from tools.harness.builders import Trainer, spec

ROUTES = ("", "/windows?limit=1000", "/decisions?limit=1000", "/candidates", "/ranks", "/trace")


def everything(app: InProcess, job: str = "job") -> dict[str, Any]:
    answers = {route: app.client.get(f"/v1/jobs/{job}{route}") for route in ROUTES}
    assert {answer.status_code for answer in answers.values()} == {200}
    return {route: answer.text for route, answer in answers.items()} | {
        "list": app.client.get("/v1/jobs").text
    }


def test_a_restarted_controller_answers_as_before(open_app: Callable[..., InProcess]) -> None:
    app = open_app()
    for job in ("one", "two"):
        trainer = Trainer(job=job)
        decision = run(app, trainer, register(app, job=job).decision, 20)
        post(app, f"/v1/jobs/{job}/events", Event(kind="note", window=None, message="halfway"))
        again = register(app, job=job, incarnation="second")
        run(app, Trainer(job=job, incarnation="second", window=again.next_window), decision, 10)
    post(app, "/v1/jobs/two/end", End(incarnation="second", windows=30, steps=1500, message="done"))
    before = {job: everything(app, job) for job in ("one", "two")}
    state = register(app, job="one", incarnation="second").policy_state
    app.close()
    again = open_app()
    assert {job: everything(again, job) for job in ("one", "two")} == before
    assert register(again, job="one", incarnation="second").policy_state == state


def test_ended_jobs_are_not_read_until_somebody_asks(open_app: Callable[..., InProcess]) -> None:
    """A controller with 500 old jobs read all of their windows before it listened."""
    app = open_app(journal_part_bytes=65_536)
    for job in ("going", "one", "two"):
        run(app, Trainer(job=job), register(app, job=job).decision, 30)
    for job in ("one", "two"):
        post(app, f"/v1/jobs/{job}/end", End(incarnation="first", windows=30, steps=1500, message="done"))
    assert list((app.services.settings.data_dir / "one").glob("journal.000001.jsonl*")), "in several parts"
    listed = app.client.get("/v1/jobs").json()
    before = {job: everything(app, job) for job in ("going", "one", "two")}
    app.close()
    damaged = app.services.settings.data_dir / "two" / "journal.jsonl"
    damaged.write_bytes(damaged.read_bytes().replace(b'"samples":', b'"samples": ', 1))
    again = open_app()
    jobs = again.services.store.jobs
    assert {name: job.asleep for name, job in jobs.items()} == {"going": False, "one": True, "two": True}
    assert again.client.get("/v1/jobs").json() == listed, "by a glance"
    assert [job["job"] for job in again.client.get("/v1/jobs?state=ended").json()["items"]] == ["one", "two"]
    scraped = again.client.get("/metrics").text
    assert 'gravac_jobs{state="ended"} 2' in scraped
    assert 'job_name="one"' not in scraped
    assert jobs["one"].asleep
    assert jobs["two"].asleep
    assert everything(again, "one") == before["one"]
    assert not jobs["one"].asleep
    refused = again.client.get("/v1/jobs/two/windows")
    assert (refused.status_code, refused.json()["reason"]) == (409, "unreadable")
    listed_now = again.client.get("/v1/jobs").json()
    assert [job["job"] for job in listed_now["items"]] == ["going", "one"]
    assert [job["job"] for job in listed_now["unreadable"]] == ["two"]


def test_a_job_that_is_asleep_goes_on_with_its_trainer(open_app: Callable[..., InProcess]) -> None:
    app = open_app()
    for job in ("one", "two"):
        run(app, Trainer(job=job), register(app, job=job).decision, 5)
        post(app, f"/v1/jobs/{job}/end", End(incarnation="first", windows=5, steps=250, message="done"))
    app.close()
    again = open_app()
    answer = register(again, job="one", incarnation="second")
    assert answer.next_window == 5
    run(again, Trainer(job="one", incarnation="second", window=5), answer.decision, 3)
    assert again.client.get("/v1/jobs/one").json()["windows"] == 8
    assert [job["windows"] for job in again.client.get("/v1/jobs").json()["items"]] == [8, 5]
    assert again.services.store.jobs["two"].asleep
    assert check(again.services.settings.data_dir / "one" / "journal.jsonl").ok


def test_jobs_that_went_silent_are_read_after_the_start(
    open_app: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_app()
    run(app, Trainer(), register(app).decision, 5)
    before = everything(app)
    app.close()
    monkeypatch.setattr("gravac_controller.jobs.store.OLD_SECONDS", -60.0)
    store = open_app().services.store
    assert (store.jobs["job"].asleep, store.jobs["job"].state()) == (True, "stale")
    asyncio.run(store.wake_silent())
    assert not store.jobs["job"].asleep
    assert store.jobs["job"].live.counts.totals.windows == json.loads(before[""])["windows"] == 5


def test_a_torn_tail_is_cut_off_and_the_window_is_sent_again(open_app: Callable[..., InProcess]) -> None:
    app = open_app()
    trainer = Trainer()
    decision = run(app, trainer, register(app).decision, 5)
    app.close()
    path = app.services.settings.data_dir / "job" / "journal.jsonl"
    whole = path.read_bytes()
    report = trainer.report(decision)
    torn = whole + b'{"kind":"window","schema":1,"time":1.5,"body":{"job":"job","inc'
    path.write_bytes(torn)
    again = open_app()
    assert path.read_bytes() == whole
    assert register(again).next_window == 5
    run(again, trainer, decision, 0)
    post(again, "/v1/jobs/job/windows", report)
    assert check(path).ok


def test_a_window_without_its_decision_is_decided_at_the_start(open_app: Callable[..., InProcess]) -> None:
    """The same decision as without the crash: deciding is deterministic."""
    app = open_app()
    run(app, Trainer(), register(app).decision, 8)
    before = app.client.get("/v1/jobs/job").json()["decision"]
    app.close()
    path = app.services.settings.data_dir / "job" / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert b'"kind":"decision"' in lines[-1]
    path.write_bytes(b"".join(lines[:-1]))
    again = open_app()
    view = again.client.get("/v1/jobs/job").json()
    assert view["decision"] == before
    assert view["windows"] == 8
    assert journal(again)[-2:] == ["window", "decision"]
    assert check(path).ok


def altered(text: str) -> str:
    return text.replace('"samples":3200', '"samples":3201', 1)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (altered, "was altered after it was written"),
        (lambda text: "no json at all\n" + text, "line 1"),
        (lambda text: text.replace(f'"schema":{SCHEMA}', '"schema":99', 1), "line 1"),
        (lambda text: "".join(text.splitlines(keepends=True)[3:]), "line 1"),
    ],
)
def test_a_broken_journal_is_named_and_the_others_are_served(
    open_app: Callable[..., InProcess], damage: Callable[[str], str], words: str
) -> None:
    app = open_app()
    for job in ("bad", "good"):
        run(app, Trainer(job=job), register(app, job=job).decision, 3)
    app.close()
    path = app.services.settings.data_dir / "bad" / "journal.jsonl"
    broken = damage(path.read_text())
    path.write_text(broken)
    again = open_app()
    page = again.client.get("/v1/jobs").json()
    assert [item["job"] for item in page["items"]] == ["good"]
    assert [one["job"] for one in page["unreadable"]] == ["bad"]
    assert words in page["unreadable"][0]["reason"]
    response = again.client.get("/v1/jobs/bad")
    assert response.status_code == 409
    assert words in response.json()["detail"]
    run(again, Trainer(job="good", window=3), register(again, job="good").decision, 1)
    assert path.read_text() == broken


def test_a_journal_in_another_jobs_folder_is_refused(open_app: Callable[..., InProcess]) -> None:
    app = open_app()
    register(app, job="old")
    app.close()
    folder = app.services.settings.data_dir
    (folder / "old").rename(folder / "new")
    unreadable = open_app().client.get("/v1/jobs").json()["unreadable"]
    assert [one["job"] for one in unreadable] == ["new"]
    assert "'old'" in unreadable[0]["reason"]


def test_an_empty_journal_is_not_a_job(open_app: Callable[..., InProcess], tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "job"
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").touch()
    (tmp_path / "runs" / "not-a-job").mkdir()
    (tmp_path / "runs" / "a-file").touch()
    app = open_app()
    assert app.client.get("/v1/jobs").json() == {"items": [], "next": None, "unreadable": []}
    run(app, Trainer(), register(app).decision, 1)


def test_an_older_controllers_decisions_stay_in_force(open_app: Callable[..., InProcess]) -> None:
    """The journal is the truth even where this version would have decided otherwise."""
    app = open_app()
    decision = run(app, Trainer(), register(app).decision, 6)
    app.close()
    path = app.services.settings.data_dir / "job" / "journal.jsonl"
    lines = list(read_trace(path))
    path.unlink()
    last = lines[-1].record
    assert isinstance(last, Decision)
    with TraceWriter(path, lambda: 1.0) as writer:
        writer.append(*[line.record for line in lines[:-1]])
        writer.append(last.model_copy(update={"reason": "decided by an older rule", "epoch": last.epoch + 3}))
    view = open_app().client.get("/v1/jobs/job").json()
    assert view["decision"]["reason"] == "decided by an older rule"
    assert view["epoch"] == decision.epoch + 3


def test_serving_one_job_does_not_touch_the_others(open_app: Callable[..., InProcess]) -> None:
    app = open_app()
    for job in ("mine", "other"):
        register(app, job=job)
    app.close()
    one = open_app(job="mine")
    assert [job["job"] for job in one.client.get("/v1/jobs").json()["items"]] == ["mine"]
    problem = json.loads(post(one, "/v1/jobs", spec("other"), status=403))
    assert problem["detail"].startswith("send it to a controller without --job")
    assert "serves job 'mine' only" in problem["detail"]
