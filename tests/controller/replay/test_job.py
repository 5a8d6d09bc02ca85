"""A replayed trace shows at each window what the controller showed: plain, gzipped, in parts, torn, with CRLF."""

import asyncio
import gzip
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from gravac.protocol import End, Event, Order
from gravac.traces import TraceError
from gravac_controller.api.services import Services
from gravac_controller.live import job_views
from gravac_controller.live.projection import LiveJob
from gravac_controller.replay.job import EVERY, ReplayedJob
from gravac_controller.replay.server import create_replay_app
from gravac_controller.settings import ControllerSettings
from gravac_controller.views.models import JobView
from tests.support.in_process import InProcess
from tools.harness.builders import Trainer, spec

WINDOWS = 2 * EVERY + 15
SETTINGS = ControllerSettings.model_construct()


def shown(live: LiveJob) -> dict[str, Any]:
    """Return the view of a job without its state, which the clock decides, and what only running jobs have."""
    view = job_views.job_view(live).model_dump(mode="json")
    hidden = ("state", "spec", "control_enabled", "override_waiting")
    return {name: value for name, value in view.items() if name not in hidden}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, dict[str, Any]]]:
    """A journal in several parts with orders, faults, a restart and a lost window, and the view after each window."""
    folder = tmp_path_factory.mktemp("recorded")
    app = InProcess(
        folder / "runs", control_token="an-operators-token-0123456789abc", journal_part_bytes=1 << 16
    )
    seen: dict[int, dict[str, Any]] = {}

    async def play() -> None:
        decision = (await app.services.store.register(spec())).decision
        job, trainer = app.services.store.get("job"), Trainer()
        for window in range(WINDOWS):
            if window == 30:
                await job.event(Event(kind="note", window=None, message="a note"))
            if window == 40:
                await job.order(Order(action="pin", cf=33.0, actor="alice"), job.override_tag)
            if window == 70:
                await job.order(Order(action="resume", actor="alice"), job.override_tag)
            if window == 80:
                job.live.presence.decided_time -= 60  # the start before it counts as dead
                again = await job.register(spec(incarnation="second"))
                trainer, decision = Trainer(incarnation="second", window=trainer.window + 1), again.decision
            decision = (await job.window(trainer.report(decision, nonfinite_steps=int(window == 7)))).decision
            seen[trainer.window - 1] = shown(job.live)
        await job.end(End(incarnation="second", windows=WINDOWS, steps=1, message="done"))

    asyncio.run(play())
    app.close()
    return folder / "runs" / "job" / "journal.jsonl", seen


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    empty = tmp_path / "ours"
    empty.mkdir()
    return empty


def differing(job: ReplayedJob, seen: dict[int, dict[str, Any]]) -> list[int]:
    """Return the windows at which the replayed view differs."""
    return [window for window, was in seen.items() if shown(job.as_of(window)) != was]


def test_each_window_shows_the_same_as_live(
    recorded: tuple[Path, dict[int, dict[str, Any]]], folder: Path
) -> None:
    path, seen = recorded
    assert len(list(path.parent.iterdir())) > 3, "in parts"
    job = ReplayedJob(path, folder, SETTINGS)
    later = differing(job, seen)
    # What happens between two windows belongs to the first of them, and was not there yet when it was shown.
    assert later == [29, 39, 69, 79]
    assert job_views.job_view(job.as_of(WINDOWS)).state == "ended"
    assert job_views.job_view(job.as_of(WINDOWS - 1)).state == "running"
    override = job_views.job_view(job.as_of(45)).override
    assert override is not None
    assert override.cf == 33.0
    assert job_views.job_view(job.as_of(75)).override is None


def test_before_the_first_window(recorded: tuple[Path, dict[int, dict[str, Any]]], folder: Path) -> None:
    view = job_views.job_view(ReplayedJob(recorded[0], folder, SETTINGS).as_of(-1))
    assert view.latest is None
    assert view.decision.window == -1
    assert [event.event.kind for event in view.events] == ["registered"]


@pytest.mark.parametrize("kind", ["gzip", "crlf", "torn", "cut gzip"])
def test_other_forms_of_the_same_trace(
    recorded: tuple[Path, dict[int, dict[str, Any]]], tmp_path: Path, folder: Path, kind: str
) -> None:
    path, seen = recorded
    whole = b"".join(
        gzip.decompress(part.read_bytes()) if part.suffix == ".gz" else part.read_bytes()
        for part in [*sorted(path.parent.glob("journal.0*")), path]
    )
    made = {
        "gzip": gzip.compress(whole),
        "crlf": b"\xef\xbb\xbf" + whole.replace(b"\n", b"\r\n"),
        "torn": whole[: len(whole) // 2],
        "cut gzip": (packed := gzip.compress(whole))[: len(packed) // 2],
    }[kind]
    other = tmp_path / "downloaded.jsonl"
    other.write_bytes(made)
    job = ReplayedJob(other, folder, SETTINGS)
    last = job.live.counts.windows
    assert (last < WINDOWS) == (kind in ("torn", "cut gzip"))
    assert last > 5
    few = {window: seen[window] for window in list(seen)[: last - 1 : 7]}
    assert differing(job, few) == []


def test_an_altered_trace_is_not_shown(
    recorded: tuple[Path, dict[int, dict[str, Any]]], tmp_path: Path, folder: Path
) -> None:
    other = tmp_path / "altered.jsonl"
    other.write_bytes(recorded[0].read_bytes().replace(b'"samples":', b'"samples":1', 1))
    with pytest.raises(TraceError, match="altered after it was written"):
        ReplayedJob(other, folder, SETTINGS)


def test_a_long_trace_is_shown_while_it_is_read(
    recorded: tuple[Path, dict[int, dict[str, Any]]], folder: Path
) -> None:
    path, seen = recorded
    job = ReplayedJob(path, folder, SETTINGS, at_once=20)
    assert not job.done
    assert (job.windows, job.live.counts.windows) == (20, 20)
    assert 0 < job.share < 0.5
    assert shown(job.live) == seen[19], "with all that was known then"
    assert job_views.rank_heat(job.live).columns[-1].last_window == 19
    assert shown(job.as_of(5)) == seen[5]
    windows, decisions = job.drawn()
    assert [window.number("window") for window in windows] == list(range(20))
    assert [decision.decision.window for decision in decisions] == list(range(-1, 20))
    job.read_on()
    assert (job.done, job.share, job.problem) == (True, 1.0, "")
    assert job.live.counts.windows == 20, "until it is drawn again"
    windows, decisions = job.drawn()
    assert job.live.counts.windows == len(windows) == WINDOWS
    assert differing(job, seen) == [29, 39, 69, 79]


def test_a_line_altered_far_behind_ends_the_trace(
    recorded: tuple[Path, dict[int, dict[str, Any]]], tmp_path: Path, folder: Path
) -> None:
    whole = b"".join(
        gzip.decompress(part.read_bytes()) if part.suffix == ".gz" else part.read_bytes()
        for part in [*sorted(recorded[0].parent.glob("journal.0*")), recorded[0]]
    )
    other = tmp_path / "altered.jsonl"
    before, window, after = whole.partition(b'"window":60,"first_step"')
    other.write_bytes(before + window + after.replace(b'"samples":', b'"samples":1', 1))
    job = ReplayedJob(other, folder, SETTINGS, at_once=20)
    job.read_on()
    assert "altered after it was written" in job.problem
    assert job.done
    windows, _ = job.drawn()
    assert windows[-1].number("window") == 59
    assert shown(job.live) == recorded[1][59]


@pytest.mark.parametrize("text", [b"", b"hello\n", b"\x1f\x8bnot gzip at all"])
def test_a_file_that_is_not_a_trace_is_refused(tmp_path: Path, folder: Path, text: bytes) -> None:
    (tmp_path / "no-trace").write_bytes(text)
    with pytest.raises(TraceError, match="no-trace"):
        ReplayedJob(tmp_path / "no-trace", folder, SETTINGS)


@pytest.fixture
def client(recorded: tuple[Path, dict[int, dict[str, Any]]], folder: Path) -> TestClient:
    """The server of a trace, in this process."""
    job, services = ReplayedJob(recorded[0], folder, SETTINGS), Services.of(SETTINGS)
    services.store.jobs[job.name] = job
    return TestClient(create_replay_app(services, job), base_url="http://127.0.0.1")


def test_the_server_writes_nothing(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the data folder of a controller with these settings would be."""
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert client.get("/readyz").status_code == 200
    assert sorted(tmp_path.rglob("*")) == before
    assert not SETTINGS.data_dir.exists()


def test_the_server_is_read_only(client: TestClient) -> None:
    view = JobView.model_validate_json(client.get("/v1/jobs/job/as-of/45").content)
    assert view.latest is not None
    assert view.latest.report.window == 45
    numbers, after = [], ""
    while True:
        page = client.get(f"/v1/jobs/job/windows?ranks=false&limit=50{after}").json()
        numbers += [item["report"]["window"] for item in page["items"]]
        assert all(item["report"]["ranks"] == [] for item in page["items"])
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert numbers == [*range(80), *range(81, WINDOWS + 1)]
    assert client.get("/v1/jobs/other/as-of/1").status_code == 404
    assert client.get("/v1/jobs/job/as-of/-2").status_code == 422
    for method, path in (("POST", "/v1/jobs"), ("PUT", "/v1/jobs/job/override"), ("GET", "/metrics")):
        assert client.request(method, path).status_code in (404, 405)
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 400
    assert 'data-mode="replay"' in client.get("/").text
