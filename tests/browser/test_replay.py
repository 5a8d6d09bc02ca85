"""``gravac ui TRACE``: the page as of any window is the page that was shown then."""

import gzip
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser.test_freshness import only_refusals
from tools.harness.chromium import READY, OpenPage, Tab
from tools.harness.controller import PATIENCE_SECONDS, Controller
from tools.harness.forked import first_line
from tools.harness.recorded import Story
from tools.harness.sinks import Disk, Http

pytestmark = pytest.mark.browser

SHOWN = (
    "#cf", "#phase", "#epoch", "#reason", "#decided", "#began", "#tiles", "#saved", "#risk", "#facts", "#candidates",
    "#curve > p", "#ranks", "#log", "#faults", "#events", "#chart-cf .legend", "#chart-gain .legend",
)  # fmt: skip
"""All that the page says of a job, but its state and the age of its last report."""


class Ui:
    """``gravac ui`` on a trace, until ``stop``."""

    def __init__(self, trace: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "gravac_controller", "ui", str(trace), *arguments]
        # A controller's settings must not open this one to others.
        env = os.environ | {"GRAVAC_CONTROLLER_HOST": "0.0.0.0"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=env)
        assert self.process.stdout is not None
        try:
            self.said = first_line(self.process.stdout).decode()
            found = re.search(r"http://127\.0\.0\.1:\d+", self.said)
            assert found, self.said
        except BaseException:
            self.process.kill()
            self.process.wait(PATIENCE_SECONDS)
            self.process.stdout.close()
            raise
        self.url = found[0]

    def stop(self) -> int:
        """End it as Ctrl-C does; returns its exit code."""
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(PATIENCE_SECONDS)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Story]]:
    """A finished job's journal, gzipped."""
    folder = tmp_path_factory.mktemp("traces")
    disk = Disk()
    told = Story(disk, job="told", world_size=3, curves=True)
    told.play(40)
    told.event("nonfinite", "a gradient was infinite on rank 1")
    told.play(20)
    told.end()
    disk.write(folder, iter(range(1_700_000_000, 1_800_000_000)).__next__)
    zipped = folder / "told.jsonl.gz"
    zipped.write_bytes(gzip.compress((folder / "told" / "journal.jsonl").read_bytes()))
    return zipped, told


@pytest.fixture(scope="module")
def ui(story: tuple[Path, Story]) -> Iterator[Ui]:
    running = Ui(story[0])
    yield running
    assert running.stop() == 0


def pictures(tab: Tab) -> dict[str, str]:
    """Everything said, part by part."""
    return {part: tab.page.locator(part).first.inner_text() for part in SHOWN}


def opened(open_page: OpenPage, url: str) -> Tab:
    tab = open_page(url)
    tab.wait(READY)
    tab.shows("#scrub-text", "As of ")
    return tab


def test_as_of_a_window_it_shows_what_the_live_page_showed(
    tmp_path: Path, start: Callable[..., Controller], open_page: OpenPage
) -> None:
    controller = start()
    story = Story(Http(controller), curves=True)
    live = open_page(controller.url)
    seen: dict[int, dict[str, str]] = {}
    for windows in (1, 2, 2, 6):
        story.play(windows)
        live.shows(
            "#curve > p", f"Measured in window {story.window - 1},"
        )  # drawn last, and of the last window
        seen[story.window - 1] = pictures(live)
    story.play(3)
    running = Ui(tmp_path / "runs" / "demo")  # the folder of a job that still runs
    try:
        tab = opened(open_page, running.url)
        for window, was in seen.items():
            tab.page.evaluate(f"location.hash = '#at={window}'")
            tab.shows("#scrub-text", f"As of window {window} of 13 ")
            assert pictures(tab) == was
        assert len({said["#reason"] for said in seen.values()}) == len(seen), "they differ from each other"
        tab.page.goto("about:blank")  # it would ask again, and find nobody
    finally:
        running.stop()


def test_says_where_it_is(ui: Ui) -> None:
    assert ui.said.startswith("told, 60 windows, at http://127.0.0.1:")


def test_the_slider_and_the_address(ui: Ui, open_page: OpenPage) -> None:
    tab = opened(open_page, ui.url)
    assert tab.text("#scrub-text").startswith("As of window 59 of 59 · step 1,199 · ")
    assert tab.text("#chip-word") == "replay"
    assert tab.page.locator("#banner").is_hidden()
    assert tab.page.locator("body.grey").count() == 0, "a trace is not old"
    assert tab.page.locator("#pause").is_hidden()
    slider = tab.page.locator("#scrub")
    slider.focus()
    tab.page.keyboard.press("Home")
    tab.shows("#scrub-text", "At the start")
    assert tab.text("#cf") == "dense"
    assert tab.page.locator("#charts").is_hidden()
    tab.page.keyboard.press("ArrowRight")
    tab.shows("#scrub-text", "As of window 0 ")
    tab.page.locator("#scrub-on").click()
    tab.shows("#scrub-text", "As of window 1 ")
    assert tab.page.evaluate("location.hash") == "#at=1"
    assert "non-finite" not in tab.text("#events"), "it had not happened yet"
    again = opened(open_page, f"{ui.url}/#at=45&window=3")
    assert again.text("#scrub-text").startswith("As of window 45 ")
    assert "non-finite" in again.text("#events")
    again.shows("#card-title", "Decision: 20× → 40×")


def test_playing(ui: Ui, open_page: OpenPage) -> None:
    tab = opened(open_page, f"{ui.url}/#at=50")
    tab.page.keyboard.press("p")
    assert tab.text("#scrub-play") == "Stop"
    tab.shows("#scrub-text", "As of window 59 ")
    tab.shows("#scrub-play", "Play")


def test_what_is_not_there_cannot_be_asked(ui: Ui, open_page: OpenPage) -> None:
    tab = opened(open_page, ui.url)
    assert tab.page.locator("#steer").is_hidden()
    with tab.page.expect_download() as trace:
        tab.page.locator("#trace").click()
    assert trace.value.path().read_bytes().count(b'"kind":"window"') == 60


@pytest.mark.parametrize("altered", [False, True])
def test_a_long_trace_comes_bit_by_bit(tmp_path: Path, open_page: OpenPage, altered: bool) -> None:
    """Longer than what is read before the first answer; with a bad line in what comes later."""
    disk = Disk()
    Story(disk).play(700)
    disk.write(tmp_path, iter(range(1_700_000_000, 1_800_000_000)).__next__)
    path = tmp_path / "demo" / "journal.jsonl"
    before, window, after = path.read_bytes().partition(b'"window":650,"first_step"')
    path.write_bytes(
        before + window + (after.replace(b'"samples":', b'"samples":1', 1) if altered else after)
    )
    running = Ui(path)
    try:
        assert "demo, 500 windows so far, reading on, at http" in running.said
        tab = opened(open_page, running.url)
        last = 649 if altered else 699
        tab.until(
            lambda: tab.text("#scrub-text").startswith(f"As of window {last} of {last} "), "all is read"
        )
        tab.until(lambda: "reading on" not in tab.text("#scrub-text"), "and said to be")
        assert f"{20 * (last + 1):,} steps" in tab.text("#saved")
        if altered:
            assert "was altered after it was written" in tab.text("#banner")
        else:
            assert tab.page.locator("#banner").is_hidden()
        tab.page.evaluate("location.hash = '#at=650'")
        tab.shows("#scrub-text", "As of window 649 " if altered else "As of window 650 ")
        tab.page.goto("about:blank")  # it would ask again, and find nobody
    finally:
        running.stop()


def test_the_server_ends(story: tuple[Path, Story], open_page: OpenPage) -> None:
    running = Ui(story[0])
    tab = opened(open_page, running.url)
    assert running.stop() == 0
    tab.shows("#chip-word", "server gone")
    assert "Start it again" in tab.text("#banner")
    assert tab.text("#cf") == "40×", "what was shown stays"
    only_refusals(tab)
