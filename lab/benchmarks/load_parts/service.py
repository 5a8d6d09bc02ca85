"""A controller on a separate core, and plain HTTP to it."""

import http.client
import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

RATES = {"max_reads_per_second": 1e6, "max_changes_per_second": 1e6}
"""Rate limits must not bound the measurement."""


class Service:
    """``gravac serve`` on loopback, pinned to ``core``."""

    def __init__(self, folder: Path, core: int) -> None:
        command = [
            sys.executable,
            "-m",
            "tools.harness.limited",
            json.dumps(RATES),
            "serve",
            "--announce",
            "--with-parent",
            "--port",
            "0",
        ]
        self.process = subprocess.Popen(
            [*command, "--data-dir", str(folder / "runs")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        os.sched_setaffinity(self.process.pid, {core})
        assert self.process.stdout is not None
        self.url = str(json.loads(self.process.stdout.readline())["url"])
        parts = urlsplit(self.url)
        self.host, self.port = str(parts.hostname), int(parts.port or 0)

    def connection(self) -> http.client.HTTPConnection:
        """Return a connection that stays open."""
        return http.client.HTTPConnection(self.host, self.port, timeout=60)

    def resident_bytes(self) -> int:
        """Return the resident memory of the controller."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self) -> float:
        """Return the CPU time of the controller so far, all threads."""
        ticks = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.process.terminate()
        self.process.wait(30)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def send(connection: http.client.HTTPConnection, path: str, record: bytes) -> bytes:
    """POST a record's JSON; return the body of the answer. Raises RuntimeError for anything but 200.

    The controller closes connections that are idle for some seconds: then one new connection is made.
    """
    try:
        answer = _posted(connection, path, record)
    except (http.client.RemoteDisconnected, ConnectionError):
        connection.close()
        answer = _posted(connection, path, record)
    body = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path} answered {answer.status}: {body[:300]!r}")
    return body


def _posted(connection: http.client.HTTPConnection, path: str, record: bytes) -> http.client.HTTPResponse:
    connection.request("POST", path, record, {"Content-Type": "application/json"})
    return connection.getresponse()
