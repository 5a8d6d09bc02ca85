"""Kept runs beside each other, the page of a verdict, and clear errors before a program runs."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gravac_controller.cli import main
from gravac_observe.findings.forecast import Question
from gravac_observe.findings.verdict import judge
from gravac_observe.page import page
from tests.support.efficiencies import fixed_efficiencies
from tests.support.profiles import RECORDED, Made, of, recorded


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
    assert re.search(r"^late: Several causes: ", done.output, re.MULTILINE)
    (waiting,) = re.findall(r"^Waiting for late ranks +(.+)", done.output, re.MULTILINE)
    assert float(re.split(r" ms +", waiting)[1].split()[0]) > 20.0
    written = (runs / "both.html").read_text()
    assert written.count("<svg") == 2
    assert "<h2>Compared</h2>" in written
    assert not re.search(r"<script|https?://|\ssrc=|\shref=", written)
    records = json.loads(run("observe", "--compare", "ddp", "late", "--json").stdout)
    assert {name: record["kind"] for name, record in records.items()}["late"] == "several causes"


def test_ranks_of_one_machine_are_drawn_on_one_clock(runs: Path) -> None:
    """So that one is seen to wait until the other begins its call, late in its step."""
    run("observe", "gravac-runs/observe/late", "-o", "one.html")
    written = (runs / "one.html").read_text()
    assert "All on one clock." in written
    waiting, late = (
        [
            (float(left), float(left) + float(wide))
            for left, wide in re.findall(r"M([\d.]+) \d+h([\d.]+)v", path)
        ]
        for path in re.findall(r'<path d="([^"]+)" fill="var\(--red\)"', written)
    )
    begin, end = max(waiting, key=lambda bar: bar[1] - bar[0])
    assert end - begin > 600.0
    assert end - 20.0 < late[0][0] < end


def test_a_page_shows_a_step_of_each_rank(runs: Path) -> None:
    done = run("observe", "gravac-runs/observe/late", "-o", "one.html")
    assert done.exit_code == 0, done.output
    written = (runs / "one.html").read_text()
    assert done.output.splitlines()[0][:60] in written
    assert [f"rank {rank}</text>" in written for rank in range(3)] == [True, True, False]
    for color in ("--phase-compute", "--red"):
        paths = re.findall(rf'<path d="([^"]+)" fill="var\({color}\)"', written)
        assert len(paths) == 2, color
        corners = [float(x) for path in paths for x in re.findall(r"M([\d.]+) ", path)]
        assert all(70.0 <= x <= 1070.5 for x in corners)
    assert "gradients</td>" in written


def test_hostile_names_are_text(tmp_path: Path) -> None:
    evil = "<img src=x onerror='alert(1)'>\x1b[2J&quot;"
    made = Made.usual(about={"optimizer": evil, "host": evil, "framework": evil})
    made.named(f"Optimizer.step#{evil}.step", 100.0, 5.0)
    written = page(
        [(evil, judge(of(tmp_path, made), Question(bits_per_second=1e8))), ("other", judge(recorded("tiny")))]
    )
    assert written.count("&lt;img src=x onerror=") >= 5
    assert "<img" not in written
    assert "\x1b" not in written


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "give the command of a training"),
        (("--compare", "ddp", "nowhere"), "nowhere: there is no such file"),
        (("--compare", "ddp", "latte"), "(did you mean 'late'?)"),
        (("--compare", "ddp", "late", "--", "python"), "runs no command"),
        (("-o", "no/such/page.html", "--", "python"), "there is no folder"),
        (("gravac-runs/observe/late", "-o", "no/such/page.html"), "there is no folder no/such"),
        (("--compare", "ddp", "late", "--fail-above", "20%"), "--fail-above is for one run"),
        (("--link", "fast", "--", "python"), "'fast' is not a bandwidth"),
        (("--steps", "0", "--", "python"), "0 is not in the range"),
        (("--", "A=1", "python", "x.py"), "put A=1 first: A=1 gravac observe -- python x.py"),
        (("--", "python x.py"), "leave out the quotes: gravac observe -- python x.py"),
    ],
)
def test_misuse_is_said_before_anything_runs(runs: Path, words: tuple[str, ...], why: str) -> None:
    done = run("observe", *words)
    assert done.exit_code == 2
    assert why in done.output
    assert len(list((runs / "gravac-runs/observe").iterdir())) == 2


def test_misuse_of_the_doctor(runs: Path) -> None:
    done = run("doctor", "gravac-runs/observe/late/rank0.json.gz")
    assert done.exit_code == 2
    assert "gravac observe gravac-runs/observe/late/rank0.json.gz" in " ".join(done.output.split())
