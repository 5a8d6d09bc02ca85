"""``gravac report``: what it writes and refuses. The page itself: tests/browser/test_report.py."""

import gzip
import re
import shlex
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from gravac_controller.cli import main
from gravac_controller.report import summary
from gravac_controller.report.figure import COLORS
from gravac_controller.report.summary import summarize
from tests.support.figures import texts
from tools.harness.recorded import RecordedJob
from tools.harness.sinks import Disk

DOCUMENT = Path(__file__).parents[3] / "docs/reports.md"
BUDGET_BYTES = 10_000_000
BUDGET_WINDOWS = 10_000


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that carries a gain curve in every window, as the largest traces do."""
    folder = tmp_path_factory.mktemp("runs")
    disk = Disk()
    RecordedJob(disk, curves=True).play(200)
    disk.write(folder, iter(range(1_700_000_000, 1_800_000_000)).__next__)
    return folder / "demo"


def report(*words: Path | str) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, words)])


def test_a_page_is_small_and_whole(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "it.html"
    result = report(trace, "-o", path)
    assert result.exit_code == 0, result.output
    text = path.read_text(encoding="utf-8")
    assert not re.search(
        r'(?:src|href)="(?!data:|#)',
        re.sub(r"<script.*?</script>|class=\"served\"[^>]*", "", text, flags=re.S),
    )
    without = len(text) - len(re.search(r'id="report-data">(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    assert without + (len(text) - without) / 200 * BUDGET_WINDOWS < BUDGET_BYTES


def test_the_figure_as_svg(trace: Path, tmp_path: Path) -> None:
    result = report(trace, trace, "-o", tmp_path / "it.svg")
    assert result.exit_code == 0, result.output
    root = ElementTree.parse(tmp_path / "it.svg").getroot()
    assert {"Compression factor", "Gain", "Step", "dense", "10", "demo", "demo (2)"} <= texts(root)
    text = (tmp_path / "it.svg").read_text()
    assert COLORS[0] in text
    assert COLORS[1] in text


def test_the_same_trace_gives_the_same_figure(trace: Path, tmp_path: Path) -> None:
    """Byte for byte: a figure in a repository changes only with its data."""
    for name in ("one.svg", "two.svg"):
        assert report(trace, "-o", tmp_path / name).exit_code == 0
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_the_figure_as_png(trace: Path, tmp_path: Path) -> None:
    result = report(trace, "-o", tmp_path / "it.png")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("form", ["svg", "png"])
def test_a_figure_needs_an_extra(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = report(trace, "-o", tmp_path / f"it.{form}")
    assert result.exit_code == 2
    assert "pip install 'gravac[plots]'" in result.output


def test_the_commands_of_the_page_about_it_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a recorded trace."""
    monkeypatch.chdir(tmp_path)
    packed = (DOCUMENT.parents[1] / "tests/traces/mlp-nan.jsonl.gz").read_bytes()
    job = Path("gravac-runs/my-job")
    job.mkdir(parents=True)
    (job / "journal.jsonl").write_bytes(gzip.decompress(packed))
    for name in ("dense.jsonl.gz", "gravac.jsonl.gz"):
        Path(name).write_bytes(packed)
    ran = 0
    for block in re.findall(r"^```sh\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            words = shlex.split(line)
            result = CliRunner().invoke(main, words[1:])
            assert result.exit_code == 0, f"{line}\n{result.output}"
            assert Path(words[-1]).exists()
            ran += 1
    assert ran == 6


def test_what_cannot_be_is_refused(trace: Path, tmp_path: Path) -> None:
    assert "Missing option '-o' / '--output'" in report(trace).output
    assert "it.txt' does not end in .html or .svg or .png" in report(trace, "-o", tmp_path / "it.txt").output
    assert "at most 12 traces" in report(*[trace] * 13, "-o", tmp_path / "it.html").output
    (tmp_path / "notes.txt").write_text("hello\n")
    result = report(tmp_path / "notes.txt", "-o", tmp_path / "it.html")
    assert result.exit_code == 2
    assert "notes.txt" in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "it.html").exists()


def test_figures_count_every_window(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = summarize(trace)
    monkeypatch.setattr(summary, "MOST_WINDOWS", 100)
    few = summarize(trace)
    assert len(few.history.windows) <= 101 < len(whole.history.windows) == 200
    assert few.figures == whole.figures
    assert whole.figures.steps == 4000
    assert whole.figures.wire_cf == pytest.approx(
        whole.view.totals.dense_bytes / whole.view.totals.payload_bytes
    )
