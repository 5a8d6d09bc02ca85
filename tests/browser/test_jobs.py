"""Several jobs, long jobs, and text from strangers."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Route

from gravac.protocol import Decision
from gravac.traces import read_trace
from tools.harness.chromium import READY, OpenPage, Tab
from tools.harness.controller import Controller
from tools.harness.recorded import LONG_WINDOW, RecordedJob
from tools.harness.sinks import Disk, Http

pytestmark = pytest.mark.browser

SCRIPT = "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"


def hacked(tab: Tab) -> bool:
    return bool(
        tab.page.evaluate("window.hacked !== undefined || document.querySelector('main img') !== null")
    )


def test_choosing_a_job(controller: Controller, open_page: OpenPage) -> None:
    one, two = RecordedJob(Http(controller), job="one"), RecordedJob(Http(controller), job="two")
    one.play(2)
    two.until("hold")
    two.play(**LONG_WINDOW)
    tab = open_page(f"{controller.url}/#job=one")
    tab.wait(READY)
    assert tab.text("#plan") == "dense"
    entries = tab.page.locator("#job-select option").all_inner_texts()
    assert [entry.split(" · ")[:2] for entry in entries] == [["one", "running"], ["two", "running"]]
    tab.page.locator("#job-select").select_option("two")
    tab.wait("document.querySelector('#plan-words').textContent.includes('largest ')")
    assert tab.page.evaluate("location.hash") == "#job=two"
    one.play()
    tab.page.wait_for_timeout(800)
    assert "largest " in tab.content("#plan-words"), "the other job's windows do not come here"
    assert tab.page.get_attribute("#trace", "href") == "/v1/jobs/two/trace"


def test_a_journal_that_cannot_be_read_is_named(
    tmp_path: Path, start: Callable[..., Controller], open_page: OpenPage
) -> None:
    (tmp_path / "runs" / "broken").mkdir(parents=True)
    (tmp_path / "runs" / "broken" / "journal.jsonl").write_text("{}\n{}\n")
    controller = start()
    tab = open_page(controller.url)
    tab.wait("!document.querySelector('#waiting').hidden")
    assert "The journal of “broken” cannot be read" in tab.text("#waiting")
    RecordedJob(Http(controller)).play()
    tab.wait(READY)
    assert "The journal of “broken” cannot be read" in tab.text("#events")


def test_a_long_job_begins_at_its_beginning(
    tmp_path: Path, start: Callable[..., Controller], open_page: OpenPage
) -> None:
    """More windows than a snapshot holds (600) and than the controller keeps in memory (1,000).

    The first page of the older ones is lost on its way: it is asked for again.
    """
    disk = Disk()
    RecordedJob(disk).play(1700)
    disk.write(tmp_path / "runs", iter(range(1_700_000_000, 1_800_000_000)).__next__)
    journal = read_trace(tmp_path / "runs/demo/journal.jsonl")
    epochs = {line.record.epoch for line in journal if isinstance(line.record, Decision)}
    lost: list[str] = []

    def lose_one(route: Route) -> None:
        if lost:
            route.fallback()
        else:
            lost.append(route.request.url)
            route.abort()

    controller = start()
    tab = open_page(f"{controller.url}/healthz")
    tab.page.route("**/windows?*", lose_one)
    tab.page.goto(controller.url)
    tab.wait(READY)
    tab.wait(f"document.querySelectorAll('#log tbody tr').length === {len(epochs)}")
    assert len(tab.errors) == len(lost) == 1
    tab.errors.clear()
    with tab.page.expect_download() as table:
        tab.page.locator("#csv").click()
    lines = table.value.path().read_text().splitlines()[1:]
    assert [int(line.split(",")[0]) for line in lines] == list(range(1700))
    tab.page.locator("#chart-gain .plot").focus()
    tab.page.keyboard.press("Home")
    tab.shows("#readout", "Window 0 · step 19 ·")


def test_names_that_are_words_of_javascript(controller: Controller, open_page: OpenPage) -> None:
    for name in ("__proto__", "constructor"):
        RecordedJob(Http(controller), job=name).play(2)
    tab = open_page(f"{controller.url}/#job=__proto__")
    tab.wait(READY)
    assert tab.page.locator("#job-select").input_value() == "__proto__"
    assert tab.page.title() == "dense · __proto__"


def test_hostile_text_is_text(controller: Controller, open_page: OpenPage) -> None:
    recorded = RecordedJob(Http(controller), model=SCRIPT)
    recorded.play(2)
    recorded.event("note", SCRIPT)
    tab = open_page(controller.url)
    tab.wait(READY)
    assert SCRIPT in tab.text("#events")
    assert SCRIPT in tab.text("[data-fact=model]")
    missing = open_page(f"{controller.url}/#job=%3Cscript%3Ewindow.hacked=1%3C/script%3E")
    missing.wait("document.body.dataset.status === 'missing'")
    assert "No job named “<script>window.hacked=1</script>” here" in missing.text("#waiting")
    assert not hacked(tab)
    assert not hacked(missing)


def test_a_hostile_reason_is_text(controller: Controller, open_page: OpenPage) -> None:
    """Reasons come from policies, which are code; the page does not count on that."""
    RecordedJob(Http(controller)).play(2)
    snapshot = {
        "job": controller.ask("GET", "/v1/jobs/demo").json,
        "windows": controller.ask("GET", "/v1/jobs/demo/windows").json["items"],
        "decisions": controller.ask("GET", "/v1/jobs/demo/decisions").json["items"],
    }
    text = json.dumps(snapshot).replace("First 2 dense", SCRIPT).replace("The dense baseline", SCRIPT)
    message = f"id: 1\nevent: snapshot\ndata: {text}\n\n"

    def answer(route: Route) -> None:
        route.fulfill(body=message, content_type="text/event-stream")

    tab = open_page("about:blank")
    tab.host = controller.url.removeprefix("http://")
    tab.page.route("**/events", answer)
    tab.page.goto(controller.url)
    tab.wait(READY)
    assert SCRIPT in tab.text("#reason")
    assert tab.text("#log").count(SCRIPT) == 2
    assert not hacked(tab)
