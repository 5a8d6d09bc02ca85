"""``gravac ui TRACE``: the page at any window is the page that was shown then."""

import gzip
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gravac.predict.nominal import link
from tests.support.browser import TraceServer, only_failed_requests, open_trace, texts_of
from tests.support.lab import needs_lab
from tools.harness.chromium import OpenPage
from tools.harness.controller import Controller
from tools.harness.recorded import RecordedJob
from tools.harness.sinks import Disk, Http

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, RecordedJob]]:
    """A finished job's journal, gzipped."""
    folder = tmp_path_factory.mktemp("traces")
    disk = Disk()
    job = RecordedJob(disk, job="finished", world_size=3, curves=True)
    job.play(40)
    job.event("nonfinite", "a gradient was infinite on rank 1")
    job.play(20)
    job.end()
    disk.write(folder, iter(range(1_700_000_000, 1_800_000_000)).__next__)
    zipped = folder / "finished.jsonl.gz"
    zipped.write_bytes(gzip.compress((folder / "finished" / "journal.jsonl").read_bytes()))
    return zipped, job


@pytest.fixture(scope="module")
def ui(recorded: tuple[Path, RecordedJob]) -> Iterator[TraceServer]:
    running = TraceServer(recorded[0])
    yield running
    assert running.stop() == 0


def test_as_of_a_window_it_shows_what_the_live_page_showed(
    tmp_path: Path, start: Callable[..., Controller], open_page: OpenPage
) -> None:
    controller = start()
    recorded = RecordedJob(Http(controller), curves=True)
    live = open_page(controller.url)
    seen: dict[int, dict[str, str]] = {}
    for windows in (1, 2, 2, 6):
        recorded.play(windows)
        live.shows(
            "#curve > p", f"Measured in window {recorded.window - 1},"
        )  # drawn last, and of the last window
        seen[recorded.window - 1] = texts_of(live)
    recorded.play(3)
    running = TraceServer(tmp_path / "runs" / "demo")  # the folder of a job that still runs
    try:
        tab = open_trace(open_page, running.url)
        for window, was in seen.items():
            tab.page.evaluate(f"location.hash = '#at={window}'")
            tab.shows("#scrub-text", f"Window {window} of 13 ")
            assert texts_of(tab) == was
        assert len({said["#facts"] for said in seen.values()}) == len(seen), "they differ from each other"
        tab.page.goto("about:blank")  # it would ask again, without an answer
    finally:
        running.stop()


def test_says_where_it_is(ui: TraceServer) -> None:
    assert ui.first_line.startswith("finished, 60 windows, at http://127.0.0.1:")


def test_the_slider_and_the_address(ui: TraceServer, open_page: OpenPage) -> None:
    tab = open_trace(open_page, ui.url)
    assert tab.text("#scrub-text").startswith("Window 59 of 59 · step 1,199 · ")
    assert tab.text("#chip-word") == "replay"
    assert tab.page.locator("#banner").is_hidden()
    assert tab.page.locator("body.grey").count() == 0, "a trace is not old"
    assert tab.page.locator("#pause").is_hidden()
    slider = tab.page.locator("#scrub")
    slider.focus()
    tab.page.keyboard.press("Home")
    tab.shows("#scrub-text", "At the start")
    assert tab.text("#plan") == "dense"
    assert tab.page.locator("#charts").is_hidden()
    tab.page.keyboard.press("ArrowRight")
    tab.shows("#scrub-text", "Window 0 ")
    tab.page.locator("#scrub-on").click()
    tab.shows("#scrub-text", "Window 1 ")
    assert tab.page.evaluate("location.hash") == "#at=1"
    assert "non-finite" not in tab.text("#events"), "it had not happened yet"
    again = open_trace(open_page, f"{ui.url}/#at=45&window=3")
    assert again.text("#scrub-text").startswith("Window 45 ")
    assert "non-finite" in again.text("#events")
    again.shows("#card-title", "Decision: largest 5 % → largest 2.5 %")


def test_playing(ui: TraceServer, open_page: OpenPage) -> None:
    tab = open_trace(open_page, f"{ui.url}/#at=50")
    tab.page.keyboard.press("p")
    assert tab.text("#scrub-play") == "Stop"
    tab.shows("#scrub-text", "Window 59 ")
    tab.shows("#scrub-play", "Play")


def test_what_is_not_there_cannot_be_asked(ui: TraceServer, open_page: OpenPage) -> None:
    tab = open_trace(open_page, ui.url)
    assert tab.page.locator("#steer").is_hidden()
    with tab.page.expect_download() as trace:
        tab.page.locator("#trace").click()
    assert trace.value.path().read_bytes().count(b'"kind":"window"') == 60


@pytest.mark.parametrize("altered", [False, True])
def test_a_long_trace_comes_bit_by_bit(tmp_path: Path, open_page: OpenPage, altered: bool) -> None:
    """Longer than what is read before the first answer; with a bad line in what comes later."""
    disk = Disk()
    RecordedJob(disk).play(700)
    disk.write(tmp_path, iter(range(1_700_000_000, 1_800_000_000)).__next__)
    path = tmp_path / "demo" / "journal.jsonl"
    before, window, after = path.read_bytes().partition(b'"window":650,"first_step"')
    path.write_bytes(
        before + window + (after.replace(b'"samples":', b'"samples":1', 1) if altered else after)
    )
    running = TraceServer(path)
    try:
        assert "demo, 500 windows so far, still reading, at http" in running.first_line
        tab = open_trace(open_page, running.url)
        last = 649 if altered else 699
        tab.until(lambda: tab.text("#scrub-text").startswith(f"Window {last} of {last} "), "all is read")
        tab.until(lambda: "reading" not in tab.text("#scrub-text"), "and the page says so")
        assert f"{20 * (last + 1):,} steps" in tab.text("#saved")
        if altered:
            assert "was altered after it was written" in tab.text("#banner")
        else:
            assert tab.page.locator("#banner").is_hidden()
        tab.page.evaluate("location.hash = '#at=650'")
        tab.shows("#scrub-text", "Window 649 " if altered else "Window 650 ")
        tab.page.goto("about:blank")  # it would ask again, without an answer
    finally:
        running.stop()


def test_the_server_ends(recorded: tuple[Path, RecordedJob], open_page: OpenPage) -> None:
    running = TraceServer(recorded[0])
    tab = open_trace(open_page, running.url)
    assert running.stop() == 0
    tab.shows("#chip-word", "server gone")
    assert "Start it again" in tab.text("#banner")
    assert "largest " in tab.content("#plan-words"), "what was shown stays"
    only_failed_requests(tab)


@needs_lab
def test_what_a_job_that_never_sent_dense_saved_is_predicted(tmp_path: Path, open_page: OpenPage) -> None:
    """On a slow link ``auto`` starts compressed, so no warm-up measures the dense step."""
    from gravac_lab.simulate.clock import ModelClock, Phase  # only here: see tests/support/lab.py
    from gravac_lab.simulate.job import SimulatedJob, SimulationSettings
    from gravac_lab.tasks import elements_of, make

    recipe = replace(make("digits:width=8,optimizer=adamw"), bucket_mb=0.02)
    slow = ModelClock(elements_of(recipe.build_model(1)), 2, 0.002, (Phase(0, link(3e5, 1e-5)),))
    setting = SimulationSettings(
        recipe=recipe, policy="auto", clock=slow, name="slow", ranks=2, seed=1, steps=36, window=8, points=4
    )
    trace = Path(SimulatedJob(setting, tmp_path).run()["trace"])
    running = TraceServer(trace)
    try:
        tab = open_trace(open_page, running.url)
        assert "were not measured on the network of today" in tab.text("#saved")
        assert "≈ −" not in tab.text("#saved")
        assert "(predicted)" in tab.text("#speed-note")
    finally:
        assert running.stop() == 0
