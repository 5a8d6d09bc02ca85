"""``gravac export``: what other tools read back is what the trace says."""

import csv
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gravac.protocol import WindowReport
from gravac.signals import figures
from gravac.traces import read_trace
from gravac_controller.cli import main
from gravac_controller.views.columns import NAMES
from tools.harness.recorded import RecordedJob
from tools.harness.sinks import Disk


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve windows that arrived all at once; one has a step that is not finite, some have no gain for a candidate."""
    folder = tmp_path_factory.mktemp("runs")
    disk = Disk()
    recorded = RecordedJob(disk)
    recorded.play(5)
    recorded.play(1, nonfinite_steps=1, loss=None)
    recorded.play(6)
    recorded.end()
    disk.write(folder, lambda: 1.7e9)
    return folder / "demo"


@pytest.fixture(scope="module")
def reports(trace: Path) -> list[tuple[float, WindowReport]]:
    lines = read_trace(trace / "journal.jsonl")
    return [(line.time, line.record) for line in lines if isinstance(line.record, WindowReport)]


def export(trace: Path, output: Path) -> Result:
    return CliRunner().invoke(main, ["export", str(trace), "-o", str(output)])


def written(trace: Path, output: Path) -> Path:
    result = export(trace, output)
    assert result.exit_code == 0, result.output
    assert "12 windows of demo" in result.output
    return output


def test_csv(trace: Path, reports: list[tuple[float, WindowReport]], tmp_path: Path) -> None:
    with written(trace, tmp_path / "it.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(reports) == 12
    for row, (time, report) in zip(rows, reports, strict=True):
        assert int(row["window"]) == report.window
        assert int(row["last_step"]) == report.last_step
        assert float(row["time"]) == time
        assert float(row["cf"]) == report.cf
        assert float(row["gain"]) == figures.gain(report), "to the last bit"
        assert float(row["backlog"]) == figures.backlog(report)
        assert float(row["communicate_seconds"]) == report.phases.communicate / 20
        assert (row["gain_candidate"] == "") == (report.phase != "explore")
    assert rows[5]["loss"] == "", "unknown is empty"
    assert rows[5]["nonfinite_steps"] == "1"


def test_parquet(trace: Path, reports: list[tuple[float, WindowReport]], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(written(trace, tmp_path / "it.parquet"))
    assert tuple(table.column_names) == NAMES
    found = table.to_pydict()
    assert found["gain"] == [figures.gain(report) for _, report in reports]
    assert found["loss"] == [report.loss for _, report in reports], "unknown is null"
    assert str(table.schema.field("last_step").type) == "int64"


def test_a_missing_extra_is_named(trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = export(trace, tmp_path / "it.parquet")
    assert result.exit_code == 2
    assert "pip install 'gravac[parquet]'" in result.output
    assert not (tmp_path / "it.parquet").exists()


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello\n")
    result = export(tmp_path / "notes.txt", tmp_path / "it.csv")
    assert result.exit_code == 2
    assert "notes.txt" in result.output
    assert "Traceback" not in result.output


def test_what_is_no_table_is_refused(trace: Path, tmp_path: Path) -> None:
    result = export(trace, tmp_path / "it.xlsx")
    assert result.exit_code == 2
    assert "it.xlsx' does not end in .csv or .parquet" in result.output
