"""Controllers: their processes, and one that we serve behind a proxy and kill, stop and start again."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

from tools.chaos.peers.proxy import Proxy


class Served:
    """``python -m gravac_controller serve`` with a token, behind a proxy; killed and started again."""

    def __init__(self, folder: Path, log: Path, proxy: Proxy, environment: dict[str, str]) -> None:
        self.token = secrets.token_hex(24)
        self._folder, self._log, self._proxy, self._environment = folder, log, proxy, environment
        self._process: subprocess.Popen[bytes] | None = None
        self._starting: threading.Thread | None = None
        self._wanted = False

    @property
    def pid(self) -> int | None:
        """Of the running process; None while there is none."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def start(self, after: float = 0.0) -> None:
        """Start it in the background after ``after`` seconds, and retry until it runs."""
        self._wanted = True
        if self._starting is None or not self._starting.is_alive():
            self._starting = threading.Thread(target=self._start, args=(after,), daemon=True)
            self._starting.start()

    def wait(self, seconds: float = 60.0) -> bool:
        """Wait until it answers."""
        until = time.monotonic() + seconds
        while (self._proxy.upstream is None or self.pid is None) and time.monotonic() < until:
            self.start()
            time.sleep(0.02)
        return self._proxy.upstream is not None

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._proxy.upstream = None
            self._close_pipes(self._process)

    def stop(self) -> None:
        """Stop it and do not start it again."""
        self._wanted = False
        if self._starting is not None:
            self._starting.join(30)
        if self._process is not None:
            send(self._process.pid, signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
            self._close_pipes(self._process)

    def _start(self, after: float) -> None:
        time.sleep(after)
        while self._wanted and self.pid is None:
            command = [sys.executable, "-m", "gravac_controller", "serve", "--with-parent"]
            with self._log.open("ab") as errors:
                process = subprocess.Popen(
                    [*command, "--port", "0", "--data-dir", str(self._folder)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env={**os.environ, **self._environment, "GRAVAC_TOKEN": self.token},
                )
            assert process.stdout is not None
            self._process = process
            line = process.stdout.readline()
            if line:
                parts = urlsplit(json.loads(line)["url"])
                self._proxy.upstream = (str(parts.hostname), int(parts.port or 0))
                return
            process.wait()  # it does not start while the disk is full
            self._close_pipes(process)
            time.sleep(0.2)

    def _close_pipes(self, process: subprocess.Popen[bytes]) -> None:
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def children(parent: int) -> list[int]:
    """Return the running controllers that this process started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                after = (entry / "stat").read_text().rpartition(")")[2].split()
                ours = int(after[1]) == parent and after[0] != "Z"
                if ours and b"gravac_controller" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def of_folder(folder: Path) -> list[int]:
    """Return the running controllers of a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()  # empty once it has ended
                if b"gravac_controller" in command and str(folder).encode() in command:
                    found.append(int(entry.name))
    return found


def token_of(pid: int) -> str | None:
    """Return the token in a process's environment."""
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name == b"GRAVAC_TOKEN":
                return value.decode()
    return None


def send(pid: int | None, number: int) -> bool:
    """Send a signal. Returns False when there is no such process."""
    if pid is None:
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
