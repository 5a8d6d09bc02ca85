"""An HTTP connection that sends a token only after the server has proved on it that it knows the token."""

import http.client
import json
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from gravac import proof

MAX_PROOF_BYTES = 4096


class AnswerTooLarge(http.client.HTTPException):
    """The body of an answer exceeds the limit."""


class HttpAnswer(NamedTuple):
    """One complete answer. Headers are by lower-case name."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class TokenConnection:
    """One connection. It is opened by ``connect`` only, since another program may listen there later.

    Args:
        url: Address of the server, http or https.
        token: Secret that is sent with each request after a proof; None: none.
        seconds: Timeout of each read.

    Attributes:
        proved: Whether the server has proved on this connection that it knows the token.
    """

    def __init__(self, url: str, token: str | None, seconds: float) -> None:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.http = kind(parts.hostname or "", parts.port, timeout=seconds)
        self.http.auto_open = 0
        self.token, self.proved = token, False

    @property
    def closed(self) -> bool:
        """Whether either side closed the connection properly, after the last answer."""
        return self.http.sock is None

    def connect(self) -> None:
        """Connect. Raises OSError."""
        self.proved = False
        self.http.connect()

    def ask_proof(self, token: str) -> HttpAnswer:
        """Ask the server to prove that it knows the token, set ``proved``, and return the answer. Raises as ``ask``."""
        challenge = proof.new_challenge()
        answer = self.ask("GET", f"{proof.PATH}?challenge={challenge}", max_bytes=MAX_PROOF_BYTES)
        self.proved = answer.status == 200 and proof.proves(token, challenge, _proofs(answer.body))
        return answer

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> http.client.HTTPResponse:
        """Send a request and return its answer, unread. Raises OSError or HTTPException."""
        given = dict(headers or {})
        if self.token is not None and self.proved:
            given["Authorization"] = f"Bearer {self.token}"
        if body is not None:
            given["Content-Type"] = "application/json"
        self.http.request(method, path, body, given)
        return self.http.getresponse()

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        max_bytes: int,
    ) -> HttpAnswer:
        """Send a request and return its whole answer.

        Raises:
            AnswerTooLarge: It has more than ``max_bytes``.
            OSError: The connection broke.
            http.client.HTTPException: The answer is incomplete or no HTTP.
        """
        with self.send(method, path, body, headers) as response:
            data = response.read(max_bytes + 1)
            if len(data) > max_bytes:
                raise AnswerTooLarge(f"more than {max_bytes} bytes")
            if response.length:  # http.client raises nothing when a body ends early
                raise http.client.IncompleteRead(data, response.length)
            found = {name.lower(): value for name, value in response.getheaders()}
            return HttpAnswer(response.status, found, data)

    def close(self) -> None:
        """Close the connection; safe to repeat."""
        self.http.close()


def _proofs(body: bytes) -> list[str]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return []
    proofs = found.get("proofs") if isinstance(found, dict) else None
    return [text for text in proofs if isinstance(text, str)] if isinstance(proofs, list) else []
