"""``gravac export``: what other tools read back is what the trace says."""

import csv
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gravac.protocol import WindowReport
from gravac.signals import figures
from gravac.traces import read_trace
from gravac_controller.cli import main
from gravac_controller.metrics.table import TABLE
from gravac_controller.views.columns import NAMES
from tools.harness.recorded import RecordedJob
from tools.harness.sinks import Disk

STATIC = Path(main.callback.__code__.co_filename).parents[1] / "page" / "static"  # type: ignore[union-attr]


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


def export(trace: Path, form: str, output: Path) -> Result:
    return CliRunner().invoke(main, ["export", str(trace), "--to", form, "-o", str(output)])


def written(trace: Path, form: str, output: Path) -> Path:
    result = export(trace, form, output)
    assert result.exit_code == 0, result.output
    assert "12 windows of demo" in result.output
    return output


def test_the_page_has_the_same_columns() -> None:
    rows = (STATIC / "rows.js").read_text()
    listed = re.search(r"COLUMNS = \[(.*?)\n\];", rows, re.DOTALL)
    phases = re.search(r"PHASES = \[(.*?)\]", rows)
    assert listed
    assert phases
    names = re.findall(r'\["(\w+)", "\w+"\]', listed[1])
    names += [f"{phase}_seconds" for phase in re.findall(r'"(\w+)"', phases[1])]
    assert tuple(names) == NAMES


def test_csv(trace: Path, reports: list[tuple[float, WindowReport]], tmp_path: Path) -> None:
    with written(trace, "csv", tmp_path / "it.csv").open(newline="") as file:
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
    table = parquet.read_table(written(trace, "parquet", tmp_path / "it.parquet"))
    assert tuple(table.column_names) == NAMES
    found = table.to_pydict()
    assert found["gain"] == [figures.gain(report) for _, report in reports]
    assert found["loss"] == [report.loss for _, report in reports], "unknown is null"
    assert str(table.schema.field("last_step").type) == "int64"


def test_tensorboard(trace: Path, reports: list[tuple[float, WindowReport]], tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(written(trace, "tensorboard", tmp_path / "events")))
    found.Reload()
    gains, losses = found.Scalars("gravac/gain"), found.Scalars("gravac/loss")
    assert [point.step for point in gains] == [report.last_step for _, report in reports]
    assert [point.wall_time for point in gains] == [time for time, _ in reports]
    assert [point.value for point in gains] == pytest.approx(
        [figures.gain(report) for _, report in reports], rel=1e-6
    )
    assert len(losses) == 11, "unknown has no point"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
@pytest.mark.distributed
def test_prometheus_takes_it_and_gives_it_back(
    trace: Path, reports: list[tuple[float, WindowReport]], tmp_path: Path
) -> None:
    file = written(trace, "openmetrics", tmp_path / "it.om")
    blocks = tmp_path / "blocks"
    promtool("tsdb", "create-blocks-from", "openmetrics", str(file), str(blocks))
    (blocks / "wal").mkdir()  # else there is nothing that promtool would open
    dumped = promtool("tsdb", "dump", "--match", '{__name__=~"gravac_(gain_ratio|steps_total)"}', str(blocks))
    gains = re.findall(r'gravac_gain_ratio", job_name="demo"\} (\S+) (\d+)', dumped)
    assert [float(value) for value, _ in gains] == [figures.gain(report) for _, report in reports]
    start = round(1000 * reports[0][0])
    assert [int(at) for _, at in gains] == [start + number for number in range(12)], "no two at the same time"
    counts = re.findall(r'gravac_steps_total", job_name="demo"\} (\S+)', dumped)
    assert [float(count) for count in counts] == list(range(20, 260, 20))


def test_the_metrics_are_those_of_a_scrape(trace: Path, tmp_path: Path) -> None:
    text = written(trace, "openmetrics", tmp_path / "it.om").read_text()
    named = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(named) == len(set(named))
    assert set(named) < {row.name for row in TABLE}
    left_out = {row.name for row in TABLE} - set(named)
    unknown = {"gravac_agent_cpu_ratio"}
    assert all(name.startswith("gravac_rank_") or name in unknown for name in left_out), left_out
    assert text.endswith("\n# EOF\n")


def promtool(*arguments: str) -> str:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("form", "package", "extra"),
    [("parquet", "pyarrow", "parquet"), ("tensorboard", "tensorboard", "tensorboard")],
)
def test_a_missing_extra_is_named(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, package: str, extra: str
) -> None:
    for name in (package, "tensorboard.compat.proto.event_pb2"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    result = export(trace, form, tmp_path / "it")
    assert result.exit_code == 2
    assert f"pip install 'gravac[{extra}]'" in result.output
    assert not (tmp_path / "it").exists()


@pytest.mark.parametrize("form", ["csv", "openmetrics"])
def test_what_is_no_trace_is_refused(tmp_path: Path, form: str) -> None:
    (tmp_path / "notes.txt").write_text("hello\n")
    result = export(tmp_path / "notes.txt", form, tmp_path / "it")
    assert result.exit_code == 2
    assert "notes.txt" in result.output
    assert "Traceback" not in result.output
