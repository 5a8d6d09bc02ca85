"""A program that takes a controller's port. It does not know the token, and answers with a lie or not at all."""

import contextlib
import socket
import threading
import time

from tools.chaos.peers.lies import Lie, LieContext
from tools.chaos.peers.messages import Stream, close
from tools.chaos.peers.watch import Watch


class Squatter:
    """Serves ``lie`` (None: accepts and never answers) from ``bind`` to ``close``."""

    def __init__(self, lie: Lie | None, context: LieContext, name: str = "squatter") -> None:
        self._lie, self._context = lie, context
        self.watch = Watch(f"{name} ({'silent' if lie is None else lie.name})")
        self._listener: socket.socket | None = None
        self._connections: list[socket.socket] = []
        self._closing = threading.Event()

    @property
    def port(self) -> int:
        assert self._listener is not None
        return int(self._listener.getsockname()[1])

    def bind(self, port: int, seconds: float = 1.0) -> bool:
        """Bind the port as soon as it is free. Returns False when it stays taken."""
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
        self.watch.end()
        for sock in [self._listener, *self._connections]:
            if sock is not None:
                close(sock)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock = listener.accept()[0]
                self.watch.connected()
                self._connections.append(sock)
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            stream = Stream(sock, self.watch.saw)
            while (request := stream.message()) is not None:
                self.watch.asked(request.path)
                if self._lie is None:
                    continue
                if not self._lie.send(sock, request, None, self._context, self._closing):
                    break
        if self._lie is not None:
            close(sock)
