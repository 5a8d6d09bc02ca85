"""``gravac status --watch``: each window and each change, over a lost controller, in a terminal."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controller.cli.conftest import OPERATOR
from tests.controller.cli.test_explain import run
from tests.support.efficiencies import fixed_efficiencies
from tools.harness.builders import PostedJob
from tools.harness.controller import PATIENCE_SECONDS, Controller

pytestmark = pytest.mark.distributed


@pytest.fixture(autouse=True, scope="module")
def fixed_table() -> Iterator[None]:
    with fixed_efficiencies():
        yield


TRACE = str(Path(__file__).parents[2] / "traces/first-light.jsonl")


def test_watching_a_trace_tells_each_window_and_each_change() -> None:
    lines = run("status", "--watch", TRACE).splitlines()
    assert len([line for line in lines if "  step " in line]) == 8
    assert [int(found[1]) for line in lines if (found := re.search(r"epoch (\d):", line))] == [1, 2, 3]
    assert (
        "step 400  largest 10 % (hold)  10x fewer bytes  220 ms/step  η 0.7 (0.6–0.8)  useful 204/s"
        in lines[-1]
    )
    objects = [json.loads(one) for one in run("status", "--watch", TRACE, "--json").splitlines()]
    assert [one["window"]["report"]["window"] for one in objects] == list(range(8))
    assert all(one["decision"]["decision"]["window"] == one["window"]["report"]["window"] for one in objects)


def test_watching_goes_on_over_a_lost_controller(tmp_path: Path) -> None:
    controller = Controller(tmp_path / "runs")
    job = PostedJob(controller, "beta")
    job.windows(1)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GRAVAC_")}
    command = [sys.executable, "-m", "gravac_controller", "status", "--watch", controller.url]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=clean | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        assert "step 50 " in process.stdout.readline()
        job.windows(1)
        output = process.stdout.readline() + process.stdout.readline()
        assert "step 100 " in output
        assert "epoch 1: The dense baseline is" in output
        controller.kill()
        assert "no controller answers" in process.stdout.readline()
        controller = Controller(tmp_path / "runs", port=controller.port)
        job.controller = controller
        said = process.stdout.readline()
        while "no controller answers" in said:  # for another reason
            said = process.stdout.readline()
        assert "answers again" in said
        job.windows(1)
        assert "step 150 " in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.communicate()
        controller.stop()


def test_watching_in_a_terminal_is_a_screen(job: PostedJob) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GRAVAC_")}
    pid, terminal = pty.fork()
    if pid == 0:
        env = clean | {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "50"}
        command = [sys.executable, "-m", "gravac_controller", "status", "--watch", job.controller.url]
        os.execve(command[0], command, env)
    try:
        before = read_until(terminal, b"backlog")
        assert b"\x1b[?1049h" in before  # a screen of its own
        step = job.trainer.window * 50 + 50
        job.windows(1)
        read_until(terminal, f"step {step} ".encode())
        os.write(terminal, b"\x03")
        read_until(terminal, b"\x1b[?1049l")
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
    finally:
        os.close(terminal)


def read_until(terminal: int, words: bytes) -> bytes:
    """What a program writes to its terminal, up to these words."""
    seen, until = b"", time.monotonic() + PATIENCE_SECONDS
    while words not in seen and time.monotonic() < until:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                seen += os.read(terminal, 65536)
            except OSError:
                break
    assert words in seen, seen[-2000:]
    return seen


# Last, as its order stays.
def test_a_row_says_what_was_ordered_before_a_step_sends_it(job: PostedJob) -> None:
    """The order waits for the end of a window, and the next window for its own: tens of seconds."""
    beta = PostedJob(job.controller, "beta")
    beta.windows(5)
    sent, _, decided = row_of(beta).partition(" → ")
    assert decided not in ("", "dense")
    ordered(beta, b'{"action": "dense", "actor": "alice"}')
    assert f"{sent} → dense" == row_of(beta), "as soon as it is accepted"
    beta.windows(1)
    assert f"{decided} → dense" == row_of(beta), "in force, and no window was sent under it"
    beta.windows(1)
    assert row_of(beta) == "dense"
    ordered(beta, b'{"action": "pin", "cf": 12.5, "actor": "alice"}')
    assert row_of(beta) == "dense → largest 8 %"
    ordered(beta, b'{"action": "resume", "actor": "alice"}')
    assert row_of(beta) == "dense", "nobody knows what the policy then does"


def ordered(job: PostedJob, order: bytes) -> None:
    path = f"/v1/jobs/{job.trainer.job}/override"
    seen = job.controller.ask("GET", path).headers["etag"]
    headers = {"Content-Type": "application/json", "If-Match": seen, "Authorization": f"Bearer {OPERATOR}"}
    assert job.controller.ask("PUT", path, order, headers).status == 202


def row_of(job: PostedJob) -> str:
    """Return the plan of a job's row of ``status``."""
    name = job.trainer.job
    (row,) = (line for line in run("status", job.controller.url).splitlines() if line.startswith(f"{name} "))
    return re.split(r"\s{2,}", row)[2]
