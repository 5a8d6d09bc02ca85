"""Lists page by cursor through memory and disk alike; the trace downloads whole."""

import io
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from gravac.protocol import Decision, Record
from gravac.replays.replay import check
from tests.support.direct import run
from tests.support.in_process import InProcess, register, walk
from tools.harness.builders import Trainer

SMALL_HISTORY = 600
WINDOWS = 850


@pytest.fixture(scope="module")
def long_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    """A job of more windows than memory holds, with a gap in the part that is on disk."""
    app = InProcess(
        tmp_path_factory.mktemp("long") / "runs", history_windows=SMALL_HISTORY, history_rank_rows=1
    )
    trainer = Trainer()
    decision = run(app, trainer, register(app).decision, 130)
    trainer.window = 140
    decision = run(app, trainer, decision, WINDOWS - 130)
    register(app, incarnation="second")
    run(app, Trainer(incarnation="second", window=trainer.window), decision, 1)
    yield app
    app.close()


def shown(found: Iterable[tuple[int, Record | None]]) -> list[dict[str, Any]]:
    return [view.model_dump(mode="json") for _, view in found if view is not None]


@pytest.mark.parametrize("limit", [1000, 97])
def test_every_window_once_and_in_order(long_job: InProcess, limit: int) -> None:
    numbers = [one["report"]["window"] for one in walk(long_job, "windows", limit)]
    assert numbers == [*range(130), *range(140, 140 + WINDOWS - 130 + 1)]


@pytest.mark.parametrize("limit", [1000, 97])
def test_every_decision_once_and_in_order(long_job: InProcess, limit: int) -> None:
    found = walk(long_job, "decisions", limit)
    assert [one["decision"]["window"] for one in found][:3] == [-1, 0, 1]
    assert len({one["decision"]["window"] for one in found}) == WINDOWS + 2
    for before, after in itertools.pairwise(found):
        assert after["cf_before"] == before["decision"]["cf_candidate"]
        assert after["changed"] == (after["decision"]["epoch"] != before["decision"]["epoch"])
    assert found[0]["changed"]
    assert found[0]["cf_before"] is None


def test_a_page_from_disk_equals_the_page_from_memory(open_app: Callable[..., InProcess]) -> None:
    app = open_app()
    run(app, Trainer(), register(app).decision, 20)
    job = app.services.store.jobs["job"]
    remembered = app.client.get("/v1/jobs/job/windows?limit=1000").json()["items"]
    from_disk = shown(job.journal.reader.windows(after=-1, end=job.journal.end))
    assert from_disk == remembered
    remembered = app.client.get("/v1/jobs/job/decisions?limit=1000").json()["items"]
    from_disk = shown(job.journal.reader.decisions(after=None, end=job.journal.end))
    assert from_disk == remembered


def test_a_reader_sees_appended_windows(open_app: Callable[..., InProcess]) -> None:
    app = open_app()
    decision: Decision = run(app, trainer := Trainer(), register(app).decision, 150)
    job = app.services.store.jobs["job"]
    assert len(list(job.journal.reader.windows(after=120, end=job.journal.end))) == 29
    run(app, trainer, decision, 150)
    found = [number for number, _ in job.journal.reader.windows(after=120, end=job.journal.end)]
    assert found == list(range(121, 300))


def test_memory_keeps_rank_rows_of_the_latest_window_only_where_there_are_many(long_job: InProcess) -> None:
    recent = long_job.client.get("/v1/jobs/job/windows?after=800&limit=1000").json()["items"]
    assert [len(one["report"]["ranks"]) for one in recent] == [0] * (len(recent) - 1) + [2]
    old = long_job.client.get("/v1/jobs/job/windows?limit=1").json()["items"]
    assert len(old[0]["report"]["ranks"]) == 2


def test_the_whole_trace_downloads_and_replays(long_job: InProcess) -> None:
    response = long_job.client.get("/v1/jobs/job/trace")
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.headers["content-disposition"] == 'attachment; filename="job.jsonl"'
    assert int(response.headers["content-length"]) == len(response.content)
    found = check(io.BytesIO(response.content))
    assert found.ok, found.differences
    assert found.windows == WINDOWS + 1


def test_ranks_are_compared_by_their_own_work(open_app: Callable[..., InProcess]) -> None:
    app = open_app()
    run(app, Trainer(), register(app).decision, 1)
    view = app.client.get("/v1/jobs/job/ranks").json()
    own = [0.5 + 5.0 + 1.0 + 0.25, 0.5 + 6.0 + 1.0 + 0.25]
    assert [rank["row"]["rank"] for rank in view["ranks"]] == [0, 1]
    assert [rank["relative_speed"] for rank in view["ranks"]] == pytest.approx([1.0, own[0] / own[1]])
    assert [rank["step_seconds"] for rank in view["ranks"]] == pytest.approx([9.75 / 50, 10.75 / 50])


def test_candidates_are_those_of_the_decision_in_force(open_app: Callable[..., InProcess]) -> None:
    app = open_app()
    decision = run(app, Trainer(), register(app).decision, 12)
    view = app.client.get("/v1/jobs/job/candidates").json()
    assert view["epoch"] == decision.epoch
    assert len(view["candidates"]) == len(decision.candidates) > 1
