"""What tests of the live page share: reading it, `gravac ui` as a process, and axe."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs

from axe_playwright_python.sync_playwright import Axe

from tools.harness.chromium import READY, OpenPage, Tab
from tools.harness.controller import PATIENCE_SECONDS
from tools.harness.forked import first_line

PARTS = (
    "#speed", "#speed-note", "#risk-word", "#plan", "#plan-note", "#plan-words", "#phase", "#changed", "#reason",
    "#tiles", "#saved", "#risk", "#facts", "#candidates", "#curve > p", "#ranks", "#log", "#faults", "#events",
    "#chart-cf .legend", "#chart-gain .legend",
)  # fmt: skip
"""All that the page says of a job, but its state and the age of its last report."""
SERIOUS = {"serious", "critical"}


class TraceServer:
    """``gravac ui`` on a trace, until ``stop``."""

    def __init__(self, trace: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "gravac_controller", "ui", str(trace), *arguments]
        # A controller's settings must not open this one to others.
        env = os.environ | {"GRAVAC_CONTROLLER_HOST": "0.0.0.0"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=env)
        assert self.process.stdout is not None
        try:
            self.first_line = first_line(self.process.stdout).decode()
            found = re.search(r"http://127\.0\.0\.1:\d+", self.first_line)
            assert found, self.first_line
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


def shows(tab: Tab, selector: str, text: str) -> None:
    """Wait until the first match of ``selector`` has exactly this text."""
    tab.until(lambda: tab.text(selector) == text, f"{selector} is {text!r}")


def address(tab: Tab) -> dict[str, list[str]]:
    """What the address holds now (Playwright's own ``page.url`` follows a moment later)."""
    return parse_qs(str(tab.page.evaluate("location.hash.slice(1)")))


def only_failed_requests(tab: Tab) -> None:
    """The console may report requests that failed; nothing else."""
    assert all(text.startswith("Failed to load resource: ") for text in tab.errors), tab.errors
    tab.errors.clear()


def serious(tab: Tab) -> list[str]:
    """Each serious finding: rule, what it is, and where."""
    found = Axe().run(tab.page).response["violations"]
    return [
        f"{each['id']}: {each['help']} at {node['target']}"
        for each in found
        if each["impact"] in SERIOUS
        for node in each["nodes"]
    ]


def texts_of(tab: Tab) -> dict[str, str]:
    """Everything said, part by part."""
    return {part: tab.content(part) for part in PARTS}


def open_trace(open_page: OpenPage, url: str) -> Tab:
    tab = open_page(url)
    tab.wait(READY)
    tab.shows("#scrub-text", "Window ")
    return tab
