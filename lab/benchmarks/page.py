"""Speed of the live page in Chromium: ``python lab/benchmarks/page.py [--windows 10000] [--loads 5] [--trace FILE]``.

Opens the page of a job with that many windows several times. Prints the time to the first numbers, the first chart and
the complete history, the duration of frames while a chart is panned, and the size of the page. With ``--trace``: the
time from the start of ``gravac ui FILE`` to its first answer, its first chart, and the complete trace. A missing FILE
is created first, with that many windows.
"""

import argparse
import itertools
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # tools
from playwright.sync_api import Browser, sync_playwright
from traces import STORED, make

from tools.harness.chromium import READY, Tab, launch
from tools.harness.controller import Controller
from tools.harness.recorded import RecordedJob
from tools.harness.sinks import Disk

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


LONGEST_SECONDS = 600.0
"""Timeout for a trace."""


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
        # A tab has no cache, so each change of the address would fetch the icon again.
        weight = tab.page.evaluate(WEIGHT)
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
            "page without data, kB": weight / 1000,
        }
    finally:
        tab.context.close()


def look_back(browser: Browser, trace: Path) -> dict[str, Any]:
    """``gravac ui`` once, from its start; seconds."""
    began = time.monotonic()
    command = [sys.executable, "-m", "gravac_controller", "ui", str(trace)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        found = re.search(r"http://\S+", running.stdout.readline())
        if found is None:
            raise SystemExit("gravac ui gave no address")
        answers = time.monotonic() - began
        tab = Tab(browser, "about:blank")
        try:
            tab.host = found[0].removeprefix("http://")
            tab.page.goto(found[0])
            tab.wait("document.querySelector('#chart-cf canvas') !== null")
            chart, first = time.monotonic() - began, tab.text("#scrub-text")
            print(f"the first chart after {chart:.2f} s, {first}", flush=True)
            while time.monotonic() < began + LONGEST_SECONDS and tab.text("#scrub-text").endswith("%"):
                tab.page.wait_for_timeout(50)
            everything = time.monotonic() - began
            print(f"all after {everything:.2f} s, {tab.text('#scrub-text')}")
            if tab.errors:
                raise SystemExit(f"the page complained: {tab.errors}")
        finally:
            tab.context.close()
    finally:
        running.send_signal(signal.SIGINT)
        running.wait()
    return {
        "gravac ui answers, seconds": answers,
        "first chart, seconds": chart,
        "all of the trace, seconds": everything,
    }


def shown(loads: list[dict[str, Any]]) -> None:
    """Median and range of each figure."""
    for name in loads[0]:
        values = sorted(one[name] for one in loads)
        print(f"{name:34} {median(values):8.3f}   ({values[0]:.3f} to {values[-1]:.3f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=int, default=10_000)
    parser.add_argument("--loads", type=int, default=5)
    parser.add_argument("--trace", type=Path, help="measure gravac ui on this file instead")
    given = parser.parse_args()
    if given.trace is not None:
        if not given.trace.exists():
            make(STORED, given.trace, given.windows)
        with sync_playwright() as playwright, launch(playwright) as browser:
            shown([look_back(browser, given.trace) for _ in range(given.loads)])
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        sync_playwright() as playwright,
        launch(playwright) as browser,
    ):
        disk = Disk()
        RecordedJob(disk).play(given.windows)
        disk.write(Path(folder) / "runs", itertools.count(1_700_000_000).__next__)
        controller = Controller(Path(folder) / "runs")
        try:
            loads = [load(browser, controller.url, given.windows) for _ in range(given.loads)]
        finally:
            controller.stop()
    shown(loads)


if __name__ == "__main__":
    main()
