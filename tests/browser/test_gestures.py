"""Wheel and fingers on the charts, as the browser itself makes the events of them."""

import pytest

from tests.support.browser import address
from tools.harness.chromium import READY, OpenPage, Tab
from tools.harness.controller import Controller
from tools.harness.recorded import RecordedJob
from tools.harness.sinks import Http

pytestmark = pytest.mark.browser


def span(tab: Tab) -> tuple[float, float]:
    """The steps in view, by the address."""
    shown = address(tab)
    return float(shown["from"][0]), float(shown["to"][0])


def changed(tab: Tab, before: tuple[float, float]) -> tuple[float, float]:
    tab.until(lambda: span(tab) != before, f"another view than {before}")
    return span(tab)


class Fingers:
    """Touches on a chart, at shares of its width."""

    def __init__(self, tab: Tab, chart: str) -> None:
        over = tab.page.locator(f"#chart-{chart} .u-over")
        over.scroll_into_view_if_needed()
        box = over.bounding_box()
        assert box is not None
        self._box, self._cdp = box, tab.context.new_cdp_session(tab.page)

    def touch(self, kind: str, *shares: float) -> None:
        y = self._box["y"] + self._box["height"] / 2
        points = [
            {"x": self._box["x"] + share * self._box["width"], "y": y, "id": number}
            for number, share in enumerate(shares)
        ]
        self._cdp.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})


def test_wheel_and_fingers(controller: Controller, open_page: OpenPage) -> None:
    recorded = RecordedJob(Http(controller))
    recorded.until("hold")
    recorded.play(30)
    tab = open_page(controller.url)
    tab.wait(READY)
    over = tab.page.locator("#chart-gain .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    middle = box["x"] + box["width"] / 2
    tab.page.mouse.move(middle, box["y"] + box["height"] / 2)

    scrolled = tab.page.evaluate("scrollY")
    tab.page.mouse.wheel(0, 150)
    tab.until(lambda: tab.page.evaluate("scrollY") != scrolled, "a plain wheel scrolls the page")
    assert "from" not in address(tab), "and zooms nothing"
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    assert box is not None
    tab.page.mouse.move(middle, box["y"] + box["height"] / 2)

    tab.page.keyboard.down("Control")
    tab.page.mouse.wheel(0, -400)
    tab.page.keyboard.up("Control")
    tab.until(lambda: "from" in address(tab), "the wheel with Ctrl comes closer")
    low, high = close = span(tab)
    last = recorded.window * 20 - 1
    assert (low + high) / 2 == pytest.approx(last / 2, abs=0.05 * last), "around the pointer"

    tab.page.mouse.wheel(120, 0)
    low, high = moved = changed(tab, close)
    assert low > close[0]
    assert high - low == pytest.approx(close[1] - close[0], abs=0.1), "moving along does not zoom"

    fingers = Fingers(tab, "gain")
    fingers.touch("touchStart", 0.3, 0.7)
    fingers.touch("touchMove", 0.2, 0.8)
    fingers.touch("touchEnd")
    low, high = pinched = changed(tab, moved)
    assert high - low < 0.8 * (moved[1] - moved[0]), "fingers that part come closer"

    fingers.touch("touchStart", 0.6)
    fingers.touch("touchMove", 0.3)
    fingers.touch("touchEnd")
    low, high = changed(tab, pinched)
    assert low > pinched[0], "one finger moves along"
    assert high - low == pytest.approx(pinched[1] - pinched[0], abs=0.1)
    assert tab.errors == []
