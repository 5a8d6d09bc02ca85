"""Access control: the role of a request, and the errors for requests without the right one.

There are two tokens: the agents', and the operators' (None: nothing can be steered over HTTP). Either allows reading
everything. As the password of HTTP Basic, which browsers send by themselves, a token allows reading only: changes need
``Authorization: Bearer``, which no page of another site can make a browser send.
"""

import base64
import binascii
import hmac
from dataclasses import dataclass
from enum import IntEnum

from starlette.datastructures import Headers

from gravac import proof
from gravac_controller.api.problems import ApiError
from gravac_controller.hosts import is_loopback
from gravac_controller.settings import ControllerSettings

OPEN_PATHS = frozenset({"/healthz", proof.PATH})
"""Answered without a token and without a rate limit: for health checks, and for clients that verify the controller
before they send it a token."""
STEERING_PATH = "/override"
"""Suffix of the paths that take an operator's orders."""
ROLE = "gravac.role"
"""Key of the role in an ASGI scope."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that only read."""
CHALLENGE = 'Basic realm="gravac: any name, the token as password", Bearer'
"""Challenge for reading. Changes are challenged with Bearer only, because a browser's dialog would not help."""


class Role(IntEnum):
    """Each role includes the ones before it."""

    NOBODY = 0
    VIEWER = 1
    AGENT = 2
    OPERATOR = 3


@dataclass(frozen=True)
class Access:
    """The access rules of one controller. ``open_to_look``: reading needs no token."""

    agent_token: str | None
    control_token: str | None
    open_to_look: bool

    @classmethod
    def of(cls, settings: ControllerSettings) -> "Access":
        """Return the rules that follow from the tokens and the address."""
        needs_token = settings.look_needs_token
        if needs_token is None:
            needs_token = not is_loopback(settings.host)
        return cls(
            agent_token=None if settings.token is None else settings.token.get_secret_value(),
            control_token=None
            if settings.control_token is None
            else settings.control_token.get_secret_value(),
            open_to_look=not needs_token,
        )

    def role(self, headers: Headers) -> Role:
        """Return the role that these headers grant."""
        bearer, password = _bearer(headers), _password(headers)
        if _same(bearer, self.control_token):
            return Role.OPERATOR
        if _same(bearer, self.agent_token) or self.agent_token is None:
            return Role.AGENT
        known = _same(password, self.agent_token) or _same(password, self.control_token)
        return Role.VIEWER if known or self.open_to_look else Role.NOBODY

    def proofs(self, challenge: str) -> tuple[str, ...]:
        """Return a proof for each token that we know it, without revealing it."""
        tokens = (self.agent_token, self.control_token)
        return tuple(proof.prove(token, challenge) for token in tokens if token is not None)

    def bearer(self, headers: Headers) -> bool:
        """Return whether a valid bearer token was sent: then no other site made a browser send the request."""
        bearer = _bearer(headers)
        return _same(bearer, self.control_token) or _same(bearer, self.agent_token)


def _same(given: bytes, token: str | None) -> bool:
    return token is not None and hmac.compare_digest(given, token.encode())


def _bearer(headers: Headers) -> bytes:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip().encode("latin-1") if scheme.lower() == "bearer" else b""


def _password(headers: Headers) -> bytes:
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(credentials.strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def unauthorized(safe: bool) -> ApiError:
    """A request without a valid token. ``safe``: it only reads."""
    if safe:
        detail = (
            "reading needs the controller's token: as the password your browser asks for (any name), or as "
            "Authorization: Bearer TOKEN"
        )
        return ApiError(401, detail, reason="unauthorized", headers={"www-authenticate": CHALLENGE})
    detail = "this needs the controller's token: send Authorization: Bearer TOKEN (agents take it from GRAVAC_TOKEN)"
    return ApiError(401, detail, reason="unauthorized", headers={"www-authenticate": "Bearer"})


def steering_is_off() -> ApiError:
    """An order to a controller that was started without steering."""
    return ApiError(
        403,
        "to steer, start the training with GRAVAC_STEERING=owner, or gravac serve with --owner-may-steer or "
        "--control-token-file FILE (GRAVAC_CONTROLLER_CONTROL_TOKEN): steering is off at this controller",
        reason="control_off",
    )


def not_an_operator() -> ApiError:
    """An order without the control token."""
    return ApiError(
        401,
        "steering needs the control token that the controller was started with (--control-token-file, "
        "GRAVAC_CONTROLLER_CONTROL_TOKEN): send Authorization: Bearer TOKEN; the agents' GRAVAC_TOKEN is not enough",
        reason="unauthorized",
        headers={"www-authenticate": "Bearer"},
    )
