"""Old numbers are never shown as current: a dead controller, a silent job, and coming back."""

import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.browser import only_failed_requests
from tools.harness.chromium import READY, OpenPage
from tools.harness.controller import Controller
from tools.harness.recorded import LONG_WINDOW, RecordedJob
from tools.harness.sinks import Disk, Http

pytestmark = pytest.mark.browser

OPACITY = "Number(getComputedStyle(document.querySelector('.top')).opacity)"


def test_controller_killed_and_back(start: Callable[..., Controller], open_page: OpenPage) -> None:
    first = start()
    recorded = RecordedJob(Http(first))
    recorded.until("hold")
    recorded.play(**LONG_WINDOW)
    tab = open_page(first.url)
    tab.wait(READY)
    assert tab.page.locator("#banner").is_hidden()
    last = f"{recorded.window * 20 - 1:,}"
    first.kill()
    tab.wait("document.body.dataset.status === 'lost'")
    assert tab.text("#chip-word") == "connection lost"
    banner = tab.text("#banner")
    assert banner.startswith("Controller unreachable since ")
    assert f"umbers below are from step {last}" in banner
    tab.wait(f"{OPACITY} < 0.7")
    assert "largest " in tab.content("#plan-words"), "still there, but grey"
    assert tab.page.title() == "connection lost · demo"
    tab.until(lambda: tab.text("#banner") != banner, "the age ticks")

    recorded.sink = Http(start(port=first.port))
    recorded.play(2, **LONG_WINDOW)
    tab.wait("document.body.dataset.status === 'running'")
    tab.wait(f"document.querySelector('[data-fact=window] dd').textContent === '{recorded.window - 1}'")
    tab.wait(f"{OPACITY} === 1")
    tab.until(tab.page.locator("#banner").is_hidden, "no banner")
    tab.until(lambda: tab.text("[data-fact=window] dd") == str(recorded.window - 1), "the last window")
    with tab.page.expect_download() as table:
        tab.page.locator("#csv").click()
    numbers = [line.split(",")[0] for line in table.value.path().read_text().splitlines()[1:]]
    assert numbers == [str(window) for window in range(recorded.window)], "no window lost or doubled"
    only_failed_requests(tab)


def test_a_silent_job_turns_stale(
    tmp_path: Path, start: Callable[..., Controller], open_page: OpenPage
) -> None:
    disk = Disk()
    recorded = RecordedJob(disk)
    recorded.play(62)
    written = itertools.count(time.time() - 20 - len(disk.records) * 1e-3, 1e-3)
    disk.write(tmp_path / "runs", lambda: next(written))
    tab = open_page(start().url)
    tab.wait(READY)
    tab.wait("document.body.dataset.status === 'stale'")
    assert tab.text("#chip-word") == "stale"
    banner = tab.text("#banner")
    silent = int(banner.removeprefix("No report for ").split(" s;")[0])
    assert silent >= 30
    assert f"; numbers below are from step {recorded.window * 20 - 1:,}, " in banner
    tab.wait(f"{OPACITY} < 0.7")
    assert tab.page.title() == "stale · demo"


def test_a_restart_without_the_job(
    tmp_path: Path, start: Callable[..., Controller], open_page: OpenPage
) -> None:
    first = start()
    RecordedJob(Http(first)).play()
    tab = open_page(f"{first.url}/#job=demo")
    tab.wait(READY)
    first.kill()
    (tmp_path / "runs" / "demo").rename(tmp_path / "elsewhere")
    start(port=first.port)
    tab.wait("document.body.dataset.status === 'missing'")
    assert tab.text("#chip-word") == "no such job"
    assert tab.page.locator("#content").is_hidden(), "no numbers of a job that is not here"
    assert "No job named “demo” here" in tab.text("#waiting")
    only_failed_requests(tab)
