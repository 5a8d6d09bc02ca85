"""Starts a controller beside rank 0, in its own process, which can die without harm to the training."""

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

from gravac.traces.own_files import make_folder, open_own
from gravac.wording import printable

log = logging.getLogger("gravac.agent")

MAX_LOG_TAIL_BYTES = 2000


class ControllerProcess:
    """``python -m gravac_controller serve`` for one job's folder.

    The token is passed in its environment, never on a command line. The controller ends when this process does,
    because its standard input closes.

    Args:
        data_dir: Folder of the journals; the controller's log is in it.
        job: The only job that it serves.
        port: Port to listen at; 0: any free port. Where the port is taken, it uses a free one.
        owner_may_steer: Allow the owner to override decisions.
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
        """Start it and wait until it listens.

        After a restart it uses the same port, so that open pages reconnect, or a free one where another program has
        taken that port.

        Returns:
            Its address.

        Raises:
            OSError: The controller did not start within ``seconds``; the message has the last line of its log, or says
                that the folder cannot be written.
        """
        try:
            return self._start_on_a_free_port(seconds)
        except OSError as error:
            if error.errno is None:  # a message of this file
                raise
            raise OSError(
                f"data_dir={str(self.data_dir)!r} cannot be written, so there is no journal: {error.strerror}. Give "
                "another one: Agent(data_dir=…) or GRAVAC_DATA_DIR"
            ) from None

    def _start_on_a_free_port(self, seconds: float) -> str:
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
            log.warning("port %d is taken; the live page is at %s", taken, self.url)
        self.port = int(self.url.rsplit(":", 1)[1])
        return self.url

    def close(self) -> None:
        """End it for good. A start in progress in another thread fails."""
        with self._lock:
            self._closed = True
        self.stop()

    def stop(self, seconds: float = 2.0) -> None:
        """Close its standard input, which ends it; kill it after ``seconds``. What it acknowledged is on disk."""
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
        """Kill it."""
        process = self._process
        if process is not None:
            process.kill()
        self.stop()

    def _start(self, port: int, until: float) -> str:
        log_path = self.data_dir / "controller.log"
        make_folder(self.data_dir)
        command = [sys.executable, "-m", "gravac_controller", "serve", "--with-parent"]
        command += ["--data-dir", str(self.data_dir), "--job", self.job, "--port", str(port)]
        with self._lock, open(open_own(log_path, os.O_WRONLY | os.O_APPEND), "ab") as errors:
            if self._closed:
                raise OSError("the agent is closed")
            begin = errors.tell()
            self._process = process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "GRAVAC_TOKEN": self.token, **self._steering},
                start_new_session=True,  # Ctrl-C reaches only the trainer, which then ends the controller
            )
        try:
            return str(json.loads(_first_line(process, until))["url"])
        except (OSError, ValueError, KeyError, TypeError):
            self.kill()
            raise OSError(f"the controller did not start: {_tail(log_path, begin)}") from None


def _is_taken(port: int) -> bool:
    """Return whether another program listens there. A controller on a busy machine takes long to find that out."""
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
    """Return the last line of the log since ``begin``, safe to print."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(begin, file.tell() - MAX_LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError as error:
        return f"its log cannot be read: {error}"
    last = lines[-1] if lines else "its log is empty"
    return f"{printable(last, 400)} (log: {path})"
