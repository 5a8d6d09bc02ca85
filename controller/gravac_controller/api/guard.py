"""What stands before every route: Host allow-list, cross-site check, token, rates, headers, and no raw 500.

Host is checked apart from Origin because under DNS rebinding the two agree. There is no CORS: no other origin may
read an answer.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gravac_controller.api.access import (
    CHALLENGE,
    OPEN_PATHS,
    ROLE,
    SAFE_METHODS,
    STEERING_PATH,
    Access,
    Role,
)
from gravac_controller.api.headers import HEADERS, KEEPING
from gravac_controller.api.problems import ApiError, answer_of, problem_response
from gravac_controller.api.rates import Rates
from gravac_controller.hosts import canonical_host, host_of
from gravac_controller.jobs.refusals import not_an_operator, steering_is_off

_RAW = {name.encode(): value.encode() for name, value in HEADERS.items()}
logger = logging.getLogger("gravac.controller")


class Guard:
    """ASGI middleware around the whole application. ``refused`` is told the reason of each refusal.

    ``reads_per_second``: for each client's address. ``changes_per_second``: for each job.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        allowed_hosts: Iterable[str],
        access: Access,
        reads_per_second: float,
        changes_per_second: float,
        refused: Callable[[str], None],
    ) -> None:
        self.app = app
        self._hosts = frozenset(canonical_host(host) for host in allowed_hosts)
        self._access = access
        self._reads = Rates(reads_per_second, time.monotonic)
        self._changes = Rates(changes_per_second, time.monotonic)
        self._refused = refused

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
            self._refused(error.reason)
            answer = answer_of(error)
            await answer(scope, receive, send_with_headers)
            return
        inner = {**scope, ROLE: role, "method": "GET" if head else scope["method"], "gravac.head": head}
        try:
            await self.app(inner, receive, send_with_headers)
        except Exception:
            logger.exception("unexpected error in %s %r", scope["method"], scope["path"])
            if started:
                raise
            detail = "an error of the controller, not of the request; its log has the details"
            await problem_response(500, detail, reason="internal")(scope, receive, send_with_headers)

    def _check(self, scope: Scope) -> Role:
        """The role of whoever asks. Raises ApiError 400, 401, 403, 429."""
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
        if not safe and not self._access.shown(headers) and _cross_site(headers, hosts[0]):
            raise ApiError(403, "this request comes from a page of another site", reason="cross_site")
        if role < (Role.VIEWER if safe else Role.AGENT):
            if not safe and path.endswith(STEERING_PATH):
                raise not_an_operator() if self._access.control_token else steering_is_off()
            raise _unauthorised(safe)
        self._pace(scope, safe)
        return role

    def _pace(self, scope: Scope, safe: bool) -> None:
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
    """Headers of an answer with those of every answer. Only for how long it may be kept is the route's to say."""
    kept = {name: value for name, value in given if name == KEEPING}
    return [*(pair for pair in given if pair[0] not in _RAW), *(_RAW | kept).items()]


def _unauthorised(safe: bool) -> ApiError:
    if safe:
        detail = (
            "looking needs the controller's token: as the password your browser asks for (any name), or as "
            "Authorization: Bearer TOKEN"
        )
        return ApiError(401, detail, reason="unauthorized", headers={"www-authenticate": CHALLENGE})
    detail = "this needs the controller's token: send Authorization: Bearer TOKEN (agents take it from GRAVAC_TOKEN)"
    return ApiError(401, detail, reason="unauthorized", headers={"www-authenticate": "Bearer"})


def _job_of(path: str) -> str:
    """The job whose part of the API a path is in; "" for everything else."""
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
