"""Requests to one address: a kept connection, limits on what comes back, errors in our own words."""

import contextlib
import http.client
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from pydantic import ValidationError

from gravac_controller.client.errors import NoController, NotAController, Refused
from gravac_controller.views import Problem

MOST_BYTES = 64_000_000
"""Of one answer, but for streams and traces."""


@dataclass(frozen=True)
class Answer:
    """Status below 400, headers by lower-case name, and the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Wire:
    """Not for several threads at once. ``seconds``: longest wait for any piece of an answer."""

    def __init__(self, url: str, token: str | None, seconds: float) -> None:
        """Raises ValueError for what is not an http or https address."""
        self.url, self._seconds = base_of(url), seconds
        self.token = token
        self._kept: http.client.HTTPConnection | None = None

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request and its whole answer. Raises NoController, NotAController, Refused."""
        again = self._kept is not None  # the server may have closed a kept connection in the meantime
        try:
            response = self._send(self._connection(), method, path, body, headers or {})
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if not again or isinstance(error, TimeoutError):
                raise self._nobody(error) from None
            return self.ask(method, path, body, headers)
        try:
            data = response.read(MOST_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._nobody(error) from None
        if len(data) > MOST_BYTES:
            self.close()
            raise NotAController(f"{self.url}{path} answered more than {MOST_BYTES} bytes")
        if response.will_close:
            self.close()
        self.check(response, data)
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, data)

    @contextlib.contextmanager
    def open(
        self, path: str, headers: Mapping[str, str], seconds: float
    ) -> Generator[http.client.HTTPResponse, None, None]:
        """An answer to be read piece by piece, on a connection of its own. Raises as ``ask``."""
        with contextlib.closing(self._new(seconds)) as connection:
            try:
                response = self._send(connection, "GET", path, None, headers)
                if response.status >= 400:
                    self.check(response, response.read(MOST_BYTES))
            except (OSError, http.client.HTTPException) as error:
                raise self._nobody(error) from None
            with response:
                yield response

    def piece(self, response: http.client.HTTPResponse, size: int) -> bytes:
        """The next bytes of an answer that ``open`` gave; empty at its end. Raises NoController when it breaks off."""
        try:
            return response.read(size)
        except (OSError, http.client.HTTPException) as error:
            raise self._nobody(error) from None

    def check(self, response: http.client.HTTPResponse, body: bytes) -> None:
        """Raises Refused or NotAController for an answer of 400 or more."""
        if response.status < 400:
            return
        try:
            raise Refused(response.status, Problem.model_validate_json(body))
        except ValidationError:
            text = body[:200].decode(errors="replace")
            raise NotAController(f"{self.url} answered {response.status}: {text}") from None

    def close(self) -> None:
        """Give the connection up; the next request makes another."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self._kept is None:
            self._kept = self._new(self._seconds)
        return self._kept

    def _new(self, seconds: float) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=seconds)

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> http.client.HTTPResponse:
        given = dict(headers)
        if self.token is not None:
            given["Authorization"] = f"Bearer {self.token}"
        if body is not None:
            given["Content-Type"] = "application/json"
        connection.request(method, path, body, given)
        return connection.getresponse()

    def _nobody(self, error: Exception) -> NoController:
        return NoController(f"no controller answers at {self.url} ({error or type(error).__name__})")


def base_of(text: str) -> str:
    """An address as scheme://host:port, whatever path came with it; http where no scheme was given.

    Raises ValueError naming the text and the form expected.
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
