"""A real controller process on a free port, and plain HTTP to it."""

import functools
import http.client
import itertools
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gravac.protocol import Record
from tools.harness.forked import Forked, Zygote, first_line, surroundings

PATIENCE_SECONDS = 60.0
"""Longer than anything takes on a busy machine; only what hangs takes as long."""


@dataclass(frozen=True)
class Answer:
    """Status, headers and body of one answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@functools.cache
def zygotes() -> Iterator[Zygote]:
    """Two zygotes in turn: a restarted controller has another hash seed, as in real use."""
    modules = ("gravac_controller.cli.serve", "uvicorn.loops.asyncio", "uvicorn.lifespan.off")
    return itertools.cycle([Zygote(*modules), Zygote(*modules)])


class Controller:
    """``python -m gravac_controller serve`` until ``stop`` or ``kill``.

    ``fresh``: a new interpreter that imports everything, as a user starts it, instead of a faster fork. ``limits``:
    others than a user's, by the names of ``Limits``.
    """

    def __init__(
        self,
        data_dir: Path,
        *arguments: str,
        port: int = 0,
        env: dict[str, str] | None = None,
        fresh: bool = False,
        limits: dict[str, float] | None = None,
    ) -> None:
        self.data_dir = data_dir
        module = "gravac_controller"
        command = ["serve", "--with-parent"]
        command += ["--port", str(port), "--data-dir", str(data_dir), *arguments]
        if limits:
            module, command = "tools.harness.limited", [json.dumps(limits), *command]
        self.log = data_dir.parent / f"{data_dir.name}.log"
        environment = surroundings(**(env or {}))
        self.process: subprocess.Popen[bytes] | Forked
        with self.log.open("ab") as errors:
            if fresh:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", module, *command],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=environment,
                )
            else:
                self.process = next(zygotes()).start(
                    module=module,
                    argv=tuple(command),
                    environment=environment,
                    stdin=subprocess.PIPE,
                    stderr=errors,
                )
        assert self.process.stdout is not None
        try:
            line = first_line(self.process.stdout)
        except TimeoutError as error:
            self.kill()
            raise RuntimeError(self.log.read_text()) from error
        if not line:
            self.process.wait(PATIENCE_SECONDS)
            self.close_pipes()
            raise RuntimeError(self.log.read_text())
        self.announced = json.loads(line)
        self.url: str = self.announced["url"]
        parts = urlsplit(self.url)
        self.host, self.port = str(parts.hostname), int(parts.port or 0)

    def ask(
        self,
        method: str,
        path: str,
        body: Record | bytes | str | None = None,
        headers: dict[str, str] | None = None,
        seconds: float = PATIENCE_SECONDS,
    ) -> Answer:
        """Send a request on a separate connection. Records are sent as JSON."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=seconds)
        given = dict(headers or {})
        if isinstance(body, Record):
            body = body.model_dump_json().encode()
            given.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, body, given)
            response = connection.getresponse()
            return Answer(
                response.status,
                {name.lower(): value for name, value in response.getheaders()},
                response.read(),
            )
        finally:
            connection.close()

    def raw(self, request: bytes, seconds: float = PATIENCE_SECONDS) -> bytes:
        """Send bytes and return one complete answer."""
        with socket.create_connection((self.host, self.port), timeout=seconds) as sock:
            sock.sendall(request)
            return read_answer(sock)

    def kill(self) -> None:
        """SIGKILL: it gets no chance to tidy up."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_SECONDS)
        self.close_pipes()

    def stop(self, seconds: float = PATIENCE_SECONDS) -> float:
        """SIGTERM; returns how many seconds it took to end."""
        began = time.monotonic()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(seconds)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait(PATIENCE_SECONDS)
            self.close_pipes()
        return time.monotonic() - began

    def close_pipes(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def read_answer(sock: socket.socket) -> bytes:
    """A complete answer: by its Content-Length, or until the server closes the connection."""
    answer = b""
    while not _complete(answer):
        piece = sock.recv(65536)
        if not piece:
            break
        answer += piece
    return answer


def _complete(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return bool(end) and len(body) >= int(line.partition(b":")[2])
    return False
