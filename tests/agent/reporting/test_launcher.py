"""A controller of the agent's own: it is started, dies, hangs or finds its port taken, and no window is lost."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gravac.protocol import End, WindowReport
from gravac.replays.replay import check
from gravac.traces import read_trace
from gravac_agent.reporting import controller_link
from gravac_agent.reporting.http_reporter import HttpReporter
from gravac_agent.reporting.launcher import ControllerProcess
from gravac_agent.run_log import _replay
from gravac_agent.settings import AgentSettings
from tests.support.peer import INVALID_ANSWERS, SPEC, Peer, eventually, job_end, serving, window_report

pytestmark = [pytest.mark.usefixtures("short_pauses"), pytest.mark.distributed]


def journaled(path: Path) -> list[int]:
    """The windows of a journal that may be being written."""
    try:
        return [line.record.window for line in read_trace(path) if isinstance(line.record, WindowReport)]
    except (OSError, ValueError):
        return []


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ControllerProcess]:
    process = ControllerProcess(tmp_path, SPEC.job, 0)
    yield process
    process.stop()


def own_reporter(process: ControllerProcess) -> HttpReporter:
    return HttpReporter(SPEC, AgentSettings(), process)


def test_another_program_on_a_dead_controllers_port_gets_nothing(
    own: ControllerProcess, tmp_path: Path
) -> None:
    """gravac 0.1 sent it the token and 80 windows, and followed its CF for 19.5 s."""
    reporter = own_reporter(own)
    assert reporter.wait_ready(150)
    assert own.pid is not None
    port = own.port
    os.kill(own.pid, signal.SIGKILL)
    with _once_free(port) as intruder:
        intruder.invalid = INVALID_ANSWERS["cf 1e9"]
        for window in range(5):
            reporter.report_window(window_report(window))
            assert reporter.directive.cf_candidate in (1.0, 10.0)
            time.sleep(0.05)
        eventually(lambda: journaled(tmp_path / SPEC.job / "journal.jsonl") == [0, 1, 2, 3, 4])
        assert own.token.encode() not in intruder.received
        assert b"uthorization" not in intruder.received
        assert b"levels" not in intruder.received
        assert own.port != port
        assert reporter.url == own.url
        reporter.close(job_end(5))
    assert check(tmp_path / SPEC.job / "journal.jsonl").ok


@contextlib.contextmanager
def _once_free(port: int) -> Iterator[Peer]:
    for _ in range(200):
        try:
            with serving(SPEC, None, port) as intruder:
                yield intruder
            return
        except OSError:
            time.sleep(0.01)
    raise AssertionError("the port of a dead controller stays taken")


def test_nothing_is_lost_when_the_controller_dies_just_before_the_end(
    own: ControllerProcess, tmp_path: Path
) -> None:
    """gravac 0.1 lost the last three windows and the end, and was in a busy loop for 4 s."""
    reporter = own_reporter(own)
    assert reporter.wait_ready(150)
    assert own.pid is not None
    os.kill(own.pid, signal.SIGKILL)
    for window in range(3):
        reporter.report_window(window_report(window))
    reporter.close(job_end(3))
    records = [line.record for line in read_trace(tmp_path / SPEC.job / "journal.jsonl")]
    assert [record.window for record in records if isinstance(record, WindowReport)] == [0, 1, 2]
    assert isinstance(records[-1], End)


@pytest.mark.alone
def test_a_stopped_controller_is_replaced_at_the_end(
    own: ControllerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gravac 0.1 took 11 s to close and lost the rest. Only SIGKILL ends a stopped process."""
    monkeypatch.setattr(controller_link, "REQUEST_SECONDS", 1.0)
    reporter = own_reporter(own)
    assert reporter.wait_ready(150)
    assert own.pid is not None
    stopped = own.pid
    os.kill(stopped, signal.SIGSTOP)
    reporter.report_window(window_report(0))
    began = time.monotonic()
    reporter.close(job_end(1))
    assert time.monotonic() - began < 8.0
    assert journaled(tmp_path / SPEC.job / "journal.jsonl") == [0]
    with pytest.raises(ProcessLookupError):
        os.kill(stopped, 0)


def test_a_taken_port_is_replaced_by_a_free_one(
    own: ControllerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        own.port = taken.getsockname()[1]
        url = own.start(60)
        assert own.port != taken.getsockname()[1]
        assert f"port {taken.getsockname()[1]} is taken; the live page is at {url}" in caplog.text


@pytest.mark.parametrize("taken_later", [True, False])
def test_a_failed_start_is_repeated_only_where_the_port_was_taken(
    own: ControllerProcess,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    taken_later: bool,
) -> None:
    """Another program can take the port between the check and the start. A controller that fails for another reason
    would fail again, and its log would be about a port."""
    answers, ports = iter([False, taken_later]), []

    def start(port: int, until: float) -> str:
        ports.append(port)
        if port:
            raise OSError("the controller did not start: no space left")
        return "http://127.0.0.1:4321"

    monkeypatch.setattr("gravac_agent.reporting.launcher._is_taken", lambda port: next(answers))
    monkeypatch.setattr(own, "_start", start)
    own.port = 1234
    if taken_later:
        assert own.start(60) == "http://127.0.0.1:4321"
        assert "port 1234 is taken" in caplog.text
    else:
        with pytest.raises(OSError, match="no space left"):
            own.start(60)
        assert "taken" not in caplog.text
    assert ports == ([1234, 0] if taken_later else [1234])


def test_a_folder_that_cannot_be_written_is_blamed_and_no_journal_is_promised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_link, "REQUEST_SECONDS", 0.1)
    (tmp_path / "file").touch()
    reporter = own_reporter(ControllerProcess(tmp_path / "file" / "runs", SPEC.job, 0))
    eventually(lambda: "training goes on" in caplog.text)
    assert f"no controller: data_dir='{tmp_path}/file/runs' cannot be written" in caplog.text
    assert "no valid answer" not in caplog.text
    assert _replay(reporter).startswith(", without a journal: ")
    reporter.close(job_end(0))


def test_the_controllers_log_is_shown_without_escapes(tmp_path: Path) -> None:
    """The log may hold anything: an exception's text, a file's name."""
    folder = tmp_path / "\x1b[31mred\nline"
    folder.write_text("not a folder")
    with pytest.raises(OSError, match=r"^data_dir=.* cannot be written, .*GRAVAC_DATA_DIR") as caught:
        ControllerProcess(folder / "runs", SPEC.job, 0).start(60)
    assert str(caught.value).isprintable()
    data_dir = tmp_path / "runs"
    (data_dir / SPEC.job).mkdir(parents=True)
    (data_dir / SPEC.job / "\x1b[31mx").touch()
    process = ControllerProcess(data_dir, "\x1b[31mno name", 0)
    with pytest.raises(OSError, match="did not start") as caught:
        process.start(60)
    assert str(caught.value).isprintable()
