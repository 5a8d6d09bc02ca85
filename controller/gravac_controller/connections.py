"""Connections within bounds: how many there are, how long a request's head may take, and one error shape here too.

uvicorn answers an overload and bytes that are not HTTP with plain text of its own, and waits for ever for a client
that connects and says nothing.
"""

import asyncio

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from gravac_controller.headers import HEADERS
from gravac_controller.one_piece import OnePiece
from gravac_controller.problems import problem_response

SPARE_CONNECTIONS = 64
"""So many beyond the limit are told that there are too many; those beyond are dropped unheard."""


def bounded(most: int, seconds: float) -> type[H11Protocol]:
    """uvicorn's protocol for at most ``most`` connections at once, each with ``seconds`` for the head of a request."""

    class Bounded(BoundedConnection):
        most_connections = most
        head_seconds = seconds

    return Bounded


class BoundedConnection(H11Protocol):
    """One connection. Beyond the limit each request is answered 503, so that the client knows why."""

    most_connections: int
    head_seconds: float
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = OnePiece(transport, self.loop)  # type: ignore[assignment]
        if len(self.connections) > self.most_connections + SPARE_CONNECTIONS:
            transport.abort()
        elif len(self.connections) > self.most_connections:
            self.app = _too_many
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._head_timer is None:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Bytes that are not HTTP, in the shape of every other error."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # an answer is under way already
            self.transport.close()
            return
        problem = problem_response(400, "this is not an HTTP request that can be understood", headers=HEADERS)
        head = [*problem.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=400, headers=head, reason=b"Bad Request"),
            h11.Data(data=bytes(problem.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
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
        "too many connections are open; try again shortly, or raise GRAVAC_CONTROLLER_MAX_CONNECTIONS",
        headers={**HEADERS, "retry-after": "5", "connection": "close"},
    )
    await answer(scope, receive, send)
