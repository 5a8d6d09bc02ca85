"""The checks before every route: Host allow-list, cross-site requests, token, rate limits. Adds the headers.

Host is checked separately from Origin because under DNS rebinding the two agree. There is no CORS: no other origin may
read an answer.
"""

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gravac_controller.api.access import (
    OPEN_PATHS,
    ROLE,
    SAFE_METHODS,
    STEERING_PATH,
    Access,
    Role,
    not_an_operator,
    steering_is_off,
    unauthorized,
)
from gravac_controller.api.problems import ApiError, problem_response
from gravac_controller.api.responses import CACHE_CONTROL, HEADERS
from gravac_controller.hosts import canonical_host, host_of

BURST_SECONDS = 10.0
"""A bucket holds the tokens of this long, so limits hold on average over about that time."""
MOST_KEYS = 4096
"""Buckets in memory. The least recently used one is dropped, which makes it full again."""

_RAW = {name.encode(): value.encode() for name, value in HEADERS.items()}
logger = logging.getLogger("gravac.controller")


class RateLimits:
    """Token buckets, one for each key, that fill with ``per_second``."""

    def __init__(self, per_second: float, now: Callable[[], float]) -> None:
        self._per_second, self._now = per_second, now
        self._most = max(1.0, per_second * BURST_SECONDS)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # key: tokens, and when

    def take(self, key: str) -> float:
        """Take a token from the key's bucket. Returns 0, or the seconds until the next token where it is empty."""
        now = self._now()
        tokens, then = self._buckets.pop(key, (self._most, now))
        tokens = min(self._most, tokens + (now - then) * self._per_second)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / self._per_second
        self._buckets[key] = (tokens if wait else tokens - 1, now)
        if len(self._buckets) > MOST_KEYS:
            self._buckets.popitem(last=False)
        return wait


class Guard:
    """ASGI middleware around the whole application.

    Args:
        app: The application.
        allowed_hosts: Names and addresses in Host that are served.
        access: The access rules.
        reads_per_second: Limit for each client address.
        changes_per_second: Limit for each job.
        count_refused: Called with the reason of each refusal.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        allowed_hosts: Iterable[str],
        access: Access,
        reads_per_second: float,
        changes_per_second: float,
        count_refused: Callable[[str], None],
    ) -> None:
        self.app = app
        self._hosts = frozenset(canonical_host(host) for host in allowed_hosts)
        self._access = access
        self._reads = RateLimits(reads_per_second, time.monotonic)
        self._changes = RateLimits(changes_per_second, time.monotonic)
        self._count_refused = count_refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, head = False, scope["method"] == "HEAD"

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = _completed(message.get("headers", ()))
            elif head:
                message = {**message, "body": b""}
            await send(message)

        try:
            role = self._check(scope)
        except ApiError as error:
            self._count_refused(error.reason)
            await error.response()(scope, receive, send_with_headers)
            return
        inner = {**scope, ROLE: role, "method": "GET" if head else scope["method"], "gravac.head": head}
        try:
            await self.app(inner, receive, send_with_headers)
        except Exception:
            logger.exception("unexpected error in %s %r", scope["method"], scope["path"])
            if started:
                raise
            detail = "an internal error of the controller; its log has the details"
            await problem_response(500, detail, reason="internal")(scope, receive, send_with_headers)

    def _check(self, scope: Scope) -> Role:
        """Return the role of the request. Raises ApiError 400, 401, 403, 429."""
        headers, path = Headers(scope=scope), scope["path"]
        hosts = headers.getlist("host")
        if len(hosts) != 1 or host_of(hosts[0]) not in self._hosts:
            raise ApiError(
                400,
                "this Host is not served here; if it is a name of this machine, start the controller with "
                "--allowed-host NAME",
                reason="foreign_host",
            )
        role, safe = self._access.role(headers), scope["method"] in SAFE_METHODS
        if safe and path in OPEN_PATHS:
            return role
        if not safe and not self._access.bearer(headers) and _cross_site(headers, hosts[0]):
            detail = (
                "send it from a page of this controller, or with Authorization: Bearer TOKEN: this request comes from "
                "a page of another site"
            )
            raise ApiError(403, detail, reason="cross_site")
        if role < (Role.VIEWER if safe else Role.AGENT):
            if not safe and path.endswith(STEERING_PATH):
                raise not_an_operator() if self._access.control_token else steering_is_off()
            raise unauthorized(safe)
        self._limit_rate(scope, safe)
        return role

    def _limit_rate(self, scope: Scope, safe: bool) -> None:
        if safe:
            client = scope.get("client")
            wait = self._reads.take(client[0] if client else "")
        else:
            wait = self._changes.take(_job_of(scope["path"]))
        if wait:
            raise ApiError(
                429,
                f"too many requests; try again in {wait:.1f} s",
                reason="too_often",
                headers={"retry-after": str(math.ceil(wait))},
            )


def _completed(given: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Add the headers of every answer. Only ``cache-control`` of the route wins over them."""
    chosen = {name: value for name, value in given if name == CACHE_CONTROL}
    return [*(pair for pair in given if pair[0] not in _RAW), *(_RAW | chosen).items()]


def _job_of(path: str) -> str:
    """Return the job that a path belongs to; "" for none."""
    parts = path.split("/", 4)
    return parts[3] if len(parts) > 4 and parts[1:3] == ["v1", "jobs"] else ""


def _cross_site(headers: Headers, host: str) -> bool:
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is None:
        return False  # not a browser
    parts = urlsplit(origin)
    return parts.scheme not in ("http", "https") or parts.netloc.lower() != host.lower()
