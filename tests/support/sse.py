"""A reader of event streams on a plain socket."""

import json
import socket
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tools.harness.controller import PATIENCE_SECONDS, Controller


@dataclass(frozen=True)
class Message:
    """One message; ``name`` is "" for a comment."""

    name: str
    id: int | None
    data: Any


class Reader:
    """Opens a stream. ``next`` waits for a message and skips comments unless asked for."""

    def __init__(self, controller: Controller, job: str = "job", after: str | None = None) -> None:
        self._socket = socket.create_connection((controller.host, controller.port), timeout=PATIENCE_SECONDS)
        again = "" if after is None else f"Last-Event-ID: {after}\r\n"
        self._socket.sendall(f"GET /v1/jobs/{job}/events HTTP/1.1\r\nHost: localhost\r\n{again}\r\n".encode())
        self._file = self._socket.makefile("rb")
        self.status = int(self._file.readline().split()[1])
        self.headers: dict[str, str] = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode().partition(":")
            self.headers[name.lower()] = value.strip()
        self._buffer = b""
        self.ended = False

    def next(self, comments: bool = False) -> Message | None:
        """Return the next message; None when the server ended the stream."""
        while True:
            while b"\n\n" not in self._buffer:
                size = self._file.readline()
                if not size or int(size, 16) == 0:
                    self.ended = bool(size)
                    return None
                self._buffer += self._file.read(int(size, 16))
                self._file.readline()
            text, _, self._buffer = self._buffer.partition(b"\n\n")
            message = parse(text.decode())
            if message.name or comments:
                return message

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


def parse(text: str) -> Message:
    """Parse a message from its lines, without the empty one at its end."""
    fields = dict(line.split(": ", 1) for line in text.split("\n") if not line.startswith(":"))
    data = json.loads(fields["data"]) if "data" in fields else None
    return Message(fields.get("event", ""), int(fields["id"]) if "id" in fields else None, data)
