"""Signals to ``gravac observe`` reach its program, once each, and what the program makes of them is its own affair."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

GRAVAC = [sys.executable, "-m", "gravac_controller"]
LISTENS = """
import os, signal, sys
for number in map(int, sys.argv[1:]):
    signal.signal(number, lambda number, _: os.write(1, f"{number}\\n".encode()))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
os.write(1, b"up\\n")
while True: signal.pause()
"""
SENT = [
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGALRM,
    signal.SIGABRT,
    signal.SIGXCPU,
    signal.SIGWINCH,
    signal.SIGCONT,
    signal.SIGRTMIN + 5,
]

pytestmark = pytest.mark.distributed


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start ``gravac observe`` with a program, in a group of its own."""
    started: list[subprocess.Popen[str]] = []

    def begin(*command: str, **variables: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*GRAVAC, "observe", "--", *command],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **variables},
        )
        started.append(process)
        assert line(process) == "up\n"
        return process

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_each_signal_reaches_the_program_once(
    begun: Callable[..., subprocess.Popen[str]], send: Callable[[int, int], None]
) -> None:
    process = begun(sys.executable, "-c", LISTENS, *(str(int(each)) for each in SENT))
    for number in SENT:
        send(process.pid, number)
        assert line(process) == f"{int(number)}\n", number
    time.sleep(0.5)  # in which a second one would come
    send(process.pid, signal.SIGTERM)
    left, said = process.communicate(timeout=30)
    assert (left, process.returncode) == ("", 9), said
    assert "SIGUSR1 came" not in said, "that did not end it"
    assert "no verdict: SIGTERM came before a step of an optimizer was recorded" in said


def test_a_signal_that_comes_while_another_one_is_noted_is_passed_on_too() -> None:
    """On a busy machine it came between two lines of the handler, and neither was passed on."""
    program = f"""
import os, signal, sys
from gravac_controller.server.running import Running

class Interrupted(list):
    def append(self, number):
        super().append(number)
        if number == signal.SIGUSR1:
            os.kill(os.getpid(), signal.SIGUSR2)

running = Running([sys.executable, "-c", {LISTENS!r}, str({signal.SIGUSR1:d}), str({signal.SIGUSR2:d})], os.environ)
assert sys.stdin.readline() == "up\\n"
running._waiting = Interrupted()
os.kill(os.getpid(), signal.SIGUSR1)
print(running.came, running._waiting, file=sys.stderr)
os.kill(os.getpid(), signal.SIGTERM)
print(running.ended(30.0), running.came, file=sys.stderr)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert line(process) == "up\n"
    assert process.stdin is not None
    process.stdin.write("up\n")
    process.stdin.flush()
    left, noted = process.communicate(timeout=30)
    assert left.splitlines() == ["10", "12"]
    assert noted.splitlines() == ["[10, 12] []", "9 [10, 12, 15]"]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGQUIT])
def test_a_signal_that_the_program_dies_of(
    begun: Callable[..., subprocess.Popen[str]], number: signal.Signals
) -> None:
    process = begun(sys.executable, "-c", LISTENS)
    os.kill(process.pid, number)
    process.communicate(timeout=30)
    assert process.returncode == 128 + number


def test_a_stop_of_the_terminal_stops_both_until_they_continue(
    begun: Callable[..., subprocess.Popen[str]],
) -> None:
    process = begun(sys.executable, "-c", LISTENS, str(int(signal.SIGTSTP)), str(int(signal.SIGCONT)))
    os.kill(process.pid, signal.SIGTSTP)
    assert line(process) == f"{int(signal.SIGTSTP)}\n"
    until = time.monotonic() + 20
    while (state := stat(process.pid)[0]) != "T" and time.monotonic() < until:
        time.sleep(0.05)
    assert state == "T", "as a shell waits for it"
    os.kill(process.pid, signal.SIGCONT)
    assert line(process) == f"{int(signal.SIGCONT)}\n"


def test_a_signal_that_was_ignored_stays_so_for_the_program(tmp_path: Path) -> None:
    """As under nohup."""
    code = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, signal.pthread_sigmask(0, ()))"
    found = subprocess.run(
        [*GRAVAC, "observe", "--", sys.executable, "-c", code],
        cwd=tmp_path,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.stdout == "True set()\n", found.stderr


def test_nothing_else_is_needed_and_nothing_is_left(
    begun: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """No program in PATH, and no process where gravac observe is killed."""
    process = begun(sys.executable, "-c", LISTENS, PATH=str(tmp_path))
    helpers = {each for each in children(process.pid) if b"gravac_controller" in command_of(each)}
    assert helpers, "the one that tells who a signal went to"
    process.kill()
    process.wait()
    until = time.monotonic() + 20
    while any(Path(f"/proc/{each}").exists() for each in helpers) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{each}").exists() for each in helpers)


TRAINS = """
import os, signal, sys, time, torch
model = torch.nn.Linear(4, 4)
trained = torch.optim.SGD(model.parameters(), lr=0.1)
def end(*_): sys.exit(5)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, end)
for step in range(13):
    model(torch.ones(2, 4)).sum().backward()
    trained.step()
os.write(1, b"up\\n")
time.sleep(60)
"""


def test_who_ends_the_job_does_not_wait_for_a_verdict(begun: Callable[..., subprocess.Popen[str]]) -> None:
    """Docker kills ten seconds after SIGTERM."""
    process = begun(sys.executable, "-c", TRAINS)
    os.kill(process.pid, signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 5
    assert "gravac observe: no verdict yet: SIGTERM came. The traces are kept. To judge them: " in said, said
    assert "gravac observe gravac-runs/observe/" in said
    assert "Why: " not in said


def test_an_interrupt_of_the_training_leaves_time_for_the_verdict(
    begun: Callable[..., subprocess.Popen[str]],
) -> None:
    """And a signal that asks for nothing like an end, while it is made, ends nothing."""
    process = begun(sys.executable, "-c", TRAINS)
    (trained,) = (each for each in children(process.pid) if b"gravac_controller" not in command_of(each))
    os.kill(process.pid, signal.SIGINT)
    until = time.monotonic() + 30
    while trained in children(process.pid) and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGUSR1)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 5
    assert "Not the network: nothing is communicated." in said
    assert "The traces are kept. To ask more of them: gravac observe gravac-runs/observe/" in said


def line(process: subprocess.Popen[str]) -> str:
    """Return the next line that the program prints; empty where none comes."""
    assert process.stdout is not None
    return process.stdout.readline() if select.select([process.stdout], [], [], 60.0)[0] else ""


def test_a_signal_at_the_very_end_does_not_change_the_code(
    begun: Callable[..., subprocess.Popen[str]],
) -> None:
    process = begun(sys.executable, "-c", LISTENS, str(int(signal.SIGUSR1)))
    os.kill(process.pid, signal.SIGTERM)
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGUSR1)
        time.sleep(0.001)
    assert process.returncode == 9


def stat(process: int) -> list[str]:
    """Return the fields of a process after its name: state, parent, …"""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def command_of(process: int) -> bytes:
    return Path(f"/proc/{process}/cmdline").read_bytes()


def children(process: int) -> set[int]:
    return set(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))
