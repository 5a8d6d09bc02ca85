"""HTTP messages as bytes on a socket, and a server of connections that speaks them."""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

_LENGTH = re.compile(rb"(?im)^content-length:[ \t]*(\d+)")
_PIECE = 65536


@dataclass(frozen=True)
class Message:
    """One request or answer with a Content-Length (none: no body). ``head`` includes the empty line at its end."""

    head: bytes
    body: bytes

    @property
    def raw(self) -> bytes:
        return self.head + self.body

    @property
    def path(self) -> str:
        """Of a request: without the query."""
        words = self.head.split(b" ", 2)
        return words[1].partition(b"?")[0].decode("latin-1") if len(words) == 3 else ""

    @property
    def status(self) -> int:
        """Of an answer; 0 where there is none."""
        words = self.head.split(b" ", 2)
        return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0


class Stream:
    """Reads messages from a socket. ``seen`` is called with all bytes as they come."""

    def __init__(self, sock: socket.socket, seen: Callable[[bytes], None] = lambda piece: None) -> None:
        self.sock, self._seen, self._rest = sock, seen, b""

    def message(self) -> Message | None:
        """The next message, or None when the other side closed (in the middle of one, too). Raises OSError."""
        while b"\r\n\r\n" not in self._rest:
            if not self._more():
                return None
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        size = int(length[1]) if length else 0
        while len(self._rest) < size:
            if not self._more():
                return None
        body, self._rest = self._rest[:size], self._rest[size:]
        return Message(head + b"\r\n\r\n", body)

    def _more(self) -> bool:
        piece = self.sock.recv(_PIECE)
        self._seen(piece)
        self._rest += piece
        return bool(piece)


def answer(status: str, body: bytes, *headers: str, kind: str = "application/json") -> bytes:
    """Return the bytes of an answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def close(sock: socket.socket) -> None:
    """Close a connection or listener, also one that another thread waits on."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


class Server:
    """Serves the connections to a port of 127.0.0.1, each in a thread, from ``bind`` to ``close``."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None
        self._connections: list[socket.socket] = []
        self._closing = threading.Event()

    @property
    def port(self) -> int:
        assert self._listener is not None
        return int(self._listener.getsockname()[1])

    def bind(self, port: int, seconds: float = 1.0) -> bool:
        """Bind the port as soon as it is free; 0: any port. Returns False when it stays taken."""
        until = time.monotonic() + seconds
        while True:
            with contextlib.suppress(OSError):
                self._listener = socket.create_server(("127.0.0.1", port))
                break
            if time.monotonic() > until:
                return False
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
        return True

    def close(self) -> None:
        self._closing.set()
        for sock in [self._listener, *self._connections]:
            if sock is not None:
                close(sock)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock = listener.accept()[0]
                self._connections = [one for one in self._connections if one.fileno() >= 0] + [sock]
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        raise NotImplementedError
