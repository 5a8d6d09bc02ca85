"""HTTP requests to one address: a reused connection, limits on the size of answers, and the client's errors."""

import contextlib
import http.client
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from pydantic import ValidationError

from gravac.token_connection import AnswerTooLarge, HttpAnswer, TokenConnection
from gravac_controller.views.models import Problem

MOST_BYTES = 64_000_000
"""Limit of an answer, except for streams and traces."""
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
        errors = "; ".join(f"{error.field}: {error.message}" for error in problem.errors[1:])
        super().__init__(f"{status} {problem.title}: {problem.detail}{f' ({errors})' if errors else ''}")
        self.status, self.problem = status, problem


class ClientConnection:
    """Requests to one address. Not thread-safe. ``seconds``: timeout of each read.

    The token is sent only on a connection on which the server has proved that it knows it (``gravac.proof``). Other
    requests go without it.
    """

    def __init__(self, url: str, token: str | None, seconds: float) -> None:
        """Raise ValueError where ``url`` is not an http or https address."""
        self.url, self._seconds = base_url(url), seconds
        self.token = token
        self._http: TokenConnection | None = None

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        """Send a request and return its answer. Raises NoController, NotAController, Refused."""
        reused = self._http is not None  # the server may have closed it in the meantime
        try:
            if self._http is None:
                self._http = self._connect(self._seconds)
            connection = self._http
            answer = connection.ask(method, path, body, headers, max_bytes=MOST_BYTES)
        except AnswerTooLarge as error:
            self.close()
            raise NotAController(f"{self.url}{path} answered {error}") from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if reused and not isinstance(error, TimeoutError | http.client.IncompleteRead):
                return self.ask(method, path, body, headers)
            raise self._no_controller(error) from None
        if connection.closed:
            self.close()
        self._check(answer.status, answer.body, connection.proved)
        return answer

    @contextlib.contextmanager
    def open(
        self, path: str, headers: Mapping[str, str], seconds: float
    ) -> Generator[http.client.HTTPResponse, None, None]:
        """Open an answer to be read in pieces, on a separate connection. Raises as ``ask``."""
        with contextlib.ExitStack() as stack:
            try:
                connection = self._connect(seconds)
                stack.callback(connection.close)
                response = stack.enter_context(connection.send("GET", path, None, headers))
                if response.status >= 400:
                    self._check(response.status, response.read(MOST_BYTES), connection.proved)
            except (OSError, http.client.HTTPException) as error:
                raise self._no_controller(error) from None
            yield response

    def piece(self, response: http.client.HTTPResponse, size: int) -> bytes:
        """Return the next bytes of an answer of ``open``; empty at its end. Raises NoController where the connection
        breaks."""
        try:
            return response.read(size)
        except (OSError, http.client.HTTPException) as error:
            raise self._no_controller(error) from None

    def _check(self, status: int, body: bytes, proved: bool) -> None:
        """Raise Refused or NotAController for a status of 400 or above."""
        if status < 400:
            return
        try:
            problem = Problem.model_validate_json(body)
        except ValidationError:
            text = body[:200].decode(errors="replace")
            raise NotAController(f"{self.url} answered {status}: {text}") from None
        if status == 401 and self.token is not None and not proved:
            problem = problem.model_copy(update={"detail": f"{problem.detail}; {NOT_SENT}"})
        raise Refused(status, problem)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._http is not None:
            self._http.close()
            self._http = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _connect(self, seconds: float) -> TokenConnection:
        """Open a connection. Where there is a token to send, ask for the proof that the server knows it."""
        connection = TokenConnection(self.url, self.token, seconds)
        try:
            connection.connect()
            if self.token is not None:
                connection.ask_proof(self.token)
            if connection.closed:  # after that answer
                connection.connect()
        except BaseException:
            connection.close()
            raise
        return connection

    def _no_controller(self, error: Exception) -> NoController:
        if isinstance(error, TimeoutError):
            return TimedOut(f"{self.url} did not answer in time; a busy controller may, if you try again")
        return NoController(f"no controller answers at {self.url} ({error or type(error).__name__})")


def base_url(text: str) -> str:
    """Return an address as scheme://host:port, without its path; http where there is no scheme.

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
