"""Kept runs beside each other, the page of a verdict, and clear errors before a program runs."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gravac_controller.cli import main
from tests.support.efficiencies import fixed_efficiencies
from tests.support.profiles import RECORDED


@pytest.fixture(autouse=True, scope="module")
def fixed_table() -> Iterator[None]:
    with fixed_efficiencies():
        yield


def run(*words: object) -> Result:
    return CliRunner().invoke(main, list(map(str, words)))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of two kept runs, in which one works."""
    for name in ("ddp", "late"):
        folder = tmp_path / "gravac-runs" / "observe" / name
        folder.mkdir(parents=True)
        for rank in (0, 1):
            shutil.copy(RECORDED / f"{name}-{rank}.json.gz", folder / f"rank{rank}.json.gz")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_two_runs_beside_each_other(runs: Path) -> None:
    done = run("observe", "--compare", "ddp", runs / "gravac-runs/observe/late", "-o", "both.html")
    assert done.exit_code == 0, done.output
    assert re.search(r"^late: Late ranks, not the network", done.output, re.MULTILINE)
    (waiting,) = re.findall(r"^Waiting for late ranks +(.+)", done.output, re.MULTILINE)
    assert float(re.split(r" ms +", waiting)[1].split()[0]) > 20.0
    page = (runs / "both.html").read_text()
    assert page.count("<svg") == 2
    assert "<h2>Compared</h2>" in page
    assert not re.search(r"<script|https?://|\ssrc=|\shref=", page)
    records = json.loads(run("observe", "--compare", "ddp", "late", "--json").stdout)
    assert {name: record["cause"] for name, record in records.items()}["late"] == "late ranks"


def test_a_page_shows_a_step_of_each_rank(runs: Path) -> None:
    done = run("doctor", "--profile", "gravac-runs/observe/late", "-o", "one.html")
    assert done.exit_code == 0, done.output
    page = (runs / "one.html").read_text()
    assert done.output.splitlines()[0][:60] in page
    assert [f"rank {rank}</text>" in page for rank in range(3)] == [True, True, False]
    for color in ("--phase-compute", "--red"):
        paths = re.findall(rf'<path d="([^"]+)" fill="var\({color}\)"', page)
        assert len(paths) == 2, color
        corners = [float(x) for path in paths for x in re.findall(r"M([\d.]+) ", path)]
        assert all(70.0 <= x <= 1070.5 for x in corners)
    assert "gradients</td>" in page


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "give the command of a training"),
        (("--compare", "ddp", "nowhere"), "nowhere: there is no such file"),
        (("--compare", "ddp", "late", "--", "python"), "runs no command"),
        (("-o", "no/such/page.html", "--", "python"), "there is no folder"),
        (("--bandwidth", "fast", "--", "python"), "'fast' is not a bandwidth"),
        (("--steps", "0", "--", "python"), "0 is not in the range"),
    ],
)
def test_misuse_is_said_before_anything_runs(runs: Path, words: tuple[str, ...], why: str) -> None:
    done = run("observe", *words)
    assert done.exit_code == 2
    assert why in done.output
    assert len(list((runs / "gravac-runs/observe").iterdir())) == 2


def test_a_page_needs_a_profile() -> None:
    done = run("doctor", "-o", "page.html", "--link", "1gbit", "--elements", "1e6", "--compute", "1")
    assert done.exit_code == 2
    assert "--output is for --profile" in done.output
