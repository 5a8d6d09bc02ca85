"""How quick the live page is in Chromium: ``python benchmarks/page.py [--windows 10000] [--loads 5]``.

A controller with a job of so many windows; the page is opened afresh each time. Prints when the first numbers and the
first chart were there, when all history was, how long frames take while a chart is panned, and the page's size.
"""

import argparse
import itertools
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from browser.chromium import READY, Tab, launch
from browser.sinks import Disk
from browser.story import Story
from controller.process import Controller
from playwright.sync_api import Browser, sync_playwright

WATCH = """
window.firsts = {};
(function look() {
  if (!firsts.numbers && document.querySelector("#cf")?.textContent) firsts.numbers = performance.now();
  if (!firsts.chart && document.querySelector("#chart-cf canvas")) firsts.chart = performance.now();
  requestAnimationFrame(look);
})();
"""
WEIGHT = """performance.getEntriesByType("resource").filter((entry) => entry.name.includes("/static/"))
  .concat(performance.getEntriesByType("navigation")).reduce((sum, entry) => sum + entry.transferSize, 0)"""
PAN = """async () => {
  const plot = document.querySelector("#chart-cf .plot"), frames = [], work = [];
  const key = (name, shiftKey) =>
    plot.dispatchEvent(new KeyboardEvent("keydown", {key: name, shiftKey, bubbles: true, cancelable: true}));
  key("+", false); key("+", false);
  let last = performance.now();
  for (let i = 0; i < 120; i++) {
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    frames.push(now - last);
    last = now;
    key(i % 20 < 10 ? "ArrowLeft" : "ArrowRight", true);
    await Promise.resolve();
    work.push(performance.now() - now);
  }
  return {frames: frames.slice(1), work};
}"""


def load(browser: Browser, url: str, windows: int) -> dict[str, Any]:
    """Open the page once; seconds, milliseconds a frame, and bytes."""
    tab = Tab(browser, "about:blank")
    try:
        tab.host = url.removeprefix("http://")
        tab.context.add_init_script(WATCH)
        began = time.monotonic()
        tab.page.goto(url)
        tab.wait(READY)
        tab.wait("window.firsts.chart > 0")
        firsts = tab.page.evaluate("window.firsts")
        plot = tab.page.locator("#chart-cf .plot")
        plot.focus()
        while not tab.text("#readout").startswith("Window 0 "):
            tab.page.keyboard.press("Home")
            tab.page.wait_for_timeout(50)
        history = time.monotonic() - began
        tab.page.keyboard.press("Escape")
        moved = tab.page.evaluate(PAN)
        if tab.errors:
            raise SystemExit(f"the page complained: {tab.errors}")
        return {
            "first numbers, seconds": firsts["numbers"] / 1000,
            "first chart, seconds": firsts["chart"] / 1000,
            f"all {windows:,} windows, seconds": history,
            "frame while panning, ms": median(moved["frames"]),
            "95 % of frames, ms": sorted(moved["frames"])[int(0.95 * len(moved["frames"]))],
            "script a frame, ms": median(moved["work"]),
            "page without data, kB": tab.page.evaluate(WEIGHT) / 1000,
        }
    finally:
        tab.context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=10_000)
    parser.add_argument("--loads", type=int, default=5)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        sync_playwright() as playwright,
        launch(playwright) as browser,
    ):
        disk = Disk()
        Story(disk).play(given.windows)
        disk.write(Path(folder) / "runs", itertools.count(1_700_000_000).__next__)
        controller = Controller(Path(folder) / "runs")
        try:
            loads = [load(browser, controller.url, given.windows) for _ in range(given.loads)]
        finally:
            controller.stop()
    for name in loads[0]:
        values = sorted(one[name] for one in loads)
        print(f"{name:34} {median(values):8.3f}   ({values[0]:.3f} to {values[-1]:.3f})")


if __name__ == "__main__":
    main()
