"""Zoom, cursor, axis, keyboard, pause, links: what a person can do with the charts."""

import csv

import pytest

from tests.support.browser import address
from tools.harness.chromium import READY, OpenPage, Tab
from tools.harness.controller import Controller
from tools.harness.recorded import LONG_WINDOW, RecordedJob
from tools.harness.sinks import Http

pytestmark = pytest.mark.browser


@pytest.fixture
def recorded(controller: Controller) -> RecordedJob:
    recorded = RecordedJob(Http(controller))
    recorded.until("hold")
    recorded.play(20)
    return recorded


def drag(tab: Tab, chart: str, start: float, end: float) -> None:
    """Drag over a chart from one share of its width to another."""
    over = tab.page.locator(f"#chart-{chart} .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    y = box["y"] + box["height"] / 2
    tab.page.mouse.move(box["x"] + box["width"] * start, y)
    tab.page.mouse.down()
    tab.page.mouse.move(box["x"] + box["width"] * (start + end) / 2, y)
    tab.page.mouse.move(box["x"] + box["width"] * end, y)
    tab.page.mouse.up()


def cursors(tab: Tab) -> list[float]:
    """Where the cursor line is on each chart, as a share of its width; negative when it is not shown."""
    return list(
        tab.page.evaluate(
            """[...document.querySelectorAll('#grid .u-over')].map((over) =>
            new DOMMatrix(getComputedStyle(over.querySelector('.u-cursor-x')).transform).m41 / over.clientWidth)"""
        )
    )


def test_zoom_is_shared_and_in_the_address(
    recorded: RecordedJob, controller: Controller, open_page: OpenPage
) -> None:
    tab = open_page(controller.url)
    tab.wait(READY)
    assert tab.page.locator("#zoom-reset").is_hidden()
    drag(tab, "gain", 0.25, 0.5)
    tab.until(lambda: {"from", "to"} <= set(address(tab)), "the address holds the zoom")
    last = recorded.window * 20 - 1
    low, high = float(address(tab)["from"][0]), float(address(tab)["to"][0])
    assert low == pytest.approx(0.25 * last, abs=6)
    assert high == pytest.approx(0.5 * last, abs=6)
    recorded.play()
    tab.wait(f"document.querySelector('[data-fact=step] dd').textContent === '{recorded.window * 20 - 1}'")
    assert float(address(tab)["to"][0]) == high, "new windows do not move a zoomed view"
    again = open_page(tab.page.evaluate("location.href"))
    again.wait("!document.querySelector('#zoom-reset').hidden")
    tab.page.locator("#chart-loss .u-over").dblclick()
    tab.until(lambda: address(tab) == {}, "the address is bare")
    tab.until(tab.page.locator("#zoom-reset").is_hidden, "no zoom to reset")


def test_cursor_is_linked(recorded: RecordedJob, controller: Controller, open_page: OpenPage) -> None:
    tab = open_page(controller.url)
    tab.wait(READY)
    over = tab.page.locator("#chart-backlog .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    tab.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 40)
    tab.until(lambda: cursors(tab) == pytest.approx([0.5] * 7, abs=0.01), "all cursors at a half")
    tab.shows("#readout", "Window ")


def test_a_decision_moves_the_cursor_of_all_charts(
    recorded: RecordedJob, controller: Controller, open_page: OpenPage
) -> None:
    tab = open_page(controller.url)
    tab.wait(READY)
    drag(tab, "gain", 0.7, 0.9)
    tab.page.locator("#log tr[data-window='3'] button").click()
    tab.shows("#readout", "Window 3 · step 79 ·")
    assert "then: CF 20 keeps 0.58" in tab.text("#readout")
    tab.until(lambda: address(tab) == {"window": ["3"]}, "zoomed out: window 3 was not in view")
    where = 79 / (recorded.window * 20 - 1)
    tab.until(lambda: cursors(tab) == pytest.approx([where] * 7, abs=0.01), f"all cursors at {where}")
    assert tab.page.locator("#log tr.picked").get_attribute("data-window") == "3"
    assert tab.page.locator("#chart-gain .legend .value").all_inner_texts()[0] == "0.58"


def test_keyboard(recorded: RecordedJob, controller: Controller, open_page: OpenPage) -> None:
    tab = open_page(controller.url)
    tab.wait(READY)
    plot = tab.page.locator("#chart-cf .plot")
    plot.focus()
    tab.page.keyboard.press("Home")
    tab.shows("#readout", "Window 0 ·")
    tab.page.keyboard.press("ArrowRight")
    tab.shows("#readout", "Window 1 ·")
    tab.until(lambda: "Sent dense" in str(plot.get_attribute("aria-label")), "for screen readers")
    tab.page.keyboard.press("+")
    tab.until(lambda: "from" in address(tab), "zoomed in")
    tab.page.keyboard.press("Escape")
    tab.until(lambda: address(tab) == {}, "zoomed out")
    tab.until(lambda: tab.text("#readout") == "", "nothing picked")
    ring = "getComputedStyle(document.activeElement).outlineStyle"
    assert tab.page.evaluate(ring) == "solid", "focus can be seen"


def test_a_mouse_that_rests_leaves_the_cursor_to_the_keys(
    recorded: RecordedJob, controller: Controller, open_page: OpenPage
) -> None:
    """What a key opens moves the charts: one leaves the mouse, another comes to lie under it. Nobody pointed at it."""
    tab = open_page(controller.url)
    tab.wait(READY)
    gain, backlog = (tab.page.locator(f"#chart-{name} .plot") for name in ("gain", "backlog"))
    gain.focus()
    tab.page.keyboard.press("Home")
    tab.shows("#readout", "Window 0 ·")
    backlog.hover()
    tab.until(lambda: not tab.text("#readout").startswith("Window 0 ·"), "the mouse has the cursor")
    tab.page.keyboard.press("ArrowRight")
    tab.shows("#readout", "Window 1 ·")
    for part in (gain.locator(".u-over"), gain):
        part.dispatch_event("mouseleave")
    tab.page.wait_for_timeout(200)
    tab.shows("#readout", "Window 1 ·")


def test_time_axis(recorded: RecordedJob, controller: Controller, open_page: OpenPage) -> None:
    tab = open_page(controller.url)
    tab.wait(READY)
    tab.page.locator("#axis-time").click()
    tab.until(lambda: address(tab) == {"x": ["time"]}, "the address holds the axis")
    assert tab.page.locator("#axis-time").get_attribute("aria-pressed") == "true"
    assert tab.page.locator("#grid canvas").count() == 7
    drag(tab, "gain", 0.25, 0.75)
    tab.until(lambda: "from" in address(tab), "zoomed in")
    low = float(address(tab)["from"][0])
    assert low > 1.7e9, "Unix seconds"


def test_pause_freezes_and_resume_catches_up(
    recorded: RecordedJob, controller: Controller, open_page: OpenPage
) -> None:
    tab = open_page(controller.url)
    tab.wait(READY)
    reason = tab.text("#reason")
    tab.page.locator("#pause").click()
    recorded.play(3, **LONG_WINDOW)
    tab.page.wait_for_timeout(1500)
    assert tab.text("#reason") == reason
    drag(tab, "gain", 0.25, 1.0)
    tab.page.locator("#chart-gain .plot").focus()
    tab.page.keyboard.press("End")
    tab.shows("#readout", f"Window {recorded.window - 4} ·")  # looking around shows nothing new
    tab.page.keyboard.press("Escape")
    tab.until(lambda: "Paused" in tab.text("#banner"), "the page says that it is paused")
    assert tab.text("#chip-word") == "running"
    tab.page.locator("#pause").click()
    tab.wait(f"document.querySelector('[data-fact=window] dd').textContent === '{recorded.window - 1}'")
    tab.until(tab.page.locator("#banner").is_hidden, "no banner")


def test_downloads(recorded: RecordedJob, controller: Controller, open_page: OpenPage) -> None:
    tab = open_page(controller.url)
    tab.wait(READY)
    with tab.page.expect_download() as trace:
        tab.page.locator("#trace").click()
    assert trace.value.suggested_filename == "demo.jsonl"
    assert trace.value.path().read_bytes() == controller.ask("GET", "/v1/jobs/demo/trace").body
    with tab.page.expect_download() as table:
        tab.page.locator("#csv").click()
    rows = list(csv.DictReader(table.value.path().read_text().splitlines()))
    assert [int(row["window"]) for row in rows] == list(range(recorded.window))
    windows = controller.ask("GET", "/v1/jobs/demo/windows?limit=1000").json["items"]
    assert [float(row["gain"]) for row in rows] == [view["gain"] for view in windows]
    assert f"curl -sS '{controller.url}/v1/jobs/demo/trace'" in tab.text("#curl")
