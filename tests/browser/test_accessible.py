"""Nobody is shut out: axe looks at the page as it is, light and dark, and finds nothing serious."""

import pytest

from tests.support.browser import serious
from tools.harness.chromium import READY, OpenPage
from tools.harness.controller import Controller
from tools.harness.recorded import RecordedJob
from tools.harness.sinks import Http

pytestmark = pytest.mark.browser


@pytest.fixture(scope="session")  # a worker may come back to this file, and has one controller
def url(shared: Controller) -> str:
    """A job that holds and has a fault. Its windows are long: it is not stale, so not grey, after 30 s."""
    recorded = RecordedJob(Http(shared), job="accessible", window_steps=2000)
    recorded.until("hold")
    recorded.play(3)
    recorded.event("nonfinite", "a gradient was infinite on rank 1")
    return f"{shared.url}/#job=accessible"


@pytest.mark.parametrize(("scheme", "width"), [("light", 1400), ("dark", 1400), ("light", 390)])
def test_axe_finds_nothing_serious(url: str, open_page: OpenPage, scheme: str, width: int) -> None:
    tab = open_page(url, scheme=scheme, width=width)
    tab.wait(READY)
    assert serious(tab) == []


def test_axe_finds_what_is_wrong(url: str, open_page: OpenPage) -> None:
    """A button without a name, or the test above would pass on anything."""
    tab = open_page(url)
    tab.wait(READY)
    tab.page.evaluate("document.body.append(document.createElement('button'))")
    assert any(each.startswith("button-name") for each in serious(tab))
