"""Dark and light, wide and narrow, and text that can be read."""

import pytest

from tools.harness.chromium import READY, OpenPage, Tab
from tools.harness.controller import Controller
from tools.harness.recorded import RecordedJob
from tools.harness.sinks import Http

pytestmark = pytest.mark.browser


@pytest.fixture(scope="session")  # a worker may come back to this file, and has one controller
def url(shared: Controller) -> str:
    """A job that holds: these tests change nothing."""
    job = "a-job-with-quite-a-long-name-for-one-line-of-a-phone"
    recorded = RecordedJob(Http(shared), job=job, policy="auto")
    recorded.play(12)
    recorded.event("note", "x" * 300)
    return f"{shared.url}/#job={job}"


def ground(tab: Tab) -> float:
    """Lightness of the page's ground, 0 to 1."""
    return float(tab.page.evaluate(f"({LUMINANCE})(getComputedStyle(document.body).backgroundColor)"))


LUMINANCE = """(text) => {
  const [r, g, b] = text.match(/[\\d.]+/g).map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}"""
CONTRASTS = f"""() => {{
  const probe = document.body.appendChild(document.createElement("span"));
  const light = (name) => {{
    probe.style.color = `var(${{name}})`;
    return ({LUMINANCE})(getComputedStyle(probe).color);
  }};
  const names = ["--ink", "--muted", "--blue", "--orange", "--green", "--purple", "--red"];
  const found = names.map((name) => [name, light(name), light("--panel")]);
  probe.remove();
  return found.map(([name, a, b]) => [name, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]);
}}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_follows_the_system_and_can_be_read(url: str, open_page: OpenPage, scheme: str) -> None:
    tab = open_page(url, scheme=scheme)
    tab.wait(READY)
    assert (ground(tab) > 0.5) == (scheme == "light")
    for name, contrast in tab.page.evaluate(CONTRASTS):
        assert contrast >= 4.5, f"{name} on the panel: {contrast:.1f}, WCAG AA wants 4.5"


def test_the_choice_of_colors_is_kept(url: str, open_page: OpenPage) -> None:
    tab = open_page(url, scheme="light")
    tab.wait(READY)
    before = tab.page.evaluate("document.querySelector('#chart-cf canvas').toDataURL()")
    tab.page.locator("#theme").click()
    assert tab.text("#theme") == "Colors: dark"
    assert ground(tab) < 0.5
    assert tab.page.evaluate("document.querySelector('#chart-cf canvas').toDataURL()") != before
    tab.page.reload()
    tab.wait(READY)
    assert ground(tab) < 0.5
    tab.page.keyboard.press("t")
    assert tab.text("#theme") == "Colors: light"
    tab.page.keyboard.press("t")
    assert tab.text("#theme") == "Colors: system"


@pytest.mark.parametrize("width", [360, 390, 768, 1000, 1400, 2560])
def test_nothing_is_wider_than_the_window(url: str, open_page: OpenPage, width: int) -> None:
    tab = open_page(url, width=width)
    tab.wait(READY)
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    sizes = tab.page.evaluate(
        "[...document.querySelectorAll('.plot')].filter((p) => p.checkVisibility())"
        ".map((p) => [p.clientWidth, p.firstChild.clientWidth])"
    )
    assert sizes
    assert all(plot == chart for plot, chart in sizes), "charts fill their place"
    narrow = max(340, width // 2)
    tab.page.set_viewport_size({"width": narrow, "height": 900})
    tab.wait(f"innerWidth === {narrow} && document.documentElement.scrollWidth <= {narrow}")
