"""The harness of the distributed tests: each rank is a process, and none outlives its test."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.ranks.harness import RunRanks
from tests.support.warm import WarmPython
from tools.harness.forked import ZYGOTE, first_line

pytestmark = pytest.mark.distributed


def test_ranks_hash_differently(run_ranks: RunRanks) -> None:
    """As separately started processes do: code that sends things in the order of a set must fail here too."""
    one, two, three = run_ranks("hashed", 3)
    assert len({os.getpid(), one["parent"], two["parent"]}) == 3
    assert one["hash"] != two["hash"]
    assert two["parent"] == three["parent"]


def test_ranks_run_several_scenarios_and_each_finds_what_the_first_one_found(run_ranks: RunRanks) -> None:
    """One that leaves something behind fails, and ends its ranks: the next one gets new ones."""
    ranks = run_ranks("leaves", 2, what="nothing")
    for what, found in {
        "thread": r"threads: \+left over",
        "file": r"files: \+.*/left over",
        "hook": r"hooks: \+_global_optimizer_pre_hooks .*_nothing",
        "handler": r"log handlers: \+gravac.agent <NullHandler",
        "function": r"globals: -gravac_agent.setup.build.connect",
        "setting": r"settings: \+GRAVAC_POLICY=dense",
    }.items():
        assert run_ranks("leaves", 2, what="nothing") == ranks
        with pytest.raises(AssertionError, match=rf"leaves did not leave all as it found it: {found}"):
            run_ranks("leaves", 2, what=what)
        again = run_ranks("leaves", 2, what="nothing")
        assert set(again).isdisjoint(ranks)
        ranks = again
    assert set(run_ranks("leaves", 2, what="setting", fresh=True)).isdisjoint(ranks)


def test_failing_and_hanging_ranks_are_reported_and_ended(run_ranks: RunRanks, tmp_path: Path) -> None:
    run_ranks("hashed", 2)
    (tmp_path / "rank0.json").unlink()
    began = time.monotonic()
    with pytest.raises(AssertionError, match=r"(?s)ranks hang after 1.*rank1.log.*RuntimeError: deliberate"):
        run_ranks("one_fails", 2, seconds=1)
    assert time.monotonic() - began < 30
    assert not (tmp_path / "rank0.json").exists()
    assert len(run_ranks("hashed", 2)) == 2  # and the next may run


def test_a_warm_python_behaves_as_its_rank(tmp_path: Path) -> None:
    """torchrun sees the rank's arguments, output, signals and exit codes, and they end together."""
    script = tmp_path / "rank.py"
    script.write_text(
        "import os, sys, time\nprint(os.getpid(), sys.argv[1:], __name__, flush=True)\n"
        "sys.exit(3) if sys.argv[1] == 'fail' else time.sleep(60)\n"
    )

    def started(word: str) -> "subprocess.Popen[str]":
        command = [environment["PYTHON_EXEC"], "-u", str(script), word]
        return subprocess.Popen(
            command, env=os.environ | environment | {"RANK": "1"}, stdout=subprocess.PIPE, text=True
        )

    with WarmPython(tmp_path) as environment:
        with started("fail") as failing:
            output, _ = failing.communicate(timeout=30)
        assert output.split(maxsplit=1)[1] == "['fail'] __main__\n"
        assert failing.returncode == 3
        for number in (signal.SIGTERM, signal.SIGKILL):
            with started("wait") as waiting:
                assert waiting.stdout is not None
                rank = int(waiting.stdout.readline().split()[0])
                waiting.send_signal(number)
                assert waiting.wait(30) == -number
            until = time.monotonic() + 30
            while Path(f"/proc/{rank}").exists() and time.monotonic() < until:
                time.sleep(0.02)
            assert not Path(f"/proc/{rank}").exists()


def test_a_zygote_ends_when_its_client_ends_during_a_request() -> None:
    """A killed test run must not leave a process that reads an ended pipe in a busy loop."""
    control, theirs = socket.socketpair()
    with theirs:
        number = theirs.fileno()
        zygote = subprocess.Popen([sys.executable, "-m", ZYGOTE, str(number)], pass_fds=[number])
    try:
        with control, open(os.devnull, "rb") as file:
            socket.send_fds(control, [(100).to_bytes(4, "big")], [file.fileno()] * 4)
            control.sendall(b"{")
        assert zygote.wait(30) == 0
    finally:
        zygote.kill()
        zygote.wait()


def test_a_process_that_no_test_waits_for_is_ended(tmp_path: Path) -> None:
    """The test timed out while the zygote was importing; the rank then started and was never ended."""
    script = tmp_path / "waits.py"
    script.write_text("import time\ntime.sleep(60)\n")
    what = {"argv": [], "environment": dict(os.environ), "cwd": str(tmp_path), "script": str(script)}
    body = json.dumps(what).encode()
    control, theirs = socket.socketpair()
    (output, writing), (status, written) = os.pipe(), os.pipe()
    os.close(status)  # like a caller that gave up
    with theirs:
        number = theirs.fileno()
        zygote = subprocess.Popen([sys.executable, "-m", ZYGOTE, str(number)], pass_fds=[number])
    try:
        with control, open(output, "rb") as output_of_rank:
            with open(os.devnull, "rb") as null:
                files = [null.fileno(), writing, writing, written]
                socket.send_fds(control, [len(body).to_bytes(4, "big")], files)
            os.close(writing)
            os.close(written)
            control.sendall(body)
            assert first_line(output_of_rank, seconds=30) == b"", "it has ended"
    finally:
        zygote.kill()
        zygote.wait()


def test_the_wait_for_a_process_that_never_reports_ends() -> None:
    silent = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with silent:
        assert silent.stdout is not None
        with pytest.raises(TimeoutError, match="has not within"):
            first_line(silent.stdout, seconds=0.1)
        silent.kill()
