"""Who asks, and what they may: look, report as an agent, or steer as an operator.

Two tokens: the agents', and the operators' (null: nothing can be steered over HTTP). Either opens everything there is
to look at. As HTTP Basic's password, which browsers ask for and send by themselves, a token opens nothing more than
looking: what changes something needs ``Authorization: Bearer``, which no page of another site can make a browser
send.
"""

import base64
import binascii
import hmac
from dataclasses import dataclass
from enum import IntEnum

from starlette.datastructures import Headers

from gravac import proof

OPEN_PATHS = frozenset({"/healthz", proof.PATH})
"""Answered without a token and at any rate: for those who watch over the process, and for those who check, before they
show a token, that this controller knows it."""
STEERING_PATH = "/override"
"""End of the paths that take an operator's orders."""
ROLE = "gravac.role"
"""Key of the role in an ASGI scope."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Those that only look."""
CHALLENGE = 'Basic realm="gravac: any name, the token as password", Bearer'
"""For those who only look. Where something is to be changed only Bearer is named: no dialog of the browser helps."""


class Role(IntEnum):
    """Each may do what the ones before it may."""

    NOBODY = 0
    VIEWER = 1
    AGENT = 2
    OPERATOR = 3


@dataclass(frozen=True)
class Access:
    """The rules of one controller. ``open_to_look``: looking needs no token."""

    agent_token: str | None
    control_token: str | None
    open_to_look: bool

    def role(self, headers: Headers) -> Role:
        """What these headers allow."""
        bearer, password = _bearer(headers), _password(headers)
        if _same(bearer, self.control_token):
            return Role.OPERATOR
        if _same(bearer, self.agent_token) or self.agent_token is None:
            return Role.AGENT
        known = _same(password, self.agent_token) or _same(password, self.control_token)
        return Role.VIEWER if known or self.open_to_look else Role.NOBODY

    def proofs(self, challenge: str) -> tuple[str, ...]:
        """What shows that we know each of the tokens, without naming them."""
        tokens = (self.agent_token, self.control_token)
        return tuple(proof.prove(token, challenge) for token in tokens if token is not None)

    def shown(self, headers: Headers) -> bool:
        """Whether a valid token came as a bearer's: then the request is no browser's doing."""
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
