"""HTTP to a controller with the standard library, over one connection on which the controller first proves itself.

Everything that is not a valid answer of a gravac controller counts as no answer, whatever its status.
"""

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from gravac.token_connection import AnswerTooLarge, HttpAnswer, TokenConnection
from gravac.wording import printable

MAX_ANSWER_BYTES = 4_000_000
MAX_RETRY_AFTER_SECONDS = 60.0
"""Longest pause that a controller can request."""
MAX_MESSAGE_CHARACTERS = 500


class NoAnswer(Exception):
    """No valid answer: none in time, or something that no gravac controller sends. Try again later."""

    retry_after = 0.0
    """Least seconds to wait before the next attempt."""
    lasting = False
    """Whether another attempt would fail like this one, at the end of the training."""


PASSING = (408, 425)
"""Refusals of a moment, also without a time to retry: timeout, too early."""


class ErrorAnswer(NoAnswer):
    """The controller answered with an error in its own form (application/problem+json)."""

    def __init__(self, message: str, status: int, reason: str, retry_after: float = 0.0) -> None:
        """``reason``: the controller's code for the error, such as ``ended`` or ``job_is_live``."""
        super().__init__(message)
        self.status, self.reason, self.retry_after = status, reason, retry_after

    def lasts(self, seconds: float) -> bool:
        """Return whether the same request would be refused for that long. What may end has a time to retry."""
        return (
            400 <= self.status < 500 and self.status not in PASSING and not 0.0 < self.retry_after <= seconds
        )


class ControllerConnection:
    """One TCP connection to a controller, for a few requests in a row.

    With a token, entering the context first makes the server prove that it knows the token. A connection that breaks
    is never opened again, since another program may listen there by then.

    Args:
        url: Address of the controller, ``http://host:port``.
        seconds: Total deadline of each request. A timeout of each read is not enough: a server that sends a byte now
            and then would never reach it.
        token: Secret that the controller must know; it is sent with every request after the proof. None: no proof and
            no token.
    """

    def __init__(self, url: str, *, seconds: float, token: str | None) -> None:
        self._seconds, self._token = seconds, token
        self._http = TokenConnection(url, token, seconds)
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        """Connect. Raises NoAnswer when no server listens there or it does not prove itself."""
        try:
            self._http.connect()
        except (OSError, ValueError) as error:
            raise NoAnswer(_why(error)) from None
        self._socket = self._http.http.sock
        try:
            if self._token is not None:
                self._ask_proof(self._token)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether the server closed the connection properly, after its last answer."""
        return self._http.closed

    def close(self) -> None:
        """Close the connection; safe to repeat."""
        self._http.close()
        if self._socket is not None:
            self._socket.close()

    def post(self, path: str, body: str) -> bytes:
        """POST JSON and return the answer's bytes, a JSON object. Raises NoAnswer, or ErrorAnswer for an error."""
        answer = self._complete(
            lambda: self._http.ask("POST", path, body.encode(), max_bytes=MAX_ANSWER_BYTES)
        )
        _check(answer)
        return answer.body

    def _ask_proof(self, token: str) -> None:
        _check(self._complete(lambda: self._http.ask_proof(token)))
        if not self._http.proved:
            raise NoAnswer(
                "it does not prove that it knows the token, so nothing was sent to it: another program listens at this "
                "address, or the controller was started with another GRAVAC_TOKEN"
            )

    def _complete(self, ask: Callable[[], HttpAnswer]) -> HttpAnswer:
        """Return a whole answer within the deadline. Raises NoAnswer."""
        with self._deadline() as late:
            try:
                return ask()
            except (OSError, http.client.HTTPException, ValueError) as error:
                if late.is_set() or isinstance(error, TimeoutError):
                    raise NoAnswer(f"it did not answer within {self._seconds:g} s") from None
                if isinstance(error, http.client.IncompleteRead | AnswerTooLarge):
                    raise NoAnswer("the answer is incomplete or too large") from None
                raise NoAnswer(_why(error)) from None

    @contextlib.contextmanager
    def _deadline(self) -> Iterator[threading.Event]:
        """Cut the connection after the total time of a request, and tell that it was."""
        late = threading.Event()

        def cut() -> None:
            late.set()
            with contextlib.suppress(OSError, AttributeError):
                self._socket.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]

        timer = threading.Timer(self._seconds, cut)
        timer.daemon = True
        timer.start()
        try:
            yield late
        finally:
            timer.cancel()


def _check(answer: HttpAnswer) -> None:
    """Raise NoAnswer, or ErrorAnswer, for all but a JSON object with status 200."""
    kind = answer.headers.get("content-type", "no content type").partition(";")[0].strip().lower()
    found = _json_object(answer.body)
    if answer.status == 200 and kind == "application/json" and found is not None:
        return
    if (
        answer.status >= 400
        and kind == "application/problem+json"
        and found is not None
        and found.get("status") == answer.status
    ):
        message = printable(f"it answered {answer.status}: {_detail(found)}", MAX_MESSAGE_CHARACTERS)
        wait = _seconds(answer.headers.get("retry-after"))
        raise ErrorAnswer(message, answer.status, str(found.get("reason")), wait)
    raise NoAnswer(
        printable(
            f"it answered {answer.status} with {kind}, which no gravac controller sends",
            MAX_MESSAGE_CHARACTERS,
        )
    )


def _json_object(body: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _detail(problem: dict[str, Any]) -> str:
    errors = problem.get("errors")
    faults = [error for error in errors if isinstance(error, dict)] if isinstance(errors, list) else []
    more = "; ".join(f"{fault.get('field')}: {fault.get('message')}" for fault in faults)
    return f"{problem.get('detail', 'no detail')} {more}".strip()


def _seconds(header: str | None) -> float:
    try:
        seconds = float(header or 0)
    except ValueError:
        return 0.0
    return min(seconds, MAX_RETRY_AFTER_SECONDS) if seconds > 0 else 0.0


def _why(error: Exception) -> str:
    """Return the reason of a network or HTTP error as printable text."""
    if isinstance(error, http.client.HTTPException) and not isinstance(error, ConnectionError):
        return printable(f"the answer is not HTTP, {type(error).__name__}: {error}", 200)
    return printable(str(error) or type(error).__name__, MAX_MESSAGE_CHARACTERS)
