"""Processes forked from a ``zygote``, with the interface of ``subprocess.Popen``, started in milliseconds.

Why not a new interpreter each: 47 tests of ranks, the controller and torchrun (two workers, two shared cores,
2026-11-22) take 159 and 218 s forked, and 570 s with new interpreters, which import torch for 3 to 5 s each. Why not
``multiprocessing``'s fork server, which is as fast (with the same modules a start takes it 21 to 22 ms of computing,
and a zygote 18 to 21; 160 each, in turn, 2026-11-26): its processes run no ``atexit`` handlers, which the agent needs;
there is one server, so all of them order sets alike, which ranks of a real job do not; and they are children of
``multiprocessing`` to torch and to loaders of data, which ranks are not either.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
ZYGOTE = "tools.harness.zygote"
START_SECONDS = 240.0
"""Longer than a process takes to announce itself; less than a test may take, so that the reason is reported."""


def surroundings(**more: str) -> dict[str, str]:
    """An environment without settings of ours, in which each process orders its sets in its own way."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GRAVAC_")}
    kept.pop("PYTHONHASHSEED", None)
    return kept | more


def first_line(output: IO[bytes], seconds: float = START_SECONDS) -> bytes:
    """The first line of a process's output, empty when it ended without one. Raises TimeoutError when none comes."""
    if not select.select([output], [], [], seconds)[0]:
        raise TimeoutError(f"a process that was to announce itself has not within {seconds} s")
    return output.readline()


class Forked:
    """A running process; what it has is as in ``subprocess.Popen``."""

    def __init__(self, status: int, stdin: IO[bytes] | None, stdout: IO[bytes] | None) -> None:
        self._status = os.fdopen(status, "rb", buffering=0)
        self.stdin, self.stdout = stdin, stdout
        self.returncode: int | None = None
        try:
            self.pid = self._number()
        except BaseException:  # a test's time limit: the zygote ends what nobody waits for any more
            for file in (self._status, stdin, stdout):
                if file is not None:
                    file.close()
            raise

    def _number(self) -> int:
        line = self._status.readline()
        assert line.endswith(b"\n"), f"{ZYGOTE} is gone; its last words are above"
        return int(line)

    def wait(self, timeout: float | None = None) -> int:
        """Exit code, negative for a signal. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self.returncode = self._number()
            self._status.close()
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Zygote:
    """Forks processes that have imported ``modules``."""

    def __init__(self, *modules: str) -> None:
        self._control, theirs = socket.socketpair()
        self._asking = threading.Lock()
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", ZYGOTE, str(number), *modules],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[number],
                env=surroundings(OMP_NUM_THREADS="1"),
            )
        atexit.register(self.close)

    def start(
        self,
        *,
        environment: dict[str, str],
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO[Any] = subprocess.PIPE,
        stderr: int | IO[Any] = subprocess.STDOUT,
        argv: tuple[str, ...] = (),
        **what: Any,
    ) -> Forked:
        """Start ``module=name`` as ``python -m`` would, ``script=path``, or ``function="module:name"`` with
        ``arguments``. Files as in ``subprocess.Popen``: PIPE, DEVNULL, an open file, and STDOUT for standard error.
        """
        request = {"argv": argv, "environment": environment, "cwd": os.getcwd(), **what}
        body = json.dumps(request).encode()
        ours: dict[str, IO[bytes]] = {}
        with contextlib.ExitStack() as after:

            def theirs(name: str, wanted: int | IO[Any], mode: str) -> int:
                if wanted == subprocess.PIPE:
                    ends = os.pipe()
                    after.callback(os.close, ends[mode == "wb"])
                    ours[name] = os.fdopen(ends[mode == "rb"], "rb" if mode == "wb" else "wb")
                    return ends[mode == "wb"]
                if wanted == subprocess.DEVNULL:
                    return after.enter_context(open(os.devnull, mode)).fileno()
                return wanted if isinstance(wanted, int) else wanted.fileno()

            files = [theirs("stdin", stdin, "rb"), theirs("stdout", stdout, "wb")]
            files.append(files[1] if stderr == subprocess.STDOUT else theirs("stderr", stderr, "wb"))
            status, written = os.pipe()
            after.callback(os.close, written)
            with self._asking:
                socket.send_fds(self._control, [len(body).to_bytes(4, "big")], [*files, written])
                self._control.sendall(body)
        return Forked(status, ours.get("stdin"), ours.get("stdout"))

    def close(self) -> None:
        """No more; those that run go on."""
        atexit.unregister(self.close)
        self._control.close()
        self._process.wait()
