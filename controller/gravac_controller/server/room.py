"""Who keeps a connection when there are too many: agents before readers, requests before silence.

Everything on one machine comes from one address, 127.0.0.1, so no limit per address could tell an agent from a flood.
What can: an agent's connection has sent a whole request within milliseconds. So a connection that is yet to send one
(or a next one) may be closed at any time to make room: the oldest of the address that holds most of them. Among
requests, one that shows a token or hands in a report may take the place of one that only looks or never completes.
"""

from collections import OrderedDict
from typing import Generic, Protocol, TypeVar

SPARE_CONNECTIONS = 64
"""So many connections beyond the limit on requests may wait for theirs."""


class Guest(Protocol):
    """A connection, as far as its place is concerned."""

    @property
    def address(self) -> str:
        """Where it comes from, without port."""
        ...

    @property
    def expendable(self) -> bool:
        """Whether its request may be broken off: it showed no token, and only looks or is not whole yet."""
        ...

    def evict(self) -> None:
        """Close it now, whatever is unsent. The room has forgotten it already."""
        ...


G = TypeVar("G", bound=Guest)


class Room(Generic[G]):
    """The open connections of a server: at most ``most`` with a request, ``SPARE_CONNECTIONS`` more in all."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._waiting: dict[str, OrderedDict[G, None]] = {}  # by address, oldest first
        self._busy: OrderedDict[G, None] = OrderedDict()  # oldest first
        self._open = 0

    def __len__(self) -> int:
        return self._open

    def enter(self, guest: G) -> None:
        """A new connection. Where that is one too many, the longest silent one of the largest crowd goes."""
        self._open += 1
        self._waiting.setdefault(guest.address, OrderedDict())[guest] = None
        if self._open > self.most + SPARE_CONNECTIONS:
            crowd = max(self._waiting.values(), key=len)
            self._send_away(next(iter(crowd)))

    def leave(self, guest: G) -> None:
        """It was closed. Twice is harmless."""
        if guest in self._busy:
            del self._busy[guest]
        elif not self._stop_waiting(guest):
            return
        self._open -= 1

    def begin(self, guest: G, *, matters: bool) -> bool:
        """It has sent a whole head; whether its request may be worked on. ``matters``: it may take another's place."""
        if not self._stop_waiting(guest):
            return True  # a further request behind one that is worked on
        self._busy[guest] = None
        if len(self._busy) <= self.most:
            return True
        return matters and self._break_off(guest)

    def done(self, guest: G) -> None:
        """Its request was answered: it waits for the next."""
        if guest in self._busy:
            del self._busy[guest]
            self._waiting.setdefault(guest.address, OrderedDict())[guest] = None

    def _break_off(self, guest: G) -> bool:
        """Make room among the requests; False when each of them matters."""
        crowds: dict[str, list[G]] = {}
        for other in self._busy:
            if other is not guest and other.expendable:
                crowds.setdefault(other.address, []).append(other)
        if not crowds:
            return False
        self._send_away(max(crowds.values(), key=len)[0])
        return True

    def _send_away(self, guest: G) -> None:
        self.leave(guest)
        guest.evict()

    def _stop_waiting(self, guest: G) -> bool:
        crowd = self._waiting.get(guest.address)
        if crowd is None or guest not in crowd:
            return False
        del crowd[guest]
        if not crowd:
            del self._waiting[guest.address]
        return True
