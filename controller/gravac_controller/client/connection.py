"""HTTP requests to one address: a reused connection, limits on the size of answers, and the client's errors."""

import contextlib
import http.client
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from pydantic import ValidationError

from gravac import proof
from gravac_controller.views.models import Problem, ProofView

MOST_BYTES = 64_000_000
"""Limit of an answer, except for streams and traces."""
MOST_PROOF_BYTES = 4096
NOT_SENT = "your token was not sent, because the server did not prove that it knows it"


class ControllerError(Exception):
    """Base class of the client's errors. The text is for people."""


class NoController(ControllerError):
    """No controller answers at the address, or the connection broke before the answer was complete."""


class TimedOut(NoController):
    """Something listens at the address and did not answer in time."""


class NotAController(ControllerError):
    """The answer cannot be read: another service, or a controller of another version."""


class Refused(ControllerError):
    """The controller answered with status 400 or above.

    ``status`` is the HTTP status; ``problem`` says why.
    """

    def __init__(self, status: int, problem: Problem) -> None:
        errors = "; ".join(f"{one.field}: {one.message}" for one in problem.errors[1:])
        super().__init__(f"{status} {problem.title}: {problem.detail}{f' ({errors})' if errors else ''}")
        self.status, self.problem = status, problem


@dataclass(frozen=True)
class Answer:
    """Status below 400, headers by lower-case name, and the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class _Channel:
    """A connection, and whether the server has proved on it that it knows the token."""

    http: http.client.HTTPConnection
    proved: bool


class Connection:
    """Requests to one address. Not thread-safe. ``seconds``: timeout of each read.

    The token is sent only on a connection on which the server has proved that it knows it (``gravac.proof``). Other
    requests go without it.
    """

    def __init__(self, url: str, token: str | None, seconds: float) -> None:
        """Raises ValueError where ``url`` is not an http or https address."""
        self.url, self._seconds = base_url(url), seconds
        self.token = token
        self._channel: _Channel | None = None

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a request and return its answer. Raises NoController, NotAController, Refused."""
        again = self._channel is not None  # the server may have closed a reused connection in the meantime
        try:
            channel = self._reuse()
            response = self._send(channel, method, path, body, headers or {})
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if not again or isinstance(error, TimeoutError):
                raise self._no_controller(error) from None
            return self.ask(method, path, body, headers)
        try:
            data = response.read(MOST_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._no_controller(error) from None
        if len(data) > MOST_BYTES:
            self.close()
            raise NotAController(f"{self.url}{path} answered more than {MOST_BYTES} bytes")
        if response.will_close:
            self.close()
        self.check(response, data, channel.proved)
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, data)

    @contextlib.contextmanager
    def open(
        self, path: str, headers: Mapping[str, str], seconds: float
    ) -> Generator[http.client.HTTPResponse, None, None]:
        """Open an answer to be read in pieces, on a separate connection. Raises as ``ask``."""
        with contextlib.ExitStack() as stack:
            try:
                channel = self._connect(seconds)
                stack.callback(channel.http.close)
                response = stack.enter_context(self._send(channel, "GET", path, None, headers))
                if response.status >= 400:
                    self.check(response, response.read(MOST_BYTES), channel.proved)
            except (OSError, http.client.HTTPException) as error:
                raise self._no_controller(error) from None
            yield response

    def piece(self, response: http.client.HTTPResponse, size: int) -> bytes:
        """The next bytes of an answer of ``open``; empty at its end. Raises NoController where the connection
        breaks."""
        try:
            return response.read(size)
        except (OSError, http.client.HTTPException) as error:
            raise self._no_controller(error) from None

    def check(self, response: http.client.HTTPResponse, body: bytes, proved: bool) -> None:
        """Raise Refused or NotAController for a status of 400 or above."""
        if response.status < 400:
            return
        try:
            problem = Problem.model_validate_json(body)
            if response.status == 401 and self.token is not None and not proved:
                problem = problem.model_copy(update={"detail": f"{problem.detail}; {NOT_SENT}"})
            raise Refused(response.status, problem)
        except ValidationError:
            text = body[:200].decode(errors="replace")
            raise NotAController(f"{self.url} answered {response.status}: {text}") from None

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._channel is not None:
            self._channel.http.close()
            self._channel = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _reuse(self) -> _Channel:
        if self._channel is None:
            self._channel = self._connect(self._seconds)
        return self._channel

    def _connect(self, seconds: float) -> _Channel:
        """Open a connection. Where there is a token to send, ask for the proof that the server knows it."""
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=seconds)
        try:
            connection.connect()
            connection.auto_open = 0  # the proof is valid for this connection only
            proved = self.token is not None and _proves(connection, self.token)
            if connection.sock is None:  # closed after that answer
                connection.connect()
                proved = False
        except BaseException:
            connection.close()
            raise
        return _Channel(connection, proved)

    def _send(
        self,
        channel: _Channel,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> http.client.HTTPResponse:
        given = dict(headers)
        if self.token is not None and channel.proved:
            given["Authorization"] = f"Bearer {self.token}"
        if body is not None:
            given["Content-Type"] = "application/json"
        channel.http.request(method, path, body, given)
        return channel.http.getresponse()

    def _no_controller(self, error: Exception) -> NoController:
        if isinstance(error, TimeoutError):
            return TimedOut(f"{self.url} did not answer in time; a busy controller may, if you try again")
        return NoController(f"no controller answers at {self.url} ({error or type(error).__name__})")


def _proves(connection: http.client.HTTPConnection, token: str) -> bool:
    """Whether the server knows the token. Raises OSError or HTTPException where the answer is incomplete."""
    challenge = proof.new_challenge()
    connection.request("GET", f"{proof.PATH}?challenge={challenge}")
    with connection.getresponse() as response:
        body = response.read(MOST_PROOF_BYTES)
        if response.length:
            raise http.client.IncompleteRead(body)
    try:
        return proof.proves(token, challenge, ProofView.model_validate_json(body).proofs)
    except ValidationError:
        return False


def base_url(text: str) -> str:
    """An address as scheme://host:port, without its path; http where there is no scheme.

    Raises ValueError that shows the text and the expected form.
    """
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        wrong = "" if good else "not an address"
    except ValueError as error:
        wrong = str(error)
    if wrong:
        raise ValueError(f"URL {text!r}: {wrong}; write for example http://127.0.0.1:8756")
    return f"{parts.scheme}://{parts.netloc}"
