"""Hosts, cross-site requests, tokens, paths and sizes, against a real server."""

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gravac.protocol import JobAnswer
from tools.harness.builders import Trainer, spec
from tools.harness.controller import PATIENCE_SECONDS, Answer, Controller, read_answer

TOKEN = "a-token-of-the-tests-0123456789"
SPEC = spec().model_dump_json().encode()
JSON = {"Content-Type": "application/json"}


def is_problem(answer: Answer, status: int) -> bool:
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json["status"] == status
    return True


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil.example:8756",
        "10.0.0.1",
        "[::2]",
        "0.0.0.0",
        "127.0.0.1@evil.example",
        "evil.example/127.0.0.1",
        "127.0.0.1:notaport",
        "",
    ],
)
def test_an_unknown_host_is_refused_on_every_route(shared: Controller, host: str) -> None:
    for method, path in (("GET", "/"), ("GET", "/healthz"), ("GET", "/metrics"), ("GET", "/v1/jobs")):
        assert is_problem(shared.ask(method, path, headers={"Host": host}), 400)
    assert is_problem(shared.ask("POST", "/v1/jobs", SPEC, JSON | {"Host": host}), 400)
    assert shared.ask("GET", "/v1/jobs/job").status == 404, "nothing was registered"


def test_our_own_names_are_served(start: Callable[..., Controller]) -> None:
    controller = start("--allowed-host", "A-Name.example", "--allowed-host", "::ffff")
    names = [
        "localhost",
        "LOCALHOST:1",
        "127.0.0.1",
        "[::1]:9000",
        "localhost.",
        "a-name.example:80",
        "[::FFFF]",
    ]
    for host in names:
        assert controller.ask("GET", "/healthz", headers={"Host": host}).status == 200


def test_no_host_and_two_hosts(shared: Controller) -> None:
    assert b" 400 " in shared.raw(b"GET /healthz HTTP/1.0\r\n\r\n")
    assert b" 400 " in shared.raw(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1"},
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_requests_from_pages_of_other_sites_are_refused(
    shared: Controller, method: str, headers: dict[str, str]
) -> None:
    assert is_problem(shared.ask(method, "/v1/jobs", SPEC, JSON | headers), 403)
    assert shared.ask("GET", "/v1/jobs/job").status == 404, "nothing was registered"


def test_our_own_page_may_post(controller: Controller) -> None:
    own = {"Origin": controller.url, "Sec-Fetch-Site": "same-origin"}
    assert controller.ask("POST", "/v1/jobs", SPEC, JSON | own).status == 200
    own = {"Origin": controller.url}
    assert controller.ask("POST", "/v1/jobs", SPEC, JSON | own).status == 200


def test_posting_needs_the_token_where_there_is_one(start: Callable[..., Controller]) -> None:
    controller = start(env={"GRAVAC_TOKEN": TOKEN})
    wrong = [
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN}x",
        f"Basic {TOKEN}",
        TOKEN,
        f"Bearer {TOKEN.upper()}",
        "Bearer é",
    ]
    for header in wrong:
        answer = controller.ask("POST", "/v1/jobs", SPEC, JSON | {"Authorization": header})
        assert is_problem(answer, 401)
        assert answer.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in answer.body.decode()
    assert is_problem(controller.ask("POST", "/v1/jobs", SPEC, JSON), 401)
    right = JSON | {"Authorization": f"Bearer {TOKEN}"}
    answer = controller.ask("POST", "/v1/jobs", SPEC, right)
    assert answer.status == 200
    report = Trainer().report(JobAnswer.model_validate_json(answer.body).decision)
    assert controller.ask("POST", "/v1/jobs/job/windows", report).status == 401
    assert (
        controller.ask("POST", "/v1/jobs/job/windows", report, {"Authorization": f"bearer {TOKEN}"}).status
        == 200
    )
    assert controller.ask("GET", "/v1/jobs/job").json["windows"] == 1
    assert TOKEN not in controller.log.read_text()


def test_the_token_may_be_in_a_file(start: Callable[..., Controller], tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    controller = start("--token-file", str(file))
    assert controller.ask("POST", "/v1/jobs", SPEC, JSON).status == 401
    assert controller.ask("POST", "/v1/jobs", SPEC, JSON | {"Authorization": f"Bearer {TOKEN}"}).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/../settings.py",
        "/static/..%2fsettings.py",
        "/static/%2e%2e/settings.py",
        "/static/..\\settings.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/....//settings.py",
        "/static/%00",
        "/static/index.html%00.js",
        "/static/" + "a" * 5000,
        "/static/" + "a/" * 2000,
        "/static/%ff%fe",
        "/static/",
        "/static",
        "/..%2f..%2fetc/passwd",
        "//etc/passwd",
    ],
)
def test_nothing_outside_the_static_folder_is_served(shared: Controller, path: str) -> None:
    answer = shared.raw(
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode("latin-1")
    )
    status = int(answer.split(b" ", 2)[1])
    assert 400 <= status < 500, answer[:300]
    assert b"application/problem+json" in answer
    assert b"root:" not in answer
    assert b"import" not in answer


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_50_megabytes(controller: Controller, chunked: bool) -> None:
    head = "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    size = 50_000_000
    head += "Transfer-Encoding: chunked\r\n\r\n" if chunked else f"Content-Length: {size}\r\n\r\n"
    piece = b"x" * 1_000_000
    with socket.create_connection((controller.host, controller.port), timeout=PATIENCE_SECONDS) as sock:
        sock.sendall(head.encode())
        for _ in range(50):
            sock.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
        if chunked:
            sock.sendall(b"0\r\n\r\n")
        answer = read_answer(sock)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"application/problem+json" in answer
    assert b"larger than 786432 bytes" in answer
    assert memory_mb(controller.process.pid) < 150


def memory_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmHWM")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET /healthz\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        b"Content-Type: application/json\r\n\r\nzz\r\n\r\n",
    ],
)
def test_bytes_that_are_not_http_get_a_4xx(shared: Controller, request_bytes: bytes) -> None:
    try:
        answer = shared.raw(request_bytes)
    except ConnectionError:
        answer = b""
    assert answer == b"" or answer.split(b" ", 2)[1].startswith(b"4"), answer[:200]
    assert shared.ask("GET", "/healthz").status == 200


def test_many_silent_connections_do_not_stop_others(shared: Controller) -> None:
    idle = [socket.create_connection((shared.host, shared.port)) for _ in range(100)]
    try:
        answers: list[int] = []
        threads = [
            threading.Thread(target=lambda: answers.append(shared.ask("GET", "/healthz").status))
            for _ in range(10)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert answers == [200] * 10
    finally:
        for sock in idle:
            sock.close()
