"""The gain curve beside the candidates, and a window that was picked: its decision, its evidence, its address."""

import re

import pytest

from tools.harness.chromium import READY, OpenPage, Tab
from tools.harness.controller import Controller
from tools.harness.recorded import GAINS, RecordedJob
from tools.harness.sinks import Http

pytestmark = pytest.mark.browser

CURVE = "document.querySelector('#curve canvas').toDataURL()"


@pytest.fixture(scope="session")  # a worker may come back to this file, and has one controller
def controller(shared: Controller) -> Controller:
    """With a job, ``explored``, that nothing changes any more."""
    explored = RecordedJob(Http(shared), job="explored", curves=True)
    explored.until("hold")
    explored.play(4)
    return shared


def opened(open_page: OpenPage, controller: Controller, job: str, view: str = "") -> Tab:
    tab = open_page(f"{controller.url}/#job={job}{view}")
    tab.wait(READY)
    tab.wait("document.querySelector('#chart-cf canvas') !== null")
    return tab


def point(tab: Tab, cf: float) -> tuple[float, float]:
    """Where a CF is on the curve's picture, in pixels of the page: at half its height."""
    over = tab.page.locator("#curve .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    share = tab.page.evaluate(
        f"(Math.log10({cf}) - Math.log10(0.9)) / (Math.log10(1150) - Math.log10(0.9))",
    )
    return box["x"] + box["width"] * share, box["y"] + box["height"] / 2


def test_the_curve_says_what_each_cf_would_keep(controller: Controller, open_page: OpenPage) -> None:
    tab = opened(open_page, controller, "explored")
    for cf, gain in GAINS.items():
        tab.page.mouse.move(*point(tab, cf))
        tab.until(
            lambda gain=gain: re.match(rf"^{gain:.2f}0? at ", tab.text("#curve .legend .value")) is not None,  # type: ignore[misc]
            f"{gain} at CF {cf}",
        )
    said = tab.text("#curve > p")
    assert "over 3 steps and all ranks" in said
    # ε = 0.3 lies between CF 40 (0.55) and 160 (0.22), straight over the logarithm: 40 · 4^(25/33) = 114.
    assert "ε = 0.30 is met up to about CF 114" in said
    assert "Top-k" not in said, "the curve is the codec's own"


def test_what_was_tried_is_marked_on_the_curve(controller: Controller, open_page: OpenPage) -> None:
    """The picture at the start, when nothing was measured, has no marks where the later one has."""
    tab = opened(open_page, controller, "explored")
    later = tab.page.evaluate(CURVE)
    tab.page.locator("#log tr[data-window='1'] button").click()
    tab.until(lambda: tab.page.evaluate(CURVE) != later, "another picture")
    assert tab.text("#exploration-when") == "After window 1."
    assert tab.text("#candidates [aria-current] th") == "largest 10 %", "the ladder as it was"
    tab.page.locator("#exploration-now").click()
    tab.until(lambda: tab.page.evaluate(CURVE) == later, "the first picture again")
    assert tab.page.locator("#exploration-then").is_hidden()
    assert tab.text("#candidates [aria-current] th") == "largest 2.5 %"


def test_without_a_curve_it_says_so(controller: Controller, open_page: OpenPage) -> None:
    RecordedJob(Http(controller), job="uncharted").play(4)
    tab = opened(open_page, controller, "uncharted")
    assert tab.text("#curve > p").startswith(
        "No curve: it can be measured only for codecs that select by magnitude"
    )
    assert tab.page.locator("#curve canvas").count() == 1, "what was measured is drawn all the same"


def test_another_codecs_curve_is_named_top_ks(controller: Controller, open_page: OpenPage) -> None:
    recorded = RecordedJob(Http(controller), job="borrowed", curves=True)
    recorded.play(1, curve=recorded.curve().model_copy(update={"own": False}))
    tab = opened(open_page, controller, "borrowed")
    assert "It is the curve of Top-k: this codec keeps less." in tab.text("#curve > p")


def test_a_decision_opens_with_its_reason_and_evidence(controller: Controller, open_page: OpenPage) -> None:
    tab = opened(open_page, controller, "explored")
    decided = controller.ask("GET", "/v1/jobs/explored/decisions?limit=3").json["items"][2]["decision"]
    seen = controller.ask("GET", "/v1/jobs/explored/windows?limit=2").json["items"][1]
    assert decided["window"] == 1
    mark(tab, step=39)
    tab.shows("#card-title", "Decision: dense → largest 10 %")
    assert tab.text(".card-reason") == decided["reason"]
    assert "after window 1 · step 39 · " in tab.text("#card")
    assert "epoch 1 · exploring · rule: explore" in tab.text("#card")
    assert tab.text("#card [data-fact=gain] dd") == "1.00"
    assert tab.text("#card [data-fact=speed] dd") == f"{seen['samples_per_second']:.1f}"
    assert "window=1" in str(tab.page.evaluate("location.hash"))
    again = opened(open_page, controller, "explored", "&window=1")
    again.shows("#card-title", "Decision: dense → largest 10 %")
    assert again.text(".card-reason") == decided["reason"]


def mark(tab: Tab, step: int) -> None:
    """Click a little beside the decision marked at a step: marks reach 8 pixels."""
    over = tab.page.locator("#chart-cf .u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    last = int(tab.text("[data-fact=step] dd").replace(",", ""))
    tab.page.mouse.click(box["x"] + box["width"] * step / last + 4, box["y"] + box["height"] / 2)


def test_going_from_change_to_change(controller: Controller, open_page: OpenPage) -> None:
    tab = opened(open_page, controller, "explored", "&window=1")
    tab.shows("#card-title", "Decision: dense → largest 10 %")
    tab.page.get_by_role("button", name="Later change").click()
    tab.shows("#card-title", "Decision: largest 10 % → largest 5 %")
    tab.page.keyboard.press("[")
    tab.page.keyboard.press("[")
    tab.shows("#card-title", "Decision: dense")
    assert "at the start" in tab.text("#card")
    assert tab.page.get_by_role("button", name="Earlier change").is_disabled()
    tab.page.keyboard.press("Escape")
    tab.until(tab.page.locator("#card").is_hidden, "closed")
    assert "window" not in str(tab.page.evaluate("location.hash"))


def test_a_window_without_a_change_says_so(controller: Controller, open_page: OpenPage) -> None:
    tab = opened(open_page, controller, "explored", "&window=6")
    tab.shows("#card-title", "No change: largest 2.5 %")
    assert "rule: hold" in tab.text("#card")
