"""What is asked of the controller: how often, with what answer, and how long until the answer begins.

``Counted`` stands inside the guard, so it sees what was let in; what the guard refuses is counted by reason elsewhere.
Labels are the routes' templates and known words, never what a client wrote.
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

from starlette.types import ASGIApp, Message, Receive, Scope, Send

BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Upper bounds of the buckets, in seconds."""
METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
OTHER = "other"
"""Route of pages and files, of paths there are none, and name of a method there is none."""


@dataclass(frozen=True, slots=True)
class Durations:
    """One histogram. ``counts``: cumulative, one for each of ``BOUNDS`` and one for all."""

    counts: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class TrafficPicture:
    """All of it at one moment. ``requests`` by (route, method, code), ``durations`` by (route, method)."""

    requests: dict[tuple[str, str, str], int]
    durations: dict[tuple[str, str], Durations]


@dataclass
class Traffic:
    """Counts since the controller started. Lives on the event loop."""

    clock: Callable[[], float] = time.monotonic
    _requests: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _buckets: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    _seconds: dict[tuple[str, str], float] = field(default_factory=dict)

    def note(self, route: str, method: str, code: int, seconds: float) -> None:
        """Count one answer that began ``seconds`` after its request."""
        self._requests[route, method, str(code)] += 1
        buckets = self._buckets.setdefault((route, method), [0] * (len(BOUNDS) + 1))
        buckets[bisect_left(BOUNDS, seconds)] += 1
        self._seconds[route, method] = self._seconds.get((route, method), 0.0) + seconds

    def picture(self) -> TrafficPicture:
        """The counts of now."""
        return TrafficPicture(
            dict(self._requests),
            {
                key: Durations(tuple(accumulate(buckets)), self._seconds[key])
                for key, buckets in self._buckets.items()
            },
        )


class Counted:
    """ASGI middleware that notes every answer in ``traffic``."""

    def __init__(self, app: ASGIApp, traffic: Traffic) -> None:
        self._app, self._traffic = app, traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = self._traffic.clock()

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                seconds = self._traffic.clock() - began
                self._traffic.note(_route(scope), _method(scope), message["status"], seconds)
            await send(message)

        await self._app(scope, receive, noting)


def _route(scope: Scope) -> str:
    """The template of the route that took the request, which the router leaves in its scope."""
    template = str(getattr(scope.get("route"), "path", OTHER))
    return OTHER if template.startswith("/static/") else template


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in METHODS else OTHER
