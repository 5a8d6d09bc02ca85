"""What the page is made of: vendored files are what they say, and our own keep the rules they rely on."""

import hashlib
import re
import tomllib
from pathlib import Path

import pytest
from playwright.sync_api import Browser

import gravac_controller
from gravac_controller.page.files import SCRIPT
from tools.harness.controller import Controller

STATIC = Path(gravac_controller.__file__).parent / "page" / "static"
VENDOR = STATIC / "vendor"
OURS = sorted(path for path in STATIC.iterdir() if path.suffix in {".js", ".css", ".html"})
BUDGET_BYTES = 250_000


def test_vendored_files_are_unchanged() -> None:
    listed = set()
    for package in tomllib.loads((VENDOR / "VENDORED.toml").read_text())["package"]:
        assert package["version"] in package["source"]
        for file in package["file"]:
            listed.add(file["path"])
            digest = hashlib.sha256((VENDOR / file["path"]).read_bytes()).hexdigest()
            assert digest == file["sha256"], f"{file['path']} is not the one VENDORED.toml names"
    assert listed == {path.name for path in VENDOR.iterdir()} - {"VENDORED.toml"}
    assert any(name.startswith("LICENSE") for name in listed)


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_nothing_of_ours_breaks_the_policy(path: Path) -> None:
    """No markup from strings, no code from strings, no address of another host, no inline script or style."""
    text = path.read_text()
    for forbidden in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
    ):
        assert forbidden not in text
    assert not re.search(r"""["'(=]\s*(?:https?:)?//[a-z]""", text), "an address of another host"
    if path.suffix == ".html":
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", text)


@pytest.mark.parametrize("path", [path for path in OURS if path.suffix == ".js"], ids=lambda path: path.name)
def test_modules_stay_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 150


def test_every_import_is_there() -> None:
    for path in OURS:
        for name in re.findall(r'from "\./([\w.]+)"', path.read_text()):
            assert (STATIC / name).is_file(), f"{path.name} imports {name}"
    page = (STATIC / "index.html").read_text()
    for name in re.findall(r'(?:src|href)="/static/([\w./-]+)"', page):
        assert (STATIC / name).is_file() or name == SCRIPT, f"index.html names {name}"


def test_the_page_is_light() -> None:
    everything = [*OURS, STATIC / "icon.svg", *VENDOR.glob("uPlot-*")]
    assert sum(path.stat().st_size for path in everything) < BUDGET_BYTES


LOADED = """performance.getEntriesByType("resource").concat(performance.getEntriesByType("navigation"))
  .filter((entry) => !entry.name.includes("/v1/")).reduce((sum, entry) => sum + entry.transferSize, 0)"""


@pytest.mark.browser
def test_the_page_stays_light_while_the_address_changes(controller: Controller, chromium: Browser) -> None:
    """Chromium asks for the icon at each change of the address, and a chart that is panned changes it all the time."""
    page = (
        chromium.new_context().new_page()
    )  # not a ``Tab``, which asks what is asked for and so keeps nothing
    page.goto(controller.url)
    for number in range(60):
        page.evaluate("(n) => history.replaceState(null, '', `#from=${n}`)", number)
        page.wait_for_timeout(5)
    least = sum((STATIC / name).stat().st_size for name in ("index.html", "app.css"))
    assert least < page.evaluate(LOADED) < BUDGET_BYTES
    page.reload()
    assert page.evaluate(LOADED) < least, "what the browser has is not sent again"
    page.context.close()
