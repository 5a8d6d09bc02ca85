"""Lists: cursors that neither lose nor repeat entries, filters that are equal in memory and on disk, entity tags."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gravac_controller.jobs import pages
from gravac_controller.jobs.pages import Cursor, cut
from tests.support.direct import run
from tests.support.in_process import InProcess, register, walk
from tools.harness.builders import Trainer

SMALL_HISTORY = 600
WINDOWS = 700


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcess]:
    """Windows 0 to 699, the older hundred on disk only; the trainer started again after 300 and 650."""
    app = InProcess(tmp_path_factory.mktemp("lists") / "runs", history_windows=SMALL_HISTORY)
    decision, done = register(app).decision, 0
    for number, until in enumerate((300, 650, WINDOWS)):
        incarnation = f"start-{number}"
        register(app, incarnation=incarnation)
        decision = run(app, Trainer(incarnation=incarnation, window=done), decision, until - done)
        done = until
    yield app
    app.close()


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return [one["report"]["window"] for one in found]


@pytest.mark.parametrize("limit", [1000, 7])
def test_decisions_repeated_at_a_new_start_are_all_listed(job: InProcess, limit: int) -> None:
    found = [one["decision"]["window"] for one in walk(job, "decisions", limit)]
    # -1 twice: the job's first registration and the first start of its trainer
    assert found == sorted([*range(-1, WINDOWS), -1, 299, 649])


@pytest.mark.parametrize(
    ("from_step", "to_step"), [(0, 0), (49, 50), (1234, 5678), (31_000, 10**9), (10**9, None)]
)
def test_windows_by_steps(job: InProcess, from_step: int, to_step: int | None) -> None:
    last = WINDOWS * 50 if to_step is None else to_step
    wanted = [window for window in range(WINDOWS) if window * 50 + 49 >= from_step and window * 50 <= last]
    until = "" if to_step is None else f"&to_step={to_step}"
    assert numbers(walk(job, f"windows?from_step={from_step}{until}", 97)) == wanted


def test_windows_and_decisions_by_epoch_and_phase(job: InProcess) -> None:
    windows, decisions = walk(job, "windows", 1000), walk(job, "decisions", 1000)
    epochs = {window["report"]["epoch"] for window in windows}
    assert len(epochs) > 2
    for epoch in epochs:
        assert walk(job, f"windows?epoch={epoch}", 11) == [
            w for w in windows if w["report"]["epoch"] == epoch
        ]
        of_epoch = [decision for decision in decisions if decision["decision"]["epoch"] == epoch]
        assert walk(job, f"decisions?epoch={epoch}", 11) == of_epoch
        assert [one["changed"] for one in of_epoch] == [True] + [False] * (len(of_epoch) - 1)
    for phase in ("warmup", "explore", "hold", "fallback"):
        assert walk(job, f"windows?phase={phase}", 11) == [
            w for w in windows if w["report"]["phase"] == phase
        ]
        found = [decision for decision in decisions if decision["decision"]["phase"] == phase]
        assert walk(job, f"decisions?phase={phase}", 11) == found
    changed = [decision for decision in decisions if decision["changed"]]
    assert walk(job, "decisions?changed=true", 3) == changed
    assert [one["decision"]["epoch"] for one in changed] == sorted(
        epochs | {changed[-1]["decision"]["epoch"]}
    )
    assert walk(job, "decisions?rule=warmup", 3) == [
        d for d in decisions if d["decision"]["rule"] == "warmup"
    ]


def test_one_page_scans_a_bounded_part_of_the_journal(
    job: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MAX_SCANNED", 50)
    page = job.client.get("/v1/jobs/job/windows?from_step=4000").json()
    assert page == {"items": [], "next": "49"}
    assert numbers(walk(job, "windows?from_step=4000", 20)) == list(range(80, WINDOWS))


@pytest.mark.parametrize("text", ["", "1.", ".1", "1.0", "-2", "1e3", "+1", "1.1.1", " 1", "9" * 17])
def test_invalid_cursors(job: InProcess, text: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        Cursor.parse(text)
    assert job.client.get(f"/v1/jobs/job/windows?after={text}").status_code == 422


def test_a_cursor_within_a_number() -> None:
    found = [(1, "a"), (1, "b"), (1, "c"), (2, None), (3, "d")]
    items, more = cut(found, None, 2)
    assert (items, str(more)) == (("a", "b"), "1.2")
    items, more = cut(found, more, 1)
    assert (items, str(more)) == (("c",), "1")
    items, more = cut([pair for pair in found if pair[0] > 1], more, 1)
    assert (items, more) == (("d",), None)


def test_jobs_by_state(open_app: Callable[..., InProcess]) -> None:
    app = open_app()
    for name in ("a", "b", "c"):
        register(app, job=name)
    end = {"incarnation": "first", "windows": 0, "steps": 0, "message": ""}
    assert app.client.post("/v1/jobs/b/end", json=end).status_code == 200
    found = {
        state: [item["job"] for item in app.client.get(f"/v1/jobs?state={state}").json()["items"]]
        for state in ("running", "stale", "ended")
    }
    assert found == {"running": ["a", "c"], "stale": [], "ended": ["b"]}
    page = app.client.get("/v1/jobs?state=running&limit=1").json()
    assert (page["items"][0]["job"], page["next"]) == ("a", "a")
    assert app.client.get("/v1/jobs?state=asleep").status_code == 422


ROUTES = ("", "/windows", "/decisions", "/candidates", "/ranks")


@pytest.mark.parametrize("route", ["/v1/jobs", *(f"/v1/jobs/job{route}" for route in ROUTES)])
def test_an_unchanged_list_is_not_sent_again(open_app: Callable[..., InProcess], route: str) -> None:
    app = open_app()
    decision = run(app, trainer := Trainer(), register(app).decision, 3)
    first = app.client.get(route)
    tag = first.headers["etag"]
    for given in (tag, f'"other", {tag}', f"W/{tag}", "*"):
        again = app.client.get(route, headers={"If-None-Match": given})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag), given
        assert again.headers["cache-control"] == "no-store"
    assert app.client.get(route, headers={"If-None-Match": '"other"'}).content == first.content
    run(app, trainer, decision, 1)
    changed = app.client.get(route, headers={"If-None-Match": tag})
    assert changed.status_code == 200
    assert changed.headers["etag"] != tag


@pytest.mark.parametrize("path", ["/", "/v1/jobs", "/v1/jobs/job/windows", "/v1/jobs/job/trace", "/nowhere"])
def test_head_is_get_without_the_body(job: InProcess, path: str) -> None:
    get, head = job.client.get(path), job.client.head(path)
    assert head.content == b""
    assert head.status_code == get.status_code
    assert dict(head.headers) == dict(get.headers)
