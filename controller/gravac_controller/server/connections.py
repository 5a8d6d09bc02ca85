"""Connections within bounds: how long a request's head may take, who goes when there are too many (``room``), and one
error shape here too.

uvicorn answers an overload and bytes that are not HTTP with plain text of its own, and waits for ever for a client
that connects and says nothing.
"""

import asyncio

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gravac_controller.api.access import SAFE_METHODS, Access, Role
from gravac_controller.api.headers import HEADERS
from gravac_controller.api.problems import problem_response
from gravac_controller.server.room import Room

MOST_HEAD_BYTES = 1 << 16
"""Of a request's head, or of what stands between two pieces of its body; the parser itself would take any amount."""


def bounded(most: int, seconds: float, allowed: Access) -> type[HttpToolsProtocol]:
    """uvicorn's protocol for at most ``most`` requests at once, each with ``seconds`` for its head. ``allowed``: whose
    requests come first."""

    class Bounded(BoundedConnection):
        room = Room(most)
        head_seconds = seconds
        access = allowed

    return Bounded


class BoundedConnection(HttpToolsProtocol):
    """One connection. A request beyond the limit is answered 503, so that the client knows why."""

    room: "Room[BoundedConnection]"
    head_seconds: float
    access: Access
    _head_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _token_shown = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()
        self.room.enter(self)

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def expendable(self) -> bool:
        cycle = self.cycle
        if cycle is None:  # its head could not be understood
            return True
        return not self._token_shown and (cycle.scope["method"] in SAFE_METHODS or cycle.more_body)

    def evict(self) -> None:
        self.transport.abort()

    def on_headers_complete(self) -> None:
        headers, safe = Headers(raw=self.headers), self.parser.get_method().decode("ascii") in SAFE_METHODS
        self._token_shown = self.access.shown(headers)
        matters = self._token_shown or (not safe and self.access.role(headers) >= Role.AGENT)
        app = self.app
        if not self.room.begin(self, matters=matters):
            self.app = _too_many
        try:
            super().on_headers_complete()
        finally:
            self.app = app

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # no further request is waiting behind it
            self.room.done(self)

    def data_received(self, data: bytes) -> None:
        for begin in range(0, len(data), MOST_HEAD_BYTES):
            piece = data[begin : begin + MOST_HEAD_BYTES]
            self._head_bytes += len(piece)
            super().data_received(piece)
            if self._head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(
                    431, f"the head of a request has at most {MOST_HEAD_BYTES} bytes", "head_too_large"
                )
            if self.transport.is_closing():
                break
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._head_timer is None:
            self._await_head()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head_bytes = 0
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.room.leave(self)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Bytes that are not HTTP, in the shape of every other error."""
        self._refuse(400, "this is not an HTTP request that can be understood", "not_http")

    def _refuse(self, status: int, detail: str, reason: str) -> None:
        """Answer and close; only close where an answer is under way already."""
        begun = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if not begun and not self.pipeline:  # of several requests the first may be half answered
            problem = problem_response(
                status, detail, headers={**HEADERS, "connection": "close"}, reason=reason
            )
            head = b"".join(b"%b: %b\r\n" % pair for pair in problem.raw_headers)
            self.transport.write(b"%b%b\r\n%b" % (STATUS_LINE[status], head, bytes(problem.body)))
        if self.cycle is not None:  # what works on it must not answer as well
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


async def _too_many(scope: Scope, receive: Receive, send: Send) -> None:
    answer = problem_response(
        503,
        "too many requests are being answered; try again shortly, or raise GRAVAC_CONTROLLER_MAX_CONNECTIONS",
        headers={**HEADERS, "retry-after": "5", "connection": "close"},
        reason="too_many_connections",
    )
    await answer(scope, receive, send)
