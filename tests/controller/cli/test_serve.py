"""``gravac serve`` as a process: address, lock, parent, signals, clear refusals."""

import http.client
import signal
import socket
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.harness.builders import spec
from tools.harness.controller import PATIENCE_SECONDS, Controller, zygotes
from tools.harness.forked import surroundings

pytestmark = pytest.mark.distributed

TOKEN = "a-token-of-the-tests-0123456789"


def serve(tmp_path: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run it until it exits by itself."""
    argv = ("serve", "--data-dir", str(tmp_path / "runs"), *arguments)
    said, complained = tmp_path / "stdout", tmp_path / "stderr"
    with said.open("wb") as stdout, complained.open("wb") as stderr:
        process = next(zygotes()).start(
            module="gravac_controller",
            argv=argv,
            environment=surroundings(**env),
            stdout=stdout,
            stderr=stderr,
        )
    try:
        process.wait(PATIENCE_SECONDS)
    finally:
        process.kill()
    return subprocess.CompletedProcess(argv, process.wait(), said.read_text(), complained.read_text())


def test_it_announces_itself_in_one_line(start: Callable[..., Controller]) -> None:
    controller = start(fresh=True)
    assert set(controller.announced) == {"url", "pid", "instance"}
    assert controller.announced["pid"] == controller.process.pid
    assert controller.ask("GET", "/healthz").json == {
        "status": "ok",
        "instance": controller.announced["instance"],
    }
    assert controller.ask("GET", "/readyz").status == 200
    controller.stop()
    assert controller.process.returncode == 0
    people = controller.log.read_text()
    assert controller.url in people
    assert str(controller.data_dir) in people
    assert f"ssh -L {controller.port}:127.0.0.1:{controller.port} " in people


def test_it_ends_when_its_parent_does(controller: Controller) -> None:
    assert controller.process.stdin is not None
    controller.process.stdin.close()
    assert controller.process.wait(PATIENCE_SECONDS) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_shut_it_down_in_order(controller: Controller, number: signal.Signals) -> None:
    controller.process.send_signal(number)
    assert controller.process.wait(PATIENCE_SECONDS) == 0
    assert "Traceback" not in controller.log.read_text()


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        found = serve(tmp_path, "--port", port)
    assert found.returncode == 2
    assert found.stdout == ""
    assert f"port {port} of 127.0.0.1 is in use" in found.stderr
    assert "--port 0" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0", "--port", "0"], "GRAVAC_TOKEN"),
        (["--host", "::", "--port", "0"], "GRAVAC_TOKEN"),
        (["--host", "no.such.name.invalid", "--port", "0"], "GRAVAC_TOKEN"),
        (["--port", "70000"], "port: "),
        (["--port", "x"], "'x' is not a valid integer"),
        (["--token-file", "/nonexistent"], "--token-file /nonexistent cannot be read"),
        (["--job", "../up"], "job: "),
        (["--allowed-host"], "requires an argument"),
        (["--linger", "3"], "No such option '--linger'"),
    ],
)
def test_settings_that_cannot_work_are_refused_immediately(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    found = serve(tmp_path, *arguments)
    assert found.returncode == 2
    assert words in found.stderr
    assert "Traceback" not in found.stderr


def test_a_token_file_that_others_can_read_is_reported(
    start: Callable[..., Controller], tmp_path: Path
) -> None:
    file = tmp_path / "gravac.token"
    file.write_text(TOKEN)
    for mode, warned in ((0o644, True), (0o640, True), (0o600, False)):
        file.chmod(mode)
        controller = start("--token-file", str(file))
        controller.stop()
        said = controller.log.read_text()
        assert (f"--token-file {file} can be read by others: chmod 600 {file}" in said) is warned
        assert TOKEN not in said
        controller.log.unlink()


def test_misspelled_variables_are_reported(start: Callable[..., Controller]) -> None:
    controller = start(env={"GRAVAC_CONTROLLER_ALLOWED_HOST": "5", "GRAVAC_CONTROLLER": "http://127.0.0.1:1"})
    controller.stop()
    warnings = [line for line in controller.log.read_text().splitlines() if "is not a setting" in line]
    assert len(warnings) == 1
    assert warnings[0].startswith(
        "environment variable 'GRAVAC_CONTROLLER_ALLOWED_HOST' is not a setting of the controller "
        "(did you mean 'GRAVAC_CONTROLLER_ALLOWED_HOSTS'"
    )


def test_a_short_token_is_refused_in_our_own_words(tmp_path: Path) -> None:
    found = serve(tmp_path, GRAVAC_CONTROLLER_CONTROL_TOKEN="short")
    assert found.returncode == 2
    assert "GRAVAC_CONTROLLER_CONTROL_TOKEN: needs at least 16 printable ASCII characters" in found.stderr
    assert "short" not in found.stderr


def test_a_short_token_is_refused(tmp_path: Path) -> None:
    found = serve(tmp_path, "--port", "0", GRAVAC_TOKEN="short")
    assert found.returncode == 2
    assert "at least 16" in found.stderr
    assert "short" not in found.stderr.replace("a short", "")


def test_beyond_loopback_with_a_token(start: Callable[..., Controller]) -> None:
    controller = start("--host", "0.0.0.0", env={"GRAVAC_TOKEN": TOKEN})
    assert controller.url == f"http://{socket.gethostname()}:{controller.port}"
    controller.host = "127.0.0.1"
    name = {"Host": f"{socket.gethostname()}:{controller.port}"}
    assert controller.ask("GET", "/healthz", headers=name).status == 200
    assert controller.ask("POST", "/v1/jobs", spec()).status == 401
    assert controller.ask("GET", "/v1/jobs", headers=name).status == 401
    assert "reading needs the token too" in controller.log.read_text()


def test_two_controllers_cannot_share_a_folder(controller: Controller, tmp_path: Path) -> None:
    found = serve(tmp_path, "--port", "0")
    assert found.returncode == 3, "a code of its own: an agent acts on it"
    assert f"in use by another controller (pid {controller.process.pid} at {controller.url})" in found.stderr
    assert controller.ask("GET", "/healthz").status == 200


def test_a_killed_controller_leaves_no_lock(controller: Controller, start: Callable[..., Controller]) -> None:
    assert controller.ask("POST", "/v1/jobs", spec()).status == 200
    controller.kill()
    again = start(port=controller.port)
    assert again.ask("GET", "/v1/jobs/job").status == 200


def test_controllers_of_one_job_each_share_a_folder(start: Callable[..., Controller]) -> None:
    one, two = start("--job", "one"), start("--job", "two")
    assert one.ask("POST", "/v1/jobs", spec("one")).status == 200
    assert two.ask("POST", "/v1/jobs", spec("two")).status == 200
    assert one.ask("POST", "/v1/jobs", spec("two")).status == 403
    assert [job["job"] for job in two.ask("GET", "/v1/jobs").json["items"]] == ["two"]
    with pytest.raises(RuntimeError, match=r"in use by another controller \(pid"):
        start("--job", "one")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file in the way")
    found = serve(tmp_path, "--port", "0")
    assert found.returncode == 2
    assert f"data folder {tmp_path / 'runs'}" in found.stderr
    assert "--data-dir" in found.stderr


def test_settings_come_from_the_environment_too(start: Callable[..., Controller]) -> None:
    controller = start(env={"GRAVAC_CONTROLLER_JOB": "job", "GRAVAC_TOKEN": ""})
    assert controller.ask("POST", "/v1/jobs", spec()).status == 200
    answer = controller.ask("POST", "/v1/jobs", spec(job="another"))
    assert "this one serves job 'job' only" in answer.json["detail"]


@pytest.mark.alone
def test_answers_do_not_wait_for_a_delayed_ack(controller: Controller) -> None:
    """Header and body are two writes: without TCP_NODELAY each answer on a kept-alive connection takes 40 ms."""
    connection = http.client.HTTPConnection(controller.host, controller.port, timeout=PATIENCE_SECONDS)
    took = []
    for _ in range(80):
        began = time.monotonic()
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        took.append(time.monotonic() - began)
    connection.close()
    # Every answer waits for it but the first ones, which Linux acknowledges immediately. A busy machine delays some.
    assert statistics.quantiles(took[30:])[0] < 0.03
