"""A program that takes a controller's port. It does not know the token, and answers with a lie or not at all."""

import contextlib
import socket

from tools.chaos.peers.lies import Lie, LieContext
from tools.chaos.peers.messages import Server, Stream, close
from tools.chaos.peers.watch import Watch


class Squatter(Server):
    """Serves ``lie`` (None: accepts and never answers)."""

    def __init__(self, lie: Lie | None, context: LieContext, name: str = "squatter") -> None:
        super().__init__()
        self._lie, self._context = lie, context
        self.watch = Watch(f"{name} ({'silent' if lie is None else lie.name})")

    def close(self) -> None:
        self.watch.end()
        super().close()

    def _serve(self, sock: socket.socket) -> None:
        self.watch.connected()
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
