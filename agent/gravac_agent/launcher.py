"""Starting a controller beside rank 0, as a process: it may die without touching the training."""

import contextlib
import json
import logging
import os
import secrets
import select
import subprocess
import sys
import time
from pathlib import Path

log = logging.getLogger("gravac.agent")


class ControllerProcess:
    """``python -m gravac_controller serve`` for one job's folder. The token travels in its environment, never on a
    command line; it ends when this process does (its standard input closes)."""

    def __init__(self, data_dir: Path, job: str, port: int, owner_may_steer: bool = False) -> None:
        self.data_dir, self.job, self.port = data_dir, job, port
        self._steering = {"GRAVAC_CONTROLLER_OWNER_MAY_STEER": "true"} if owner_may_steer else {}
        self.token = secrets.token_hex(32)
        self.url: str | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, seconds: float = 30.0) -> str:
        """Start it, wait until it says where it listens, return the address. Raises OSError when it does not."""
        self.stop()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        log_path = self.data_dir / "controller.log"
        command = [sys.executable, "-m", "gravac_controller", "serve", "--announce", "--with-parent"]
        command += ["--data-dir", str(self.data_dir), "--job", self.job, "--port", str(self.port)]
        with log_path.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "GRAVAC_TOKEN": self.token, **self._steering},
                start_new_session=True,  # Ctrl-C reaches the trainer, which then ends the controller in order
            )
        line = self._first_line(seconds)
        try:
            self.url = str(json.loads(line)["url"])
        except (ValueError, KeyError, TypeError):
            self.stop()
            raise OSError(f"the controller did not start; see {log_path}") from None
        self.port = int(
            self.url.rsplit(":", 1)[1]
        )  # the same address after a restart, so open pages come back
        return self.url

    def stop(self, seconds: float = 5.0) -> None:
        """Ask it to end (its standard input closes), then insist."""
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

    def _first_line(self, seconds: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        stream, until, line = self._process.stdout, time.monotonic() + seconds, b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([stream], [], [], max(0.0, until - time.monotonic()))
            piece = os.read(stream.fileno(), 4096) if ready else b""
            if not piece:
                break
            line += piece
        return line
