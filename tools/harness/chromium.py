"""Headless Chromium on one page, with a record of requests and errors that the page should not cause."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit

from playwright.sync_api import Browser, Playwright, Route, sync_playwright

PATIENCE_SECONDS = 60.0
"""Timeout: longer than anything takes on a busy machine."""
READY = "document.querySelector('#plan').textContent !== ''"
"""True once the page shows a job."""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HOW = "needs Chromium (Debian: apt-get install chromium)"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DRAW_MS = 1500
"""Charts appear up to half a second after the numbers, and bars and colors fade in."""
COUNT_VIOLATIONS = """
window.violations = [];
addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`);
});
"""


def find_chromium() -> str | None:
    """Path of an installed Chromium, or null."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def launch(playwright: Playwright) -> Browser:
    """Start Chromium with a fresh profile."""
    return playwright.chromium.launch(executable_path=find_chromium(), headless=True, args=list(FLAGS))


class Tab:
    """One page at ``url`` in a separate browser context. Requests to other hosts are refused.

    ``foreign``: refused addresses. ``errors``: console errors and uncaught exceptions. Both should stay empty.
    """

    def __init__(
        self,
        browser: Browser,
        url: str,
        *,
        width: int = 1400,
        height: int = 900,
        scheme: Literal["dark", "light"] = "light",
        scale: float = 1,
    ) -> None:
        self.host = urlsplit(url).netloc
        self.foreign: list[str] = []
        self.errors: list[str] = []
        self.context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            reduced_motion="reduce",  # smooth scrolling moves what a test points at
            device_scale_factor=scale,
            accept_downloads=True,
        )
        self.context.add_init_script(COUNT_VIOLATIONS)
        self.context.route("**/*", self._only_ours)
        self.page = self.context.new_page()
        self.page.set_default_timeout(1000 * PATIENCE_SECONDS)
        self.page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(url)

    def _only_ours(self, route: Route) -> None:
        address = urlsplit(route.request.url)
        if address.netloc == self.host or address.scheme in {"blob", "data"}:
            route.continue_()
        else:
            self.foreign.append(route.request.url)
            route.abort()

    @property
    def violations(self) -> list[str]:
        """What the page's content security policy refused."""
        return list(self.page.evaluate("window.violations"))

    def text(self, selector: str) -> str:
        """Visible text of the first match."""
        return self.page.locator(selector).first.inner_text()

    def content(self, selector: str) -> str:
        """Text of the first match, also of what is folded."""
        return self.page.locator(selector).first.text_content() or ""

    def wait(self, condition: str) -> None:
        """Wait until a JavaScript expression is true. (Playwright's own way needs eval, which the CSP forbids.)"""
        self.until(lambda: bool(self.page.evaluate(condition)), condition)

    def shows(self, selector: str, text: str) -> None:
        """Wait until the first match of ``selector`` begins with this text."""
        try:
            self.until(lambda: self.text(selector).startswith(text), f"{selector} begins with {text!r}")
        except AssertionError as error:
            error.add_note(f"{selector} is {self.text(selector)!r}")
            raise

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until ``holds()``, giving the page time; AssertionError with ``what`` and the page's text if never.

        While this waits, the test reports no window: on the page of a running job "stale" follows from the wait.
        """
        end = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            if time.monotonic() > end:
                raise AssertionError(f"not within {PATIENCE_SECONDS} s: {what}\n{self.text('body')}")
            self.page.wait_for_timeout(50)

    def shoot(self, path: Path, *, whole: bool = True) -> None:
        """Write a PNG of the whole page, or of what fits the window."""
        if whole:
            # In a window of that height: everything that loads when visible loads, and fixed bars are at the edge.
            height = self.page.evaluate("document.documentElement.scrollHeight")
            width = self.page.evaluate("innerWidth")
            self.page.set_viewport_size({"width": width, "height": height})
        self.page.wait_for_timeout(DRAW_MS)
        self.page.screenshot(path=str(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.context.close()


OpenPage = Callable[..., Tab]
"""The fixture ``open_page``: a URL and Tab's keywords in, a tab out."""


@contextmanager
def open_tab(
    url: str,
    *,
    width: int = 1400,
    height: int = 900,
    scheme: Literal["dark", "light"] = "light",
    scale: float = 1,
) -> Iterator[Tab]:
    """A tab outside of pytest. Raises RuntimeError without Chromium."""
    if find_chromium() is None:
        raise RuntimeError(f"this {HOW}")
    with (
        sync_playwright() as playwright,
        launch(playwright) as browser,
        Tab(browser, url, width=width, height=height, scheme=scheme, scale=scale) as tab,
    ):
        yield tab
