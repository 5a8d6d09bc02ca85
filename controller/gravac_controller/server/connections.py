"""Bounds on connections: time and size of a request's head, clients that take no answer, and too many connections.

uvicorn alone answers overload and bytes that are not HTTP with plain text, and waits for ever for a client that
connects and sends nothing, or that never reads its answer. This is a safety bound, not a speed-up: beside 600
connections that send half a request or open streams, an agent on the same machine gets none of 100 windows answered
without it, and all 100 with it (tests/controller/server/test_connections.py).

Every client on one machine has the address 127.0.0.1, so no limit per address could tell an agent from a flood. But an
agent's connection sends a whole request within milliseconds. So connections without a request may be closed at any
time: the oldest one of the address with the most of them. Among requests, one with a token or a report may replace one
that only reads or that is not complete.
"""

import asyncio
from collections import OrderedDict
from typing import Generic, Protocol, TypeVar

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gravac_controller.api.access import SAFE_METHODS, Access, Role
from gravac_controller.api.problems import problem_response
from gravac_controller.api.responses import HEADERS
from gravac_controller.settings import Limits

MOST_HEAD_BYTES = 1 << 16
"""Bound on the head of a request, and on the bytes between two pieces of its body. The parser itself has none."""
SPARE_CONNECTIONS = 64
"""Connections beyond the limit on requests that may wait for their next request."""


class LimitedConnection(Protocol):
    """What ``ConnectionLimit`` needs of a connection."""

    @property
    def address(self) -> str:
        """Address of the client, without port."""
        ...

    @property
    def expendable(self) -> bool:
        """Whether its request may be aborted: it has no token, and only reads or is not complete."""
        ...

    def abort(self) -> None:
        """Close it at once. The limit no longer counts it."""
        ...


C = TypeVar("C", bound=LimitedConnection)


class ConnectionLimit(Generic[C]):
    """The open connections of a server: at most ``most`` with a request, and ``SPARE_CONNECTIONS`` more in all."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._idle: dict[str, OrderedDict[C, None]] = {}  # by address, oldest first
        self._busy: OrderedDict[C, None] = OrderedDict()  # oldest first
        self._open = 0

    def __len__(self) -> int:
        return self._open

    def opened(self, connection: C) -> None:
        """Count a new connection. Above the limit, abort the oldest idle one of the address with the most."""
        self._open += 1
        self._idle.setdefault(connection.address, OrderedDict())[connection] = None
        if self._open > self.most + SPARE_CONNECTIONS:
            largest = max(self._idle.values(), key=len)
            self._abort(next(iter(largest)))

    def closed(self, connection: C) -> None:
        """Forget a connection. A second call does nothing."""
        if connection in self._busy:
            del self._busy[connection]
        elif not self._remove_idle(connection):
            return
        self._open -= 1

    def admit(self, connection: C, *, priority: bool) -> bool:
        """Return whether the request may be answered, whose head has arrived.

        ``priority``: above the limit it may replace an expendable one.
        """
        if not self._remove_idle(connection):
            return True  # a further request behind one in progress
        self._busy[connection] = None
        if len(self._busy) <= self.most:
            return True
        return priority and self._abort_other(connection)

    def answered(self, connection: C) -> None:
        """Count a connection as idle again."""
        if connection in self._busy:
            del self._busy[connection]
            self._idle.setdefault(connection.address, OrderedDict())[connection] = None

    def _abort_other(self, connection: C) -> bool:
        """Abort an expendable request of the address with the most of them; return whether there was one."""
        expendable: dict[str, list[C]] = {}
        for other in self._busy:
            if other is not connection and other.expendable:
                expendable.setdefault(other.address, []).append(other)
        if not expendable:
            return False
        self._abort(max(expendable.values(), key=len)[0])
        return True

    def _abort(self, connection: C) -> None:
        self.closed(connection)
        connection.abort()

    def _remove_idle(self, connection: C) -> bool:
        idle = self._idle.get(connection.address)
        if idle is None or connection not in idle:
            return False
        del idle[connection]
        if not idle:
            del self._idle[connection.address]
        return True


def bounded(most: int, limits: Limits, allowed: Access) -> type[HttpToolsProtocol]:
    """Return a uvicorn protocol with these bounds.

    Args:
        most: Requests at once.
        limits: Has the timeouts for the head of a request and for a client that takes no byte of its answer.
        allowed: The access rules, which decide whose requests have priority.
    """

    class Bounded(BoundedConnection):
        limit = ConnectionLimit(most)
        head_seconds = limits.head_seconds
        stall_seconds = limits.stall_seconds
        access = allowed

    return Bounded


class BoundedConnection(HttpToolsProtocol):
    """One connection. A request beyond the limit gets a 503, so that the client knows why."""

    limit: "ConnectionLimit[BoundedConnection]"
    head_seconds: float
    stall_seconds: float
    access: Access
    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _has_token = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()
        self.limit.opened(self)

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def expendable(self) -> bool:
        cycle = self.cycle
        if cycle is None:  # its head could not be parsed
            return True
        return not self._has_token and (cycle.scope["method"] in SAFE_METHODS or cycle.more_body)

    def abort(self) -> None:
        self.transport.abort()

    def on_headers_complete(self) -> None:
        headers, safe = Headers(raw=self.headers), self.parser.get_method().decode("ascii") in SAFE_METHODS
        self._has_token = self.access.bearer(headers)
        priority = self._has_token or (not safe and self.access.role(headers) >= Role.AGENT)
        app = self.app
        if not self.limit.admit(self, priority=priority):
            self.app = _too_many
        try:
            super().on_headers_complete()
        finally:
            self.app = app

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # no further request waits behind it
            self.limit.answered(self)

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

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reading()

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_stall_timer()
        self.limit.closed(self)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP, in the shape of every other error."""
        self._refuse(400, "this is not a valid HTTP request", "not_http")

    def _refuse(self, status: int, detail: str, reason: str) -> None:
        """Answer and close; only close where an answer has already begun."""
        begun = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if not begun and not self.pipeline:  # of several requests the first may be half answered
            problem = problem_response(
                status, detail, headers={**HEADERS, "connection": "close"}, reason=reason
            )
            head = b"".join(b"%b: %b\r\n" % pair for pair in problem.raw_headers)
            self.transport.write(b"%b%b\r\n%b" % (STATUS_LINE[status], head, bytes(problem.body)))
        if self.cycle is not None:  # a request in progress must not be answered as well
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_seconds, self.transport.close)

    def _await_reading(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(self.stall_seconds, self._check_reading, left)

    def _check_reading(self, before: int) -> None:
        """Close at once where the client took no byte: ``close`` would wait for it to take them all."""
        if self.transport.get_write_buffer_size() < before:
            self._await_reading()
        else:
            self.transport.abort()

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


async def _too_many(scope: Scope, receive: Receive, send: Send) -> None:
    answer = problem_response(
        503,
        "too many requests at once; try again shortly, or raise GRAVAC_CONTROLLER_MAX_CONNECTIONS",
        headers={**HEADERS, "retry-after": "5", "connection": "close"},
        reason="too_many_connections",
    )
    await answer(scope, receive, send)
