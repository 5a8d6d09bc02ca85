"""Limits on connections, streams, rates and timeouts: each refusal is a problem+json, and others are unaffected."""

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from gravac.protocol import JobAnswer
from gravac_controller.api.guard import BURST_SECONDS
from gravac_controller.api.responses import HEADERS
from tests.support.sse import Reader
from tools.harness.builders import Trainer, spec
from tools.harness.controller import PATIENCE_SECONDS, Answer, Controller, read_answer

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    """A controller with low limits, and a job."""
    controller = Controller(
        tmp_path_factory.mktemp("small") / "runs",
        env={"GRAVAC_CONTROLLER_MAX_CONNECTIONS": "20"},
        limits={
            "max_streams": 3,
            "max_reads_per_second": 4.0,
            "max_changes_per_second": 2.0,
            "request_seconds": 1.5,
            "head_seconds": 1.5,
        },
    )
    controller.ask("POST", "/v1/jobs", spec())
    yield controller
    controller.stop()


def problem(answer: Answer, status: int) -> None:
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json["status"] == status
    for name, value in HEADERS.items():
        assert answer.headers[name] == value


@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nHost: loc"])
def test_a_client_that_sends_nothing_is_closed(small: Controller, said: bytes) -> None:
    with socket.create_connection((small.host, small.port), timeout=PATIENCE_SECONDS) as sock:
        sock.sendall(said)
        assert sock.recv(1) == b""


def test_a_second_head_has_a_timeout_too(small: Controller) -> None:
    whole = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection((small.host, small.port), timeout=PATIENCE_SECONDS) as sock:
        sock.sendall(whole)
        assert read_answer(sock).startswith(b"HTTP/1.1 200 ")
        sock.sendall(whole[:20])
        assert sock.recv(1) == b""


def test_a_body_that_does_not_arrive(small: Controller) -> None:
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    answer = small.raw(head)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"application/problem+json" in answer
    assert b"within 1.5 s" in answer


def test_bytes_that_are_not_http_get_a_problem(small: Controller) -> None:
    answer = small.raw(b"\x00\x01\x02\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"application/problem+json" in answer
    assert b"default-src 'self'" in answer


def test_noise_after_a_request_does_not_corrupt_its_answer(small: Controller) -> None:
    """During a stream a second request waits for its end, and then bytes arrive that are not HTTP."""
    waiting = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection((small.host, small.port), timeout=PATIENCE_SECONDS) as sock:
        sock.sendall(b"GET /v1/jobs/job/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = sock.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200 ")
        sock.sendall(waiting + b"\x00\x01\x02\r\n\r\n")
        while piece := sock.recv(65536):
            answer += piece
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "begin",
    [
        b"GET /",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ",
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n1;",
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n",
    ],
    ids=["target", "headers", "header", "extension", "trailers"],
)
def test_a_head_without_end(shared: Controller, begin: bytes) -> None:
    more = b"x" * 1000 if begin.endswith((b"/", b"X: ", b";")) else b"x: y\r\n" * 200
    sent, answer = len(begin), b""
    with socket.create_connection((shared.host, shared.port), timeout=PATIENCE_SECONDS) as sock:
        sock.sendall(begin)
        with contextlib.suppress(ConnectionError):  # closed while we talk
            while sent < 10_000_000:
                sock.sendall(more)
                sent += len(more)
        with contextlib.suppress(ConnectionError):
            answer = read_answer(sock)
    assert sent < 10_000_000
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer[:200]


def test_a_head_that_is_too_long_gets_431(shared: Controller) -> None:
    with socket.create_connection((shared.host, shared.port), timeout=PATIENCE_SECONDS) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 60_000)
        time.sleep(0.1)
        sock.sendall(b"x" * 10_000)
        answer = read_answer(sock)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"application/problem+json" in answer
    assert b"at most 65536 bytes" in answer


def test_streams_leave_room_for_agents(small: Controller) -> None:
    readers = [Reader(small) for _ in range(3)]
    try:
        answer = small.ask("GET", "/v1/jobs/job/events")
        problem(answer, 503)
        assert answer.json["detail"] == "3 event streams are open, which is the limit: close some"
        assert small.ask("GET", "/healthz").status == 200
    finally:
        for reader in readers:
            reader.close()


@pytest.mark.alone
def test_reading_and_changing_have_separate_rates(small: Controller) -> None:
    statuses = [small.ask("GET", "/v1/jobs").status for _ in range(80)]
    assert set(statuses) == {200, 429}
    assert statuses.index(429) >= 4 * BURST_SECONDS - 20  # the tests before this one took some
    answer = small.ask("GET", "/v1/jobs")
    problem(answer, 429)
    assert int(answer.headers["retry-after"]) >= 1
    assert small.ask("GET", "/healthz").status == 200
    assert small.ask("POST", "/v1/jobs", spec("other")).status == 200
    decision = JobAnswer.model_validate_json(small.ask("POST", "/v1/jobs", spec()).body).decision
    report = Trainer().report(decision)
    statuses = [small.ask("POST", "/v1/jobs/job/windows", report).status for _ in range(60)]
    assert set(statuses) == {200, 429}
    other = Trainer("other").report(decision)
    assert small.ask("POST", "/v1/jobs/other/windows", other).status == 200
