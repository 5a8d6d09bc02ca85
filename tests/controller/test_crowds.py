"""Crowds of connections that say little and take nothing: agents' windows are answered all the same."""

import contextlib
import resource
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from gravac.protocol import JobAnswer, WindowAnswer
from gravac_controller.server.room import SPARE_CONNECTIONS, Room
from tools.harness.builders import Trainer, spec
from tools.harness.controller import PATIENCE_SECONDS, Answer, Controller

TOKEN = "an-agents-token-0123456789abcdef"
HOST = b"Host: localhost\r\n"
JSON_TYPE = b"Content-Type: application/json\r\n"
SAID = {
    "half a head": b"POST /v1/jobs/job/windows HTTP/1.1\r\nHost: loc",
    "a head without its body": b"POST /v1/jobs/job/windows HTTP/1.1\r\n"
    + HOST
    + JSON_TYPE
    + b"Content-Length: 9\r\n\r\n{",
    "streams": b"GET /v1/jobs/job/events HTTP/1.1\r\n" + HOST + b"\r\n",
    "downloads": b"GET /v1/jobs/job/trace HTTP/1.1\r\n" + HOST + b"\r\n",
}
CROWD = 600
WINDOWS = 100


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    """Both ends of a crowd may be this user's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Job:
    """One job of a controller, with or without a token."""

    def __init__(self, controller: Controller, token: str | None = None) -> None:
        self.controller, self.trainer = controller, Trainer()
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = controller.ask("POST", "/v1/jobs", spec(), self.headers)
        self.decision = JobAnswer.model_validate_json(answer.body).decision

    def windows(self, count: int) -> int:
        """Post so many, each on a connection of its own as agents do; how many were answered."""
        answered = 0
        for _ in range(count):
            report = self.trainer.report(self.decision)
            with contextlib.suppress(OSError):
                answer = self.controller.ask("POST", "/v1/jobs/job/windows", report, self.headers, seconds=10)
                if answer.status == 200:
                    answered += 1
                    self.decision = WindowAnswer.model_validate_json(answer.body).decision
        return answered


@contextlib.contextmanager
def crowd(controller: Controller, said: bytes, count: int = CROWD) -> Iterator[list[socket.socket]]:
    """So many connections that say this and read nothing."""
    with contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(count):
            with contextlib.suppress(OSError):  # the controller may close some at once
                sock = stack.enter_context(socket.create_connection((controller.host, controller.port)))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.sendall(said)
                sockets.append(sock)
        yield sockets


@pytest.fixture(scope="module")
def job(shared: Controller) -> Job:
    """A job whose agent shows no token and shares its address with every crowd."""
    found = Job(shared)
    assert found.windows(5) == 5
    return found


@pytest.mark.parametrize("said", SAID)
def test_a_crowd_without_a_token_starves_nobody(job: Job, said: str) -> None:
    with crowd(job.controller, SAID[said]):
        assert job.windows(WINDOWS) == WINDOWS


@pytest.mark.parametrize("said", ["streams", "downloads"])
def test_a_token_takes_the_place_of_those_who_only_look(start: Callable[..., Controller], said: str) -> None:
    """Even where as many look as there may be requests at all."""
    env = {
        "GRAVAC_TOKEN": TOKEN,
        "GRAVAC_CONTROLLER_MAX_CONNECTIONS": "20",
        "GRAVAC_CONTROLLER_MAX_STREAMS": "100",
    }
    controller = start(env=env)
    job = Job(controller, TOKEN)
    assert job.windows(30) == 30  # so that a download does not fit into a socket
    with crowd(controller, SAID[said], 200):
        assert job.windows(30) == 30
        looking = controller.ask("GET", "/v1/jobs", headers=job.headers)
        assert looking.status == 200


def test_requests_beyond_the_limit_are_told_so(start: Callable[..., Controller]) -> None:
    """Where every request shows a token, none gives way."""
    env = {
        "GRAVAC_TOKEN": TOKEN,
        "GRAVAC_CONTROLLER_MAX_CONNECTIONS": "20",
        "GRAVAC_CONTROLLER_MAX_STREAMS": "100",
    }
    controller = start(env=env)
    Job(controller, TOKEN)
    shown = b"Authorization: Bearer " + TOKEN.encode() + b"\r\n"
    with crowd(controller, SAID["streams"].replace(HOST, HOST + shown), 20) as sockets:
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
class Guest:
    """A connection on paper."""

    address: str
    expendable: bool = True
    gone: bool = field(default=False)

    def evict(self) -> None:
        self.gone = True


def entered(room: "Room[Guest]", address: str, count: int) -> list[Guest]:
    guests = [Guest(address) for _ in range(count)]
    for guest in guests:
        room.enter(guest)
    return guests


def test_the_largest_crowd_loses_first_and_its_oldest_first() -> None:
    room: Room[Guest] = Room(10)
    few, many = entered(room, "10.0.0.1", 5), entered(room, "10.0.0.2", 100)
    assert not any(guest.gone for guest in few)
    assert [guest.gone for guest in many] == [True] * 31 + [False] * 69
    assert len(room) == 10 + SPARE_CONNECTIONS


def test_who_is_worked_on_is_not_closed_for_a_newcomer() -> None:
    room: Room[Guest] = Room(10)
    busy = entered(room, "10.0.0.1", 10)
    assert all(room.begin(guest, matters=False) for guest in busy)
    crowd = entered(room, "10.0.0.1", 200)
    assert not any(guest.gone for guest in busy)
    assert not room.begin(crowd[-1], matters=False), "one more that looks is refused"
    assert room.begin(crowd[-2], matters=True), "one that matters is not"
    assert [guest.gone for guest in busy] == [True] + [False] * 9


def test_what_matters_gives_way_to_nothing() -> None:
    room: Room[Guest] = Room(3)
    for guest in (kept := entered(room, "a", 3)):
        guest.expendable = False
        assert room.begin(guest, matters=True)
    (late,) = entered(room, "b", 1)
    assert not room.begin(late, matters=True)
    assert not any(guest.gone for guest in kept)
    room.leave(late)
    room.done(kept[0])
    (late,) = entered(room, "b", 1)
    assert room.begin(late, matters=True)


def test_places_are_counted_once() -> None:
    """Closed twice, closed while waiting, a second request behind the first."""
    room: Room[Guest] = Room(5)
    one, two = entered(room, "a", 2)
    assert room.begin(one, matters=False)
    assert room.begin(one, matters=False)
    room.done(one)
    room.done(one)
    for _ in range(2):
        room.leave(one)
        room.leave(two)
    assert len(room) == 0
