"""A proxy before a controller: it forwards everything, until an event makes it lie or cut connections for a while."""

import contextlib
import json
import random
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from tools.chaos.peers.lies import Lie, LieContext
from tools.chaos.peers.messages import Message, Server, Stream, answer, close
from tools.chaos.peers.watch import Watch

Cut = Literal["request lost", "before head", "within head", "between head and body", "within body"]
CUTS: tuple[Cut, ...] = (
    "request lost",
    "before head",
    "within head",
    "between head and body",
    "within body",
)
"""Where a connection is cut. In all but the first case the controller got the request and answered it."""
Scope = Literal["proof", "jobs", "windows", "events", "end", "all"]


def scope_of(path: str) -> str:
    """Return the kind of request that a path belongs to."""
    return path.rsplit("/", 1)[-1]


@dataclass
class Trouble:
    """What the proxy does to requests of ``scope``: cut them (the next ``times``), or answer them with a lie."""

    scope: Scope
    cut: Cut | None = None
    lie: Lie | None = None
    times: int = 1 << 30
    then: Callable[[], None] | None = None
    """Called once, in the middle of the first cut: kill the controller, for example."""
    unanswered_windows: int = 0
    """Windows that go unanswered first; the agent registers again after them."""
    watch: Watch = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if self.scope == "jobs":
            self.unanswered_windows = 1
        strict = self.lie is not None and not self.lie.plausible and self.scope in ("all", "windows")
        name = self.cut or (self.lie.name if self.lie else "")
        self.watch = Watch(f"the proxy ({name}, to {self.scope})", strict)

    def leaves_unanswered(self, request: Message) -> bool:
        """Whether this request goes unanswered, so that the agent registers again."""
        with self._lock:
            if self.unanswered_windows == 0 or scope_of(request.path) != "windows":
                return False
            self.unanswered_windows -= 1
            return True

    def takes(self, request: Message) -> bool:
        """Whether the trouble affects this request; counts it."""
        if self.scope not in ("all", scope_of(request.path)):
            return self.leaves_unanswered(request)
        if self.lie is not None and not self.lie.answers(request):
            return False
        with self._lock:
            self.times -= 1
            return self.times >= 0


class Proxy(Server):
    """Listens on a port of its own. ``upstream``: where the controller is; None: nowhere."""

    def __init__(self, context: LieContext, chance: random.Random) -> None:
        super().__init__()
        self.upstream: tuple[str, int] | None = None
        self.trouble: Trouble | None = None
        self.acknowledged: list[tuple[str, int]] = []
        """Incarnation and first step of windows whose honest 200 was forwarded whole."""
        self._context, self._chance = context, chance
        self.bind(0)
        self.url = f"http://127.0.0.1:{self.port}"

    def _serve(self, sock: socket.socket) -> None:
        opened_in = self.trouble
        lie = None if opened_in is None or opened_in.scope != "all" else opened_in.lie
        unproved = lie is not None and lie.any_request  # the agent gets nothing but lies on this connection
        if opened_in is not None:
            opened_in.watch.connected()

        def saw(piece: bytes) -> None:
            if unproved and opened_in is not None and opened_in is self.trouble:
                opened_in.watch.saw(piece)

        upstream: Stream | None = None
        try:
            stream = Stream(sock, saw)
            while (request := stream.message()) is not None:
                trouble = self.trouble
                if trouble is not None and trouble.watch.strict and trouble.watch.ended is None:
                    trouble.watch.asked(request.path)
                if trouble is not None and trouble.takes(request):
                    upstream, going = self._trouble(trouble, sock, upstream, request)
                    if not going:
                        return
                    continue
                upstream, reply = self._forward(upstream, request)
                if reply is None:
                    self._bad_gateway(sock)
                    return
                sock.sendall(reply.raw)
                self._note(request, reply)
        except OSError:
            pass
        finally:
            close(sock)
            if upstream is not None:
                close(upstream.sock)

    def _trouble(
        self, trouble: Trouble, sock: socket.socket, upstream: Stream | None, request: Message
    ) -> tuple[Stream | None, bool]:
        """Make the trouble. Returns the connection to the controller, and whether the one to the agent stays open."""
        reply: Message | None = None
        lie = trouble.lie
        if trouble.scope not in ("all", scope_of(request.path)):
            return upstream, False
        delivered = trouble.cut != "request lost" if lie is None else lie.delivered(self._chance)
        if delivered:
            upstream, reply = self._forward(upstream, request)
        if lie is not None:
            if lie.needs_honest and (reply is None or reply.status != 200):
                self._bad_gateway(sock)
                return upstream, False
            return upstream, lie.send(sock, request, reply, self._context, self._closing)
        if trouble.then is not None:
            done, trouble.then = trouble.then, None
            done()
        if reply is not None:
            head, body = reply.head, reply.body
            part = {
                "before head": 0,
                "within head": self._chance.randrange(1, len(head)),
                "between head and body": len(head),
                "within body": len(head) + self._chance.randrange(1, max(2, len(body))),
            }.get(str(trouble.cut), 0)
            sock.sendall(reply.raw[: min(part, len(reply.raw) - 1)])
        return upstream, False

    def _forward(self, upstream: Stream | None, request: Message) -> tuple[Stream | None, Message | None]:
        """Ask the controller, on the open connection or on a new one."""
        for stream in (upstream, None):
            if stream is None:
                stream = self._connect()
            if stream is None:
                return None, None
            with contextlib.suppress(OSError):
                stream.sock.sendall(request.raw)
                if (reply := stream.message()) is not None:
                    return stream, reply
            close(stream.sock)
            if request.path != "/v1/proof" and stream is not upstream:
                break
        return None, None

    def _connect(self) -> Stream | None:
        if self.upstream is None:
            return None
        with contextlib.suppress(OSError):
            sock = socket.create_connection(self.upstream, timeout=60)
            self._connections.append(sock)
            return Stream(sock)
        return None

    def _bad_gateway(self, sock: socket.socket) -> None:
        """Answer as proxies do without a controller: with a page of their own, or not at all."""
        if self._chance.random() < 0.5:
            sock.sendall(
                answer("502 Bad Gateway", b"<html><h1>502 Bad Gateway</h1></html>", kind="text/html")
            )

    def _note(self, request: Message, reply: Message) -> None:
        if reply.status == 200 and scope_of(request.path) == "windows":
            window = json.loads(request.body)
            self.acknowledged.append((window["incarnation"], window["first_step"]))
