"""``gravac ui``: what it says, and what it refuses before it serves anything. The page itself: tests/browser."""

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from gravac_controller.cli import main
from tools.harness.recorded import RecordedJob
from tools.harness.sinks import Disk


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    disk = Disk()
    RecordedJob(disk).play(3)
    disk.write(folder, iter(range(1_700_000_000, 1_800_000_000)).__next__)
    return folder / "demo" / "journal.jsonl"


def test_a_busy_port_is_named(trace: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(main, ["ui", str(trace), "--port", str(port)])
    assert result.exit_code == 2
    assert f"port {port} of 127.0.0.1 is in use" in result.output


@pytest.mark.parametrize("text", ["", "hello\n", '{"kind":"window"}\n'])
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "notes.txt").write_text(text)
    result = CliRunner().invoke(main, ["ui", str(tmp_path / "notes.txt")])
    assert result.exit_code == 2
    assert "notes.txt" in result.output
    assert "Traceback" not in result.output


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    for missing in (tmp_path / "nothing.jsonl", tmp_path):
        result = CliRunner().invoke(main, ["ui", str(missing)])
        assert result.exit_code == 2
        assert "Traceback" not in result.output
