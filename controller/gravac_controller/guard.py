"""What stands before every route: Host allow-list, cross-site check, token, headers, and no raw 500.

Host is checked apart from Origin because under DNS rebinding the two agree. There is no CORS: no other origin may
read an answer.
"""

import hmac
import ipaddress
import logging
import socket
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gravac_controller.problems import ApiError, problem_response

HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})

logger = logging.getLogger("gravac.controller")


class Guard:
    """ASGI middleware around the whole application. ``refused`` is told the reason of each refusal."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        allowed_hosts: Iterable[str],
        token: str | None,
        refused: Callable[[str], None],
    ) -> None:
        self.app = app
        self._hosts = frozenset(canonical_host(host) for host in allowed_hosts)
        self._token = None if token is None else token.encode()
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            self._check(scope["method"], Headers(scope=scope))
        except ApiError as error:
            self._refused(error.reason)
            answer = problem_response(error.status, error.detail, headers=error.headers)
            await answer(scope, receive, send_with_headers)
            return
        try:
            await self.app(scope, receive, send_with_headers)
        except Exception:
            logger.exception("unexpected error in %s %r", scope["method"], scope["path"])
            if started:
                raise
            detail = "an error of the controller, not of the request; its log has the details"
            await problem_response(500, detail)(scope, receive, send_with_headers)

    def _check(self, method: str, headers: Headers) -> None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or _host_of(hosts[0]) not in self._hosts:
            raise ApiError(
                400,
                "this Host is not served here; if it is a name of this machine, start the controller with "
                "--allowed-host NAME",
                reason="foreign_host",
            )
        if method in SAFE_METHODS:
            return
        bearer = _bearer(headers)
        authorised = self._token is not None and hmac.compare_digest(bearer, self._token)
        if not authorised and _cross_site(headers, hosts[0]):
            raise ApiError(403, "this request comes from a page of another site", reason="cross_site")
        if self._token is not None and not authorised:
            raise ApiError(
                401,
                "posting needs the controller's token: send Authorization: Bearer TOKEN (agents take it from "
                "GRAVAC_TOKEN)",
                reason="unauthorized",
                headers={"www-authenticate": "Bearer"},
            )


def canonical_host(host: str) -> str:
    """A host name or address in one form: lower case, no brackets, no final dot, addresses as ipaddress has them."""
    bare = host.strip().lower().removeprefix("[").removesuffix("]").removesuffix(".")
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        return bare


def is_loopback(host: str) -> bool:
    """Whether listening on ``host`` reaches only this machine."""
    bare = canonical_host(host)
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return bare == "localhost"


def own_name(host: str) -> str:
    """The name under which a server listening on ``host`` is called: this machine's where it listens everywhere."""
    bare = canonical_host(host)
    return socket.gethostname() if bare in ("0.0.0.0", "::") else bare


def _host_of(header: str) -> str | None:
    """The host in a Host header, canonical; null for anything that is not host or host:port."""
    try:
        parts = urlsplit(f"//{header}")
        _ = parts.port
    except ValueError:
        return None
    if parts.netloc != header or "@" in header or not parts.hostname:
        return None
    return canonical_host(parts.hostname)


def _bearer(headers: Headers) -> bytes:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip().encode("latin-1") if scheme.lower() == "bearer" else b""


def _cross_site(headers: Headers, host: str) -> bool:
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is None:
        return False  # not a browser
    parts = urlsplit(origin)
    return parts.scheme not in ("http", "https") or parts.netloc.lower() != host.lower()
