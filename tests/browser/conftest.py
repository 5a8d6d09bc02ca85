"""Real Chromium on a real controller. Skips, saying how to get it, where there is no Chromium."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from tools.harness.chromium import HOW, OpenPage, Tab, find_chromium, launch
from tools.harness.controller import Controller


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked ``browser`` without Chromium."""
    if find_chromium() is None:
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(pytest.mark.skip(reason=HOW))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for the tests of a file; each page gets a context of its own."""
    with sync_playwright() as playwright, launch(playwright) as browser:
        yield browser


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Controller]]:
    """Start controllers on ``tmp_path/runs``; all are stopped at the end."""
    started: list[Controller] = []

    def start_one(port: int = 0) -> Controller:
        started.append(Controller(tmp_path / "runs", port=port))
        return started[-1]

    yield start_one
    for controller in started:
        controller.stop()


@pytest.fixture
def controller(start: Callable[..., Controller]) -> Controller:
    return start()


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[OpenPage]:
    """Open the page; at the end, nothing may have been asked of other hosts or refused.

    A test that breaks the connection on purpose clears ``errors`` of the refused requests it caused.
    """
    opened: list[Tab] = []

    def open_one(url: str, **look: Any) -> Tab:
        opened.append(Tab(chromium, url, **look))
        return opened[-1]

    yield open_one
    try:
        for tab in opened:
            assert tab.foreign == []
            assert tab.violations == []
            assert tab.errors == []
    finally:
        for tab in opened:
            tab.context.close()
