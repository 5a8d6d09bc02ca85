"""Starting a controller beside rank 0, as a process: it may die without touching the training."""

import contextlib
import json
import logging
import os
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from gravac.wording import printable

log = logging.getLogger("gravac.agent")

MAX_LOG_TAIL_BYTES = 2000


class ControllerProcess:
    """``python -m gravac_controller serve`` for one job's folder.

    The token travels in its environment, never on a command line. It ends when this process does: its standard input
    closes.

    Args:
        data_dir: folder of the journals; the controller's log is in it.
        job: the one job that it serves.
        port: where it listens; 0: any free port. A port that is taken is replaced by a free one.
    """

    def __init__(self, data_dir: Path, job: str, port: int, owner_may_steer: bool = False) -> None:
        self.data_dir, self.job, self.port = data_dir, job, port
        self._steering = {"GRAVAC_CONTROLLER_OWNER_MAY_STEER": "true"} if owner_may_steer else {}
        self.token = secrets.token_hex(32)
        self.url: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock, self._closed = threading.Lock(), False

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None else process.pid

    def alive(self) -> bool:
        process = self._process
        return process is not None and process.poll() is None

    def start(self, seconds: float = 30.0) -> str:
        """Start it, wait until it says where it listens, and return that address.

        After a restart it listens where it did before, so that open pages come back; where another program has that
        port by now, on a free one.

        Raises:
            OSError: it did not start within ``seconds``; the message has the last line of its log.
        """
        self.stop()
        taken = self.port if self.port and _is_taken(self.port) else 0
        try:
            self.url = self._start(0 if taken else self.port, time.monotonic() + seconds)
        except OSError:
            if taken or not self.port or not _is_taken(self.port):
                raise
            taken = self.port  # another program took it just now
            self.url = self._start(0, time.monotonic() + seconds)
        if taken:
            log.warning("port %d is taken; the live page is at %s now", taken, self.url)
        self.port = int(self.url.rsplit(":", 1)[1])
        return self.url

    def close(self) -> None:
        """End it for good: a start that is under way in another thread fails."""
        with self._lock:
            self._closed = True
        self.stop()

    def stop(self, seconds: float = 2.0) -> None:
        """Ask it to end (its standard input closes), then insist. All that it acknowledged is on disk."""
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """End it at once."""
        process = self._process
        if process is not None:
            process.kill()
        self.stop()

    def _start(self, port: int, until: float) -> str:
        log_path = self.data_dir / "controller.log"
        self.data_dir.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "gravac_controller", "serve", "--announce", "--with-parent"]
        command += ["--data-dir", str(self.data_dir), "--job", self.job, "--port", str(port)]
        with self._lock, log_path.open("ab") as errors:
            if self._closed:
                raise OSError("the agent is closed")
            begin = errors.tell()
            self._process = process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "GRAVAC_TOKEN": self.token, **self._steering},
                start_new_session=True,  # Ctrl-C reaches the trainer, which then ends the controller in order
            )
        try:
            return str(json.loads(_first_line(process, until))["url"])
        except (OSError, ValueError, KeyError, TypeError):
            self.kill()
            raise OSError(f"the controller did not start: {_tail(log_path, begin)}") from None


def _is_taken(port: int) -> bool:
    """Whether another program listens there. On a busy machine a controller takes long to find that out."""
    try:
        with socket.create_server(("127.0.0.1", port)):
            return False
    except OSError:
        return True


def _first_line(process: subprocess.Popen[bytes], until: float) -> bytes:
    assert process.stdout is not None
    stream, line = process.stdout, b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([stream], [], [], max(0.0, until - time.monotonic()))
        piece = os.read(stream.fileno(), 4096) if ready else b""
        if not piece:
            break
        line += piece
    return line


def _tail(path: Path, begin: int) -> str:
    """The last line that this start wrote into its log, safe to print."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(begin, file.tell() - MAX_LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError as error:
        return f"its log cannot be read: {error}"
    last = lines[-1] if lines else "it wrote nothing"
    return f"{printable(last, 400)} (log: {path})"
