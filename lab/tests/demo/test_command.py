"""``gravac demo`` for real, and what it does when things go wrong."""

import contextlib
import json
import os
import pty
import re
import secrets
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gravac_controller.cli import main
from gravac_lab.demo.command import _command
from tests.support.warm import WarmPython

GRAVAC = [sys.executable, "-m", "gravac_controller"]
MARK = "DEMO_TEST_MARK"
PATIENCE_SECONDS = 120.0
"""For what takes a few seconds on a quiet machine."""
PLAIN = {"GRAVAC_KERNELS": "reference"}
"""Kernels do not matter to ranks that are ended: loading the compiled ones takes each a second."""


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Ranks come from zygotes. Those that are stopped or killed below are started as people start them."""
    folder = tmp_path / "warm"
    folder.mkdir()
    with WarmPython(folder) as more:
        yield more


def environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("GRAVAC_")} | more


def gravac(*arguments: str, cwd: Path, seconds: float = 500, **more: str) -> subprocess.CompletedProcess[str]:
    command = [*GRAVAC, *arguments]
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def marked(mark: str) -> dict[int, str]:
    """Command lines, by process id, of all that have the mark in their environment: what a demo started."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(process.name)] = line
        except OSError:
            continue
    return {number: line for number, line in found.items() if line}


@pytest.fixture
def mark() -> Iterator[str]:
    """For the environment of what a test starts. What is left of it at the end is killed, also if the test failed."""
    mark = secrets.token_hex(8)
    yield mark
    for number in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def wait_for_none(mark: str) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while (left := marked(mark)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left


@pytest.mark.distributed
@pytest.mark.timeout(600)
def test_a_demo_from_page_to_proof(tmp_path: Path, warm: dict[str, str]) -> None:
    """Trains, compares, and leaves a trace that replays. 20 steps on an emulated link slow enough to matter."""
    done = gravac(
        *("demo", "--steps", "20", "--compare", "--json"),
        GRAVAC_DATA_DIR="runs",
        cwd=tmp_path,
        **warm,
        GRAVAC_CONTROLLER="http://127.0.0.1:1",  # a demo has a controller of its own
    )
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert said[0].startswith("Starting   an LSTM"), "at once"
    assert "over an EMULATED link of 100mbit, from step 10 on 20mbit" in said[0]
    assert said[1].startswith("Live page  http://127.0.0.1:")
    assert any("step   10  The emulated link carries 20mbit from here on." in one for one in said)
    (line,) = done.stdout.splitlines()
    facts = json.loads(line)

    assert facts["link_bits_per_second"] == 1e8
    assert Path(facts["trace"]).is_file()
    assert Path(facts["dense_trace"]).is_file()
    assert facts["heldout_loss"] < 3.5 < 5.5  # bytes at random cost 5.5
    assert facts["dense_heldout_loss"] < 3.5
    assert facts["decisions"][0]["window"] == -1
    assert facts["decisions"][0]["cf"] > 5.0, "the job begins with a plan, as the link is slow"
    assert all(decision["reason"] for decision in facts["decisions"])
    # Two ranks hand over a gradient of 1,052,416 floats at each of 20 steps.
    assert facts["dense_bytes"] == 2 * 20 * 1_052_416 * 4
    assert facts["payload_bytes"] < facts["dense_bytes"] / 3, "of all steps but the first two"
    assert facts["speedup"] == pytest.approx(facts["steps_per_second"] / facts["dense_steps_per_second"])
    assert f"dense {facts['dense_heldout_loss']:.4f}" in done.stderr
    epochs = {decision["epoch"] for decision in facts["decisions"]}
    assert len([one for one in said if "–" in one.split(" ")[0]]) <= len(epochs), (
        "a line for each plan that was sent"
    )

    check = said[said.index("Check it") + 1]
    assert Path(facts["trace"]).name in check
    checked = subprocess.run(
        check, shell=True, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, f"{check}\n{checked.stdout}{checked.stderr}"
    assert "the same" in checked.stdout


@pytest.mark.distributed
def test_the_page_stays_until_enter(tmp_path: Path, warm: dict[str, str]) -> None:
    """In a terminal, at the same address: what was opened during the training goes on."""
    here, there = pty.openpty()
    command = [*GRAVAC, "demo", "--steps", "6"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(**warm, TERM="xterm", GRAVAC_DATA_DIR="runs"),
        stdin=there,
        stdout=there,
        stderr=there,
    )
    os.close(there)
    said = ""
    try:
        while "until you press Enter" not in said:
            said += os.read(here, 65536).decode(errors="replace")
        page = re.findall(r"Live page +(http://127\.0\.0\.1:\d+)", said)
        assert f"The page stays at {page[0]} until you press Enter." in said
        with urllib.request.urlopen(f"{page[0]}/v1/jobs", timeout=PATIENCE_SECONDS) as answer:
            assert [job["state"] for job in json.load(answer)["items"]] == ["ended"]
        os.write(here, b"\n")
        assert process.wait(PATIENCE_SECONDS) == 0
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(page[0], timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()
        os.close(here)


@pytest.mark.smoke
@pytest.mark.distributed
def test_plain_loopback_says_so(tmp_path: Path, warm: dict[str, str]) -> None:
    words = ("demo", "--steps", "20", "--link", "none", "--compare")
    done = gravac(*words, cwd=tmp_path, **warm)
    assert done.returncode == 0, done.stderr
    assert "EMULATED" not in done.stdout
    assert "plain DDP" in done.stdout
    assert "the real network of this machine" in done.stdout
    journals = list((tmp_path / "gravac-runs").glob("*/journal.jsonl"))
    assert len(journals) == 1, "plain DDP has no agent and so no journal"


@pytest.mark.distributed
def test_a_failing_rank_is_quoted(tmp_path: Path, warm: dict[str, str]) -> None:
    done = gravac("demo", "--steps", "5", "--link", "fast", cwd=tmp_path, **warm)
    assert done.returncode == 1
    assert "'fast' is not a rate" in done.stderr
    assert "100mbit" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--policy", "best"), "policy='best' is unknown"),
        (("--policy", "static:cf=0"), "cf"),
        (("--task", "chess"), "'lm'"),
        (("--ranks", "1"), "2<=x"),
        (("--steps", "0"), "x>=1"),
    ],
)
def test_wrong_options_start_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["demo", *options])
    assert done.exit_code == 2
    assert says in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.distributed
@pytest.mark.skipif(sys.platform != "linux", reason="looks for left-over processes in /proc")
@pytest.mark.parametrize(
    ("number", "code", "moment"), [(signal.SIGINT, 130, "training"), (signal.SIGTERM, 143, "starting")]
)
def test_stopping_it_ends_everything_it_started(
    tmp_path: Path, mark: str, number: signal.Signals, code: int, moment: str
) -> None:
    """While it trains, and while its ranks are still being started."""
    command = [*GRAVAC, "demo", "--steps", "5000"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(**{MARK: mark}, **PLAIN),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        if moment == "training":
            assert process.stdout.readline().startswith("Starting")
            assert process.stdout.readline().startswith("Live page")
            assert "gravac_controller serve" in " ".join(marked(mark).values())
        until = time.monotonic() + PATIENCE_SECONDS
        while "torch.distributed.run" not in " ".join(marked(mark).values()) and time.monotonic() < until:
            time.sleep(0.1)
        assert "torch.distributed.run" in " ".join(marked(mark).values())
        process.send_signal(number)
        process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == code
        wait_for_none(mark)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()


@pytest.mark.distributed
@pytest.mark.skipif(sys.platform != "linux", reason="looks for left-over processes in /proc")
def test_ranks_end_when_their_launcher_is_killed(tmp_path: Path, mark: str) -> None:
    progress = tmp_path / "progress"
    progress.touch()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    command += [
        "--nproc-per-node",
        "2",
        "-m",
        "gravac_lab.demo",
        "--steps",
        "5000",
        "--progress",
        str(progress),
    ]
    launcher = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment(**{MARK: mark}, **PLAIN),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until = time.monotonic() + PATIENCE_SECONDS
    while '"step"' not in progress.read_text() and launcher.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
    launcher.kill()
    launcher.wait()
    assert '"step"' in progress.read_text(), "it trained"
    wait_for_none(mark)


def test_gravac_is_called_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    for called, expected in (
        (tmp_path / "my venv/bin/gravac", "'my venv/bin/gravac'"),
        ("/opt/venv/bin/gravac", "/opt/venv/bin/gravac"),
        ("/opt/gravac_controller/__main__.py", f"{shlex.quote(sys.executable)} -m gravac_controller"),
    ):
        monkeypatch.setattr(sys, "argv", [str(called), "demo"])
        assert _command() == expected
    (tmp_path / "gravac").touch(mode=0o755)
    assert _command() == "gravac"
