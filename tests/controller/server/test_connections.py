"""Floods of connections that send little and read nothing: windows of agents are answered all the same."""

import contextlib
import resource
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from gravac.protocol import JobAnswer, WindowAnswer
from gravac_controller.server.connections import SPARE_CONNECTIONS, ConnectionLimit
from tools.harness.builders import Trainer, spec
from tools.harness.controller import PATIENCE_SECONDS, Answer, Controller

TOKEN = "an-agents-token-0123456789abcdef"
HOST = b"Host: localhost\r\n"
JSON_TYPE = b"Content-Type: application/json\r\n"
SENT = {
    "half a head": b"POST /v1/jobs/job/windows HTTP/1.1\r\nHost: loc",
    "a head without its body": b"POST /v1/jobs/job/windows HTTP/1.1\r\n"
    + HOST
    + JSON_TYPE
    + b"Content-Length: 9\r\n\r\n{",
    "streams": b"GET /v1/jobs/job/events HTTP/1.1\r\n" + HOST + b"\r\n",
    "downloads": b"GET /v1/jobs/job/trace HTTP/1.1\r\n" + HOST + b"\r\n",
}
CONNECTIONS = 600
WINDOWS = 100


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    """Both ends of a flood may belong to this user."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Job:
    """One job of a controller, with or without a token."""

    def __init__(self, controller: Controller, token: str | None = None, name: str = "job") -> None:
        self.controller, self.trainer = controller, Trainer(name)
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = controller.ask("POST", "/v1/jobs", spec(name), self.headers)
        self.decision = JobAnswer.model_validate_json(answer.body).decision

    def windows(self, count: int) -> int:
        """Post this many, each on its own connection as agents do; return how many were answered."""
        answered = 0
        for _ in range(count):
            report = self.trainer.report(self.decision)
            with contextlib.suppress(OSError):
                answer = self.controller.ask(
                    "POST", f"/v1/jobs/{self.trainer.job}/windows", report, self.headers, seconds=10
                )
                if answer.status == 200:
                    answered += 1
                    self.decision = WindowAnswer.model_validate_json(answer.body).decision
        return answered


@contextlib.contextmanager
def flood(controller: Controller, sent: bytes, count: int = CONNECTIONS) -> Iterator[list[socket.socket]]:
    """Open this many connections that send this and read nothing."""
    with contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(count):
            with contextlib.suppress(OSError):  # the controller may close some at once
                sock = stack.enter_context(socket.create_connection((controller.host, controller.port)))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.sendall(sent)
                sockets.append(sock)
        yield sockets


@pytest.fixture(scope="session")  # a worker may come back to this file, and has one controller
def job(shared: Controller) -> Job:
    """A job whose agent has no token and shares its address with every flood."""
    found = Job(shared, name="flooded")
    assert found.windows(5) == 5
    return found


@pytest.mark.parametrize("sent", SENT)
def test_a_flood_without_a_token_does_not_starve_agents(job: Job, sent: str) -> None:
    with flood(job.controller, SENT[sent]):
        assert job.windows(WINDOWS) == WINDOWS


@pytest.mark.parametrize("sent", ["streams", "downloads"])
def test_requests_with_a_token_replace_reading_ones(start: Callable[..., Controller], sent: str) -> None:
    """Even where readers take every place."""
    env = {
        "GRAVAC_TOKEN": TOKEN,
        "GRAVAC_CONTROLLER_MAX_CONNECTIONS": "20",
    }
    controller = start(env=env, limits={"max_streams": 100})
    job = Job(controller, TOKEN)
    assert job.windows(30) == 30  # so that a download does not fit into a socket
    with flood(controller, SENT[sent], 200):
        assert job.windows(30) == 30
        looking = controller.ask("GET", "/v1/jobs", headers=job.headers)
        assert looking.status == 200


def test_requests_beyond_the_limit_get_503(start: Callable[..., Controller]) -> None:
    """Where every request has a token, none is replaced."""
    env = {
        "GRAVAC_TOKEN": TOKEN,
        "GRAVAC_CONTROLLER_MAX_CONNECTIONS": "20",
    }
    controller = start(env=env, limits={"max_streams": 100})
    Job(controller, TOKEN)
    shown = b"Authorization: Bearer " + TOKEN.encode() + b"\r\n"
    with flood(controller, SENT["streams"].replace(HOST, HOST + shown), 20) as sockets:
        for sock in sockets:
            assert sock.recv(12) == b"HTTP/1.1 200"
        for headers in ({}, {"Authorization": f"Bearer {TOKEN}"}):
            answer = controller.ask("GET", "/healthz", headers=headers)
            assert (answer.status, answer.json["reason"]) == (503, "too_many_connections")
            assert answer.headers["retry-after"] == "5"
            assert "MAX_CONNECTIONS" in answer.json["detail"]
    until = time.monotonic() + PATIENCE_SECONDS
    while _healthy(controller).status != 200:
        assert time.monotonic() < until
        time.sleep(0.05)


def _healthy(controller: Controller) -> Answer:
    return controller.ask("GET", "/healthz")


@dataclass(eq=False)
class Fake:
    """A connection without a socket."""

    address: str
    expendable: bool = True
    aborted: bool = field(default=False)

    def abort(self) -> None:
        self.aborted = True


def opened(limit: "ConnectionLimit[Fake]", address: str, count: int) -> list[Fake]:
    connections = [Fake(address) for _ in range(count)]
    for connection in connections:
        limit.opened(connection)
    return connections


def test_the_oldest_connections_of_the_largest_flood_are_closed_first() -> None:
    limit: ConnectionLimit[Fake] = ConnectionLimit(10)
    few, many = opened(limit, "10.0.0.1", 5), opened(limit, "10.0.0.2", 100)
    assert not any(connection.aborted for connection in few)
    assert [connection.aborted for connection in many] == [True] * 31 + [False] * 69
    assert len(limit) == 10 + SPARE_CONNECTIONS


def test_a_request_in_progress_is_not_closed_for_a_new_connection() -> None:
    limit: ConnectionLimit[Fake] = ConnectionLimit(10)
    busy = opened(limit, "10.0.0.1", 10)
    assert all(limit.admit(connection, priority=False) for connection in busy)
    flood = opened(limit, "10.0.0.1", 200)
    assert not any(connection.aborted for connection in busy)
    assert not limit.admit(flood[-1], priority=False), "one more reader is refused"
    assert limit.admit(flood[-2], priority=True), "one with priority is not"
    assert [connection.aborted for connection in busy] == [True] + [False] * 9


def test_requests_with_priority_are_not_replaced() -> None:
    limit: ConnectionLimit[Fake] = ConnectionLimit(3)
    for connection in (first := opened(limit, "a", 3)):
        connection.expendable = False
        assert limit.admit(connection, priority=True)
    (late,) = opened(limit, "b", 1)
    assert not limit.admit(late, priority=True)
    assert not any(connection.aborted for connection in first)
    limit.closed(late)
    limit.answered(first[0])
    (late,) = opened(limit, "b", 1)
    assert limit.admit(late, priority=True)


def test_connections_are_counted_once() -> None:
    """Closed twice, closed while waiting, a second request behind the first."""
    limit: ConnectionLimit[Fake] = ConnectionLimit(5)
    one, two = opened(limit, "a", 2)
    assert limit.admit(one, priority=False)
    assert limit.admit(one, priority=False)
    limit.answered(one)
    limit.answered(one)
    for _ in range(2):
        limit.closed(one)
        limit.closed(two)
    assert len(limit) == 0
