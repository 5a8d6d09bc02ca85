"""The documentation site builds strictly: ``make docs``."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gravac
from tools.site import public_api

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.long
BROKEN = """
[a page](missing.md), [a heading](#missing-heading), [a file](../gravac/missing.py), ![a picture](missing.png),
{py:class}`documented.Missing`

<!-- generated: nothing -->
"""


def build(
    source: Path, output: Path, *, also_import_from: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """What ``make docs`` runs, with another source and output folder."""
    (line,) = re.findall(
        r"^\t\$\(BIN\)/python (-m sphinx .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    places = {
        "docs": ROOT / "docs",
        "build/doctrees": output / "doctrees",
        ".": source,
        "build/site": output / "site",
    }
    command = [str(places.get(word, word)) for word in line.split()]
    path = [str(also_import_from)] if also_import_from else []
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *path])},
        capture_output=True,
        text=True,
        check=False,
    )


def text_of(page: Path) -> str:
    return re.sub(r"<[^>]*>", "", page.read_text())


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "site"
    assert "docs/index.html" in (site / "index.html").read_text()
    python = (site / "docs/python.html").read_text()
    assert {
        name for name in gravac.__all__ if not re.search(rf'id="(module-)?gravac.{name}"', python)
    } == set()
    assert "gravac whatif" in text_of(site / "docs/commands.html")
    assert "PUT /v1/jobs/{job}/override" in text_of(site / "docs/routes.html")
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="(https?:[^"]*)"', page.read_text())
        loaded += re.findall(r'<link[^>]* href="(https?:[^"]*)"', page.read_text())
        assert loaded == [], f"{page.name} loads from elsewhere"


@pytest.fixture
def small_site(tmp_path: Path) -> Path:
    """A site of one page, with a module ``documented`` beside it."""
    source = tmp_path / "source"
    (source / "docs").mkdir(parents=True)
    shutil.copytree(ROOT / "docs/_templates", source / "docs/_templates")
    (source / "documented.py").write_text(
        '"""A module."""\n\n__all__ = ["Thing"]\n\n\nclass Thing:\n    """A thing."""\n\n'
        '    def act(self) -> None:\n        """Do something."""\n'
    )
    (source / "docs/index.md").write_text(
        "# A page\n\n[a heading](#a-page)\n\n<!-- generated: python documented -->\n"
    )
    return source


def test_what_is_whole_builds(small_site: Path, tmp_path: Path) -> None:
    """So the failures below have the cause they say."""
    done = build(small_site, tmp_path, also_import_from=small_site)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_broken_or_missing_fails(small_site: Path, tmp_path: Path) -> None:
    """Each of these alone is a warning, and a warning is a failure."""
    module = small_site / "documented.py"
    module.write_text(re.sub('"""(A thing|Do something)."""', "...", module.read_text()))
    (small_site / "docs/lost.md").write_text("# In no table of contents\n")
    page = small_site / "docs/index.md"
    page.write_text(page.read_text() + BROKEN)
    done = build(small_site, tmp_path, also_import_from=small_site)
    assert done.returncode != 0
    expected = (
        "documented.Thing has no docstring",
        "documented.Thing.act has no docstring",
        "no generator is named 'nothing'",
        "lost.md: WARNING: document isn't included in any toctree",
        "missing.md",
        "missing-heading",
        "missing.py",
        "missing.png",
        "documented.Missing",
    )
    assert {text for text in expected if text not in done.stderr} == set(), done.stderr


def test_a_dataclass_without_words_of_its_own_is_undocumented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python gives it its signature as a docstring, which says nothing."""
    (tmp_path / "plain.py").write_text(
        "from dataclasses import dataclass\n__all__ = ['Plain', 'act']\n"
        "@dataclass\nclass Plain:\n    x: int\ndef act():\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert list(public_api.undocumented("plain")) == ["plain.Plain", "plain.act"]
