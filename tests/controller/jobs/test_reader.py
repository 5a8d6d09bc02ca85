"""Journals in parts: the same answers as from one file, across restarts, retention and a full disk."""

import asyncio
import io
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gravac.protocol import End, Event, WindowAnswer
from gravac.replays.replay import check
from gravac.traces import parts, read_trace
from tests.controller.jobs.test_restart import everything
from tests.support.direct import run
from tests.support.in_process import InProcess, post, register, walk
from tools.harness.builders import Trainer
from tools.harness.controller import PATIENCE_SECONDS

SMALL = 1 << 16  # about 14 windows
WINDOWS = 700
OPERATOR = "an-operators-token-0123456789abc"


def feed(app: InProcess, windows: int = WINDOWS) -> None:
    """A job with everything in it: a gap, a second start, an order, events."""
    trainer = Trainer()
    decision = run(app, trainer, register(app).decision, 50)
    trainer.window = 60
    post(app, "/v1/jobs/job/events", Event(kind="note", window=60, message="a note"))
    decision = run(app, trainer, decision, windows - 150)
    register(app, incarnation="second")
    trainer = Trainer(incarnation="second", window=trainer.window)
    order = {"action": "pin", "cf": 12.5, "actor": "alice"}
    seen = app.client.get("/v1/jobs/job/override").headers["etag"]
    headers = {"If-Match": seen, "Authorization": f"Bearer {OPERATOR}"}
    assert app.client.put("/v1/jobs/job/override", json=order, headers=headers).status_code == 202
    run(app, trainer, decision, 100)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[InProcess, InProcess]]:
    """The same job in many parts, and in one."""
    made = []
    for name, size in (("many", SMALL), ("one", 1 << 28)):
        app = InProcess(
            tmp_path_factory.mktemp(name) / "runs",
            journal_part_bytes=size,
            history_windows=600,
            control_token=OPERATOR,
        )
        feed(app)
        made.append(app)
    yield made[0], made[1]
    for app in made:
        app.close()


def folder_of(app: InProcess) -> Path:
    return app.services.settings.data_dir / "job"


def tidied(app: InProcess) -> None:
    """Wait until no full part is uncompressed."""
    until = time.monotonic() + PATIENCE_SECONDS
    while any(path.suffix == ".jsonl" for path in parts.full_parts(folder_of(app)).values()):
        assert time.monotonic() < until
        time.sleep(0.02)


def timeless(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: timeless(value) for key, value in node.items() if "time" not in key}
    return [timeless(one) for one in node] if isinstance(node, list) else node


@pytest.mark.parametrize(
    "route",
    [
        "windows",
        "decisions",
        "windows?from_step=4000&to_step=9000",
        "windows?epoch=3",
        "decisions?changed=true",
        "decisions?rule=pinned",
    ],
)
@pytest.mark.parametrize("limit", [1000, 23])
def test_lists_do_not_show_the_parts(two: tuple[InProcess, InProcess], route: str, limit: int) -> None:
    many, one = two
    assert len(parts.full_parts(folder_of(many))) > 20
    assert not parts.full_parts(folder_of(one))
    assert timeless(walk(many, route, limit)) == timeless(walk(one, route, limit))


@pytest.mark.parametrize("route", ["", "/candidates", "/ranks", "/override"])
def test_views_do_not_show_the_parts(two: tuple[InProcess, InProcess], route: str) -> None:
    many, one = (app.client.get(f"/v1/jobs/job{route}").json() for app in two)
    assert timeless(many) == timeless(one)


def test_counters_do_not_count_the_parts(two: tuple[InProcess, InProcess]) -> None:
    many, one = (
        [line for line in app.client.get("/metrics").text.splitlines() if "_total{job_name" in line]
        for app in two
    )
    assert many
    assert many == one


def test_the_download_is_the_whole_trace(two: tuple[InProcess, InProcess]) -> None:
    many, _ = two
    response = many.client.get("/v1/jobs/job/trace")
    assert int(response.headers["content-length"]) == len(response.content)
    found = check(io.BytesIO(response.content))
    assert found.ok, found.differences
    assert found.windows == WINDOWS
    assert check(folder_of(many) / parts.ACTIVE).ok


def test_streams_resume_over_parts(two: tuple[InProcess, InProcess]) -> None:
    many, _ = two
    job = many.services.store.jobs["job"]
    lines = [line for line in read_trace(folder_of(many) / parts.ACTIVE) if line.kind == "window"]
    moments = job.live.changes_after(lines[-40].number - 1)
    assert moments is not None
    windows = [moment.window.report.window for moment in moments if moment.window is not None]
    assert windows == [line.record.window for line in lines[-40:]]  # type: ignore[union-attr]


def test_a_restart_shows_the_same_and_reads_only_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"journal_part_bytes": SMALL, "history_windows": 600, "control_token": OPERATOR}
    first = InProcess(tmp_path / "runs", **settings)
    feed(first, 800)
    before = everything(first)
    first.close()
    opened: list[int] = []
    real = parts.open_full_part

    def counted(path: Path) -> Any:
        opened.append(int(path.name.split(".")[1]))
        return real(path)

    monkeypatch.setattr(parts, "open_full_part", counted)
    second = InProcess(tmp_path / "runs", **settings)
    assert set(opened) == set(range(min(opened), max(opened) + 1))
    assert min(opened) > 10  # the older ones were left alone
    assert everything(second) == before
    again = register(second, incarnation="third")
    run(second, Trainer(incarnation="third", window=again.next_window), again.decision, 20)
    second.close()
    assert check(tmp_path / "runs/job" / parts.ACTIVE).ok


def test_a_repeated_window_of_a_full_part_is_known(open_app: Callable[..., InProcess]) -> None:
    """The answer was lost, the controller died right after starting a part, and reads only that part."""
    app = open_app(journal_part_bytes=SMALL)
    trainer, decision = Trainer(), register(app).decision
    while app.services.store.jobs["job"].journal.end.part == 1:
        report = trainer.report(decision)
        answer = post(app, "/v1/jobs/job/windows", report)
        decision = WindowAnswer.model_validate_json(answer).decision
    app.close()
    for path in parts.full_parts(folder_of(app)).values():
        path.unlink()
    again = open_app(journal_part_bytes=SMALL)
    assert post(again, "/v1/jobs/job/windows", report) == answer
    run(again, trainer, decision, 1)


def test_closing_waits_for_compression(
    open_app: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else may have the folder while a thread of this controller still replaces files in it."""
    compress, begun = parts.compress, threading.Event()

    def slow(path: Path) -> Path:
        begun.set()
        time.sleep(0.5)
        return compress(path)

    monkeypatch.setattr(parts, "compress", slow)
    app = open_app(journal_part_bytes=SMALL)
    trainer, decision = Trainer(), register(app).decision
    while app.services.store.jobs["job"].journal.end.part == 1:
        decision = run(app, trainer, decision, 1)
    assert begun.wait(PATIENCE_SECONDS)
    app.close()
    assert [path.suffix for path in parts.full_parts(folder_of(app)).values()] == [".gz"]
    assert not folder_of(app).joinpath("journal.000001.jsonl").exists()


def test_old_parts_are_deleted_beyond_the_limit(open_app: Callable[..., InProcess]) -> None:
    keep = 40_000
    app = open_app(journal_part_bytes=SMALL, journal_keep_bytes=keep, history_windows=600)
    decision = run(app, trainer := Trainer(), register(app).decision, 300)
    tidied(app)
    until = time.monotonic() + PATIENCE_SECONDS
    while sum(path.stat().st_size for path in parts.full_parts(folder_of(app)).values()) > keep:
        assert time.monotonic() < until
        time.sleep(0.02)
    left = parts.full_parts(folder_of(app))
    assert left
    assert min(left) > 1
    before = app.client.get("/v1/jobs/job").json()
    app.close()
    again = open_app(journal_part_bytes=SMALL, journal_keep_bytes=keep, history_windows=600)
    after = again.client.get("/v1/jobs/job").json()
    assert after["totals"] == before["totals"]
    assert after["started_time"] == before["started_time"]
    assert after["events"] == before["events"]
    assert after["decision"] == before["decision"]
    assert after["baseline_step_seconds"] == before["baseline_step_seconds"]
    numbers = [one["report"]["window"] for one in walk(again, "windows", 50)]
    assert numbers == list(range(numbers[0], 300))
    assert numbers[0] > 0
    decisions = [one["decision"]["window"] for one in walk(again, "decisions", 50)]
    assert decisions == numbers
    run(again, trainer, decision, 30)
    found = check(folder_of(again) / parts.ACTIVE)
    assert found.ok, found.differences
    assert "the parts before it are missing" in found.notes[0]


def test_a_part_that_is_renamed_while_it_is_opened_is_read(
    open_app: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader comes between the two renames of a new part, while no file has the active part's name."""
    app = open_app()
    run(app, Trainer(), register(app).decision, 10)
    journal, real = app.services.store.jobs["job"].journal, parts.open_part

    def opened(path: Path) -> Any:
        if path == journal.path and path.exists():
            path.rename(parts.full_part_path(path.parent, 1))
        return real(path)

    monkeypatch.setattr(parts, "open_part", opened)
    found = [number for number, _ in journal.reader.windows(after=-1, end=journal.end)]
    assert found == list(range(10))


def test_a_finished_job_stays_listed(open_app: Callable[..., InProcess]) -> None:
    app = open_app(journal_part_bytes=SMALL)
    run(app, Trainer(), register(app).decision, 40)
    post(app, "/v1/jobs/job/end", End(incarnation="first", windows=40, steps=2000, message="done"))
    app.close()
    (job,) = open_app(journal_part_bytes=SMALL).client.get("/v1/jobs?state=ended").json()["items"]
    assert (job["job"], job["windows"], job["steps"]) == ("job", 40, 2000)


def test_a_journal_continues_in_its_part_where_the_disk_refuses_a_new_one(
    app: InProcess, open_app: Callable[..., InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    app.close()
    app = open_app(journal_part_bytes=SMALL)
    decision = register(app).decision
    real = os.rename

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", refuse)
    decision = run(app, trainer := Trainer(), decision, 30)
    assert not parts.full_parts(folder_of(app))
    monkeypatch.setattr(os, "rename", real)
    run(app, trainer, decision, 1)
    assert len(parts.full_parts(folder_of(app))) == 1
    assert check(folder_of(app) / parts.ACTIVE).ok


def test_pages_are_right_while_parts_are_started_and_compressed(tmp_path: Path) -> None:
    """A reader in another thread always sees every window up to where it began."""
    app = InProcess(tmp_path / "runs", journal_part_bytes=SMALL)
    decision = run(app, trainer := Trainer(), register(app).decision, 60)
    journal = app.services.store.jobs["job"].journal

    async def read_and_write() -> None:
        reading = [asyncio.create_task(asyncio.to_thread(reads)) for _ in range(2)]
        await asyncio.to_thread(run, app, trainer, decision, 150)
        await asyncio.gather(*reading)

    def reads() -> None:
        for _ in range(25):
            end, least = journal.end, app.services.store.jobs["job"].live.counts.totals.windows
            found = [number for number, _ in journal.reader.windows(after=-1, end=end)]
            assert found == list(range(len(found)))
            assert len(found) >= least - 1

    asyncio.run(read_and_write())
    app.close()
