"""Steering from the page: only where it is allowed, by a token that stays in memory, about the epoch that was seen."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Route

from tests.support.browser import only_failed_requests
from tools.harness.chromium import READY, OpenPage, Tab
from tools.harness.controller import Controller
from tools.harness.recorded import RecordedJob
from tools.harness.sinks import Http

pytestmark = pytest.mark.browser

TOKEN = "an-operators-token-0123456789abc"
TAKEN = "Accepted. "
SLOW_ORDERS = """() => {
  const send = window.fetch;
  window.fetch = async (path, options) => {
    if (options?.method === "PUT") await new Promise((done) => setTimeout(done, 300));
    return send(path, options);
  };
}"""
"""An order takes 0.3 s to leave the page, as on a busy machine: a test that reports the next window without waiting for
the controller's answer fails every time, not once in a while. (The window then comes first, the order waits for one
that is never reported, and the job turns stale: the test is its trainer.)"""


@pytest.fixture(scope="module")
def steered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    """A controller with control on; each test has a job of its own."""
    folder = tmp_path_factory.mktemp("steered") / "runs"
    running = Controller(folder, env={"GRAVAC_CONTROLLER_CONTROL_TOKEN": TOKEN})
    yield running
    running.stop()


def opened(open_page: OpenPage, controller: Controller, job: str) -> Tab:
    tab = open_page(f"{controller.url}/#job={job}")
    tab.wait(READY)
    tab.page.evaluate(SLOW_ORDERS)
    return tab


def sign(tab: Tab, token: str = TOKEN, actor: str = "alice") -> None:
    """Type token and name."""
    tab.page.locator("#steer-token").fill(token)
    tab.page.locator("#steer-actor").fill(actor)


def confirm(tab: Tab, button: str, answer: str = TAKEN) -> None:
    """Press a button, say yes, and wait until the page shows the controller's answer."""
    tab.page.locator(button).click()
    tab.page.locator("#steer-yes").click()  # the page has cleared the answer to any order before
    result(tab, answer)


def result(tab: Tab, text: str) -> None:
    tab.shows("#steer-result", text)


def order_of(controller: Controller, job: str) -> object:
    found = controller.ask("GET", f"/v1/jobs/{job}/override").json
    return found["waiting"] or found["in_force"]


def test_hidden_where_control_is_off(shared: Controller, open_page: OpenPage) -> None:
    RecordedJob(Http(shared), job="unsteered").play()
    tab = opened(open_page, shared, "unsteered")
    assert tab.page.locator("#steer").is_hidden()


def test_pin_and_give_back(steered: Controller, open_page: OpenPage) -> None:
    recorded = RecordedJob(Http(steered), job="pinned")
    recorded.play(3)
    tab = opened(open_page, steered, "pinned")
    assert tab.text("#steer-now") == "The policy decides."
    assert tab.page.locator("#steer-resume").is_disabled()
    sign(tab)
    tab.page.locator("#steer-note").fill("a test")
    tab.page.locator("#steer-cf").fill("33.5")
    tab.page.locator("#steer-pin").click()
    tab.shows(
        "#steer-question",
        "Pin CF 33.5, whatever it costs, for “pinned”? Now: largest 10 %, exploring, epoch ",
    )
    assert order_of(steered, "pinned") is None, "asking orders nothing"
    tab.page.locator("#steer-yes").click()
    result(tab, TAKEN)
    tab.shows("#steer-now", "The policy decides. Waiting for the next window: alice: pin CF 33.5 (“a test”).")
    assert tab.text("#phase") == "Ordered by alice"
    recorded.play()
    tab.shows("#steer-now", "In force: alice: pin largest 2.99 % (“a test”).")
    assert tab.text("#phase") == "Pinned by alice"
    assert tab.text("#advice-command") == "gravac steer pinned resume"
    assert "by alice: " in tab.text("#changed")
    assert "alice pinned CF 33.5" in tab.text("#reason")
    assert "alice pinned CF 33.5" in tab.text("#events")
    confirm(tab, "#steer-resume")
    recorded.play()
    tab.shows("#steer-now", "The policy decides.")
    tab.until(lambda: "alice" not in tab.text("#phase"), "no order is in force")


def test_the_token_stays_in_memory(steered: Controller, open_page: OpenPage) -> None:
    RecordedJob(Http(steered), job="secret").play()
    tab = opened(open_page, steered, "secret")
    sign(tab)
    confirm(tab, "#steer-dense")
    held = tab.page.evaluate(
        """[location.href, document.cookie, JSON.stringify({...localStorage}), JSON.stringify({...sessionStorage}),
        document.documentElement.outerHTML, ...[...document.querySelectorAll('input')].map((input) => input.value)]"""
    )
    assert not any(TOKEN in text for text in held)
    tab.page.locator("#steer-forget").click()
    tab.page.locator("#steer-pause").click()
    result(tab, "Enter the control token first.")
    assert tab.page.evaluate("document.activeElement.id") == "steer-token"


def test_a_wrong_token_is_refused(steered: Controller, open_page: OpenPage) -> None:
    RecordedJob(Http(steered), job="stranger").play()
    tab = opened(open_page, steered, "stranger")
    sign(tab, token="something-else-0123456789")
    confirm(tab, "#steer-dense", "Rejected: steering needs the control token")
    assert order_of(steered, "stranger") is None
    only_failed_requests(tab)


def test_an_order_whose_answer_is_lost_may_have_been_taken(steered: Controller, open_page: OpenPage) -> None:
    """The controller journals the order, the answer does not come (a slow disk, a cut connection)."""
    recorded = RecordedJob(Http(steered), job="unanswered")
    recorded.play(3)
    tab = opened(open_page, steered, "unanswered")
    sign(tab)

    def lose_the_answer(route: Route) -> None:
        if route.request.method != "PUT":
            route.fallback()
            return
        assert route.fetch().status == 202
        route.abort()

    tab.page.route("**/override", lose_the_answer)
    confirm(tab, "#steer-dense", "No answer ")
    assert "may have been accepted" in tab.text("#steer-result")
    assert order_of(steered, "unanswered") is not None
    tab.shows("#steer-now", "The policy decides. Waiting for the next window: alice: dense.")
    only_failed_requests(tab)


def test_an_order_about_an_epoch_that_has_passed(steered: Controller, open_page: OpenPage) -> None:
    recorded = RecordedJob(Http(steered), job="moving")
    recorded.play(2)
    tab = opened(open_page, steered, "moving")
    sign(tab)
    tab.page.locator("#steer-dense").click()
    tab.wait("document.querySelector('#steer-dialog').open")
    epoch = recorded.decision.epoch
    recorded.play_until(lambda decision: decision.epoch != epoch, "decision of another epoch")
    tab.page.locator("#steer-yes").click()
    result(tab, "Rejected: the job has a newer decision")
    assert order_of(steered, "moving") is None
    only_failed_requests(tab)


def test_what_is_typed_wrong_is_said_before_anything_is_sent(
    steered: Controller, open_page: OpenPage
) -> None:
    RecordedJob(Http(steered), job="typos").play()
    tab = opened(open_page, steered, "typos")
    sign(tab, actor="not a name")
    tab.page.locator("#steer-dense").click()
    result(tab, "Enter your name")
    tab.page.locator("#steer-actor").fill("alice@example.org")
    tab.page.locator("#steer-cf").fill("0.5")
    tab.page.locator("#steer-pin").click()
    result(tab, "The compression factor must be at least 1")
    tab.page.locator("#steer-pause").click()
    tab.page.locator("#steer-no").click()
    assert order_of(steered, "typos") is None
