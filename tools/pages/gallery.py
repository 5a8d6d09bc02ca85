"""Pictures of the live page in each of its states: ``python -m tools.pages.gallery FOLDER [STATE …]``.

Plays the simulated job of the tests to a real controller and takes a screenshot of every state, light and dark, at
desktop and phone width. Look at each of them after a change of the page's design.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, sync_playwright

from tools.harness.chromium import READY, Tab, launch
from tools.harness.controller import Controller
from tools.harness.recorded import RecordedJob
from tools.harness.sinks import Http

LOOKS: tuple[tuple[str, Literal["light", "dark"], int], ...] = (
    ("light", "light", 1400),
    ("dark", "dark", 1400),
    ("narrow", "light", 1000),
    ("phone", "dark", 390),
)


def at_start(recorded: RecordedJob) -> None:
    recorded.play(1)


def exploring(recorded: RecordedJob) -> None:
    recorded.play_until(lambda decision: decision.cf_candidate == 40, "CF 40")
    recorded.play()


def holding(recorded: RecordedJob) -> None:
    recorded.until("hold")
    recorded.play(24)
    recorded.event("nonfinite", "a gradient was infinite on rank 1")
    recorded.play(1, nonfinite_steps=1)
    recorded.play(14)


STATES: dict[str, Callable[[RecordedJob], None]] = {
    "start": at_start,
    "exploring": exploring,
    "holding": holding,
}
TOKEN = {"GRAVAC_CONTROLLER_CONTROL_TOKEN": "a-token-for-a-picture"}
"""Control is on in the pictures, so that its buttons are seen."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Pictures of the live page in each of its states.")
    parser.add_argument("folder", type=Path, help="where to put them")
    parser.add_argument("states", nargs="*", help=f"which ones: {', '.join(STATES)}, lost [all]")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    wanted = given.states or [*STATES, "lost"]
    complaints: list[str] = []
    with sync_playwright() as playwright, launch(playwright) as browser:
        for name in wanted:
            complaints += take(browser, given.folder, name)
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


def take(browser: Browser, folder: Path, name: str) -> list[str]:
    """One state in every look. Returns what the pages complained of."""
    with tempfile.TemporaryDirectory() as data:
        controller = Controller(Path(data) / "runs", env=TOKEN)
        try:
            sink, slow = Http(controller), {3: range(14, 22)}
            STATES.get(name, holding)(
                RecordedJob(sink, job="word-model", world_size=8, curves=True, straggles=slow)
            )
            tabs = [
                (look, Tab(browser, controller.url, scheme=scheme, width=width))
                for look, scheme, width in LOOKS
            ]
            for _, tab in tabs:
                tab.wait(READY)
                tab.page.locator("#heat-box").scroll_into_view_if_needed()
                tab.wait("document.querySelector('#heat-note').textContent !== ''")
                tab.page.evaluate("scrollTo(0, 0)")
            if name == "lost":
                controller.kill()
                for _, tab in tabs:
                    tab.wait("document.body.dataset.status === 'lost'")
                    tab.errors.clear()
            for look, tab in tabs:
                tab.shoot(folder / f"{name}-{look}.png")
            said = [one for _, tab in tabs for one in (*tab.errors, *tab.violations, *tab.foreign)]
            return [one for one in said if name != "lost" or "ERR_CONNECTION_REFUSED" not in one]
        finally:
            controller.stop()


if __name__ == "__main__":
    sys.exit(main())
