"""HTTP to a controller with the standard library: one request, one total deadline, no proxies, no surprises."""

import contextlib
import http.client
import json
import socket
import threading
from urllib.parse import urlsplit

TRY_LATER = (408, 429)
"""Refusals that say nothing against the request: too slow, too many at once."""


class Unreachable(Exception):
    """No answer within the deadline: the controller is away. Try again later."""


class Refused(Exception):
    """The controller answered with an error; trying the same again would not help."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status


def post(url: str, path: str, body: str, *, seconds: float, token: str | None) -> bytes:
    """POST JSON and return the answer's body. Raises Unreachable or Refused.

    A time-out per read is no deadline (a server that drips bytes would hold us for ever), so a timer cuts the
    connection after ``seconds`` in all.
    """
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=seconds)
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"

    def cut() -> None:
        with contextlib.suppress(OSError, AttributeError):
            connection.sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, cut)
    timer.daemon = True
    timer.start()
    try:
        connection.request("POST", path, body.encode(), headers)
        response = connection.getresponse()
        answer = response.read(4_000_000)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unreachable(f"{url}: {error or type(error).__name__}") from None
    finally:
        timer.cancel()
        connection.close()
    if response.status >= 500 or response.status in TRY_LATER:
        raise Unreachable(f"{url} answered {response.status}: {_detail(answer)}")
    if response.status >= 400:
        raise Refused(response.status, _detail(answer))
    return answer


def _detail(answer: bytes) -> str:
    try:
        problem = json.loads(answer)
        errors = "; ".join(f"{e.get('field')}: {e.get('message')}" for e in problem.get("errors") or [])
        return f"{problem.get('detail', problem)} {errors}".strip()[:500]
    except (ValueError, AttributeError):
        return answer[:200].decode(errors="replace")
