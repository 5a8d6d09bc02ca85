"""A journal that is deleted, replaced or changed while a controller runs: acknowledged windows stay on disk."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gravac.protocol import End, JobAnswer, WindowReport
from gravac.replays.replay import check
from gravac.traces import parts, read_trace
from tests.support.in_process import JSON, InProcess, journal, post, register, run, silence
from tools.harness.builders import Trainer, spec
from tools.harness.controller import Controller


@pytest.fixture
def path(app: InProcess) -> Path:
    """Return the journal of ``job``, which does not exist yet."""
    return app.services.settings.data_dir / "job" / parts.ACTIVE


def on_disk(path: Path) -> list[int]:
    return [line.record.window for line in read_trace(path) if isinstance(line.record, WindowReport)]


def refused(app: InProcess, report: WindowReport) -> str:
    response = app.client.post("/v1/jobs/job/windows", content=report.model_dump_json(), headers=JSON)
    assert (response.status_code, response.json()["reason"]) == (503, "journal"), response.text
    assert response.headers["retry-after"]
    return str(response.json()["detail"])


@pytest.mark.parametrize("how", ["file", "folder", "moved away"])
def test_a_deleted_journal_is_written_back_completely(
    app: InProcess, path: Path, how: str, tmp_path: Path
) -> None:
    decision = run(app, trainer := Trainer(), register(app).decision, 5)
    before = path.read_bytes()
    if how == "file":
        path.unlink()
    elif how == "folder":
        shutil.rmtree(path.parent)
    else:
        path.rename(tmp_path / "away.jsonl")
    decision = run(app, trainer, decision, 1)
    assert on_disk(path) == list(range(6))
    assert path.read_bytes().startswith(before)
    assert path.stat().st_mode & 0o777 == 0o600
    notes = [event["event"]["message"] for event in app.client.get("/v1/jobs/job").json()["events"]]
    assert "was deleted while it was being written" in notes[-1]
    run(app, trainer, decision, 3)
    assert check(path).ok
    assert journal(app).count("event") == 2, "said once"
    if how == "moved away":
        assert (tmp_path / "away.jsonl").read_bytes() == before


def test_a_replaced_journal_accepts_no_window_until_it_is_moved_away(app: InProcess, path: Path) -> None:
    decision = run(app, trainer := Trainer(), register(app).decision, 5)
    other = b"what somebody put there\n"
    draft = path.with_name("draft")
    draft.write_bytes(other)
    os.replace(draft, path)
    report = trainer.report(decision)
    for _ in range(3):
        detail = refused(app, report)
        assert f"{path}: another file took its place; move that one away" in detail
    assert path.read_bytes() == other, "it is not ours to touch"
    assert app.client.get("/v1/jobs/job").json()["windows"] == 5
    path.rename(path.with_name("moved"))
    post(app, "/v1/jobs/job/windows", report)
    assert on_disk(path) == list(range(6))
    assert check(path).ok


@pytest.mark.parametrize("how", ["truncated", "emptied", "appended"])
def test_a_changed_journal_accepts_no_window(
    app: InProcess, path: Path, how: str, open_app: Callable[..., InProcess]
) -> None:
    decision = run(app, trainer := Trainer(), register(app).decision, 5)
    size = path.stat().st_size
    if how == "appended":
        with path.open("ab") as file:
            file.write(b"{}")
    else:
        os.truncate(path, size // 2 if how == "truncated" else 0)
    left = path.read_bytes()
    report = trainer.report(decision)
    for _ in range(2):
        detail = refused(app, report)
        assert f"another program changed it, from {size} to {len(left)} bytes" in detail
        assert "restart" in detail
    assert path.read_bytes() == left
    app.close()
    again = open_app()
    answer = register(again, first_window=5)
    assert answer.next_window == 5
    run(again, Trainer(window=5), answer.decision, 2)
    assert on_disk(path)[-2:] == [5, 6]


def test_a_new_part_does_not_move_the_file_of_another_program(
    app: InProcess, open_app: Callable[..., InProcess]
) -> None:
    """The journal is replaced between a window and the new part that its size asks for."""
    app.close()
    app = open_app(journal_part_bytes=1 << 16)
    path = app.services.settings.data_dir / "job" / parts.ACTIVE
    decision = run(app, trainer := Trainer(), register(app).decision, 2)
    held = app.services.store.jobs["job"].journal
    path.rename(path.with_name("ours"))
    path.write_bytes(b"theirs\n")
    fold = app.services.store.jobs["job"]._fold
    assert fold is not None
    assert held.begin_part(spec(), decision, "") == ()
    assert path.read_bytes() == b"theirs\n"
    assert parts.full_parts(path.parent) == {}
    path.unlink()
    run(app, trainer, decision, 20)
    assert check(path).ok


def test_an_ended_job_whose_journal_was_deleted_starts_over(app: InProcess, path: Path) -> None:
    """It is closed then, so the job is lost with the journal."""
    decision = run(app, Trainer(), register(app).decision, 3)
    post(app, "/v1/jobs/job/end", End(incarnation="first", windows=3, steps=150, message="done"))
    shutil.rmtree(path.parent)
    post(app, "/v1/jobs", spec(incarnation="second"), status=503)
    assert [item["job"] for item in app.client.get("/v1/jobs").json()["items"]] == ["job"]
    answer = register(app, incarnation="second")
    assert answer.next_window == 0
    assert app.client.get("/v1/jobs").json()["items"][0]["windows"] == 0
    run(app, Trainer(incarnation="second"), decision, 2)
    assert on_disk(path) == [0, 1]
    assert check(path).ok


def test_a_controller_of_one_unreadable_job_says_why(
    start: Callable[..., Controller], tmp_path: Path
) -> None:
    """An agent's own controller must not look as if it did not answer."""
    first = start("--job", "mine")
    answer = first.ask("POST", "/v1/jobs", spec("mine"))
    decision = JobAnswer.model_validate_json(answer.body).decision
    first.ask("POST", "/v1/jobs/mine/windows", Trainer("mine").report(decision))
    first.stop()
    path = tmp_path / "runs" / "mine" / parts.ACTIVE
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    second = start("--job", "mine")
    for method, where, body in (
        ("POST", "/v1/jobs", spec("mine")),
        ("POST", "/v1/jobs/mine/windows", Trainer("mine", window=1).report(decision)),
        ("GET", "/v1/jobs/mine", None),
    ):
        problem = second.ask(method, where, body)
        assert (problem.status, problem.json["reason"]) == (409, "unreadable"), problem
        assert "cannot be read" in problem.json["detail"]
        assert str(path) in problem.json["detail"]
        assert "move it away and restart" in problem.json["detail"]
    assert path.read_bytes() == bytes(raw)


@pytest.mark.parametrize("asleep", [False, True])
def test_a_start_beside_an_unreadable_journal_has_one_of_its_own(
    app: InProcess, path: Path, open_app: Callable[..., InProcess], asleep: bool
) -> None:
    """Among many jobs; found as the controller starts, or as the trainer comes."""
    run(app, Trainer(), register(app).decision, 2)
    if asleep:
        post(app, "/v1/jobs/job/end", End(incarnation="first", windows=2, steps=100, message="done"))
    app.close()
    raw = path.read_bytes().replace(b'"samples":', b'"samples": ', 1)
    path.write_bytes(raw)
    again = open_app()
    assert ("job" in again.services.store.jobs) == asleep
    answer = register(again, incarnation="second")
    assert answer.job == "job-2"
    assert "job 'job' has a journal that cannot be read, and that stays as it is: " in answer.note
    run(again, Trainer("job-2", incarnation="second"), answer.decision, 3)
    second = path.parent.with_name("job-2") / path.name
    assert on_disk(second) == [0, 1, 2]
    assert check(second).ok
    silence(again, "job-2")
    assert register(again, incarnation="third").job == "job-2", "as the next time"
    assert path.read_bytes() == raw
