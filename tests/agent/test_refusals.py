"""A controller that refuses: what is no fault of the request is asked again, calmly; nothing is dropped for it."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from policies.builders import Cluster, job_spec

from gravac.fold import JobFold
from gravac.policies import StaticPolicy
from gravac.protocol import End, JobSpec, WindowReport
from gravac_agent.client import Refused, Unreachable, post
from gravac_agent.remote import RemoteDesk

SPEC = job_spec(StaticPolicy(cf=10).spec())
END = End(incarnation="first", windows=0, steps=0, message="")


class Moody(ThreadingHTTPServer):
    """A controller of one job that answers ``status`` while there is one, and counts requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status: int | None = None
        self.asked = 0
        self.windows: list[int] = []
        self.fold = JobFold(SPEC)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Moody

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.asked += 1
        if self.server.status is not None:
            return self._answer(self.server.status, json.dumps({"detail": "not now", "errors": []}))
        if self.path == "/v1/jobs":
            self.server.fold.resume(JobSpec.model_validate_json(body))
            return self._answer(200, self.server.fold.job_answer().model_dump_json())
        if self.path.endswith("/windows"):
            report = WindowReport.model_validate_json(body)
            self.server.fold.decide(report)
            self.server.windows.append(report.window)
        return self._answer(200, self.server.fold.answer().model_dump_json())

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def moody() -> Iterator[Moody]:
    with Moody() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def desk(server: Moody) -> RemoteDesk:
    return RemoteDesk(SPEC, process=None, url=server.url, token=None, request_seconds=5.0, fallback_windows=3)


@pytest.mark.parametrize(
    ("status", "error"), [(408, Unreachable), (429, Unreachable), (503, Unreachable), (422, Refused)]
)
def test_which_answers_mean_later(moody: Moody, status: int, error: type[Exception]) -> None:
    moody.status = status
    with pytest.raises(error, match=f"{status}.*not now"):
        post(moody.url, "/v1/jobs", "{}", seconds=5, token=None)


@pytest.mark.alone
def test_a_refused_registration_is_tried_again_ever_less_often(moody: Moody) -> None:
    moody.status = 401
    reporter = desk(moody)
    time.sleep(1.0)
    assert 2 <= moody.asked <= 8  # at once, then after about 0.1, 0.2, 0.4 s
    moody.status = None
    assert reporter.wait_ready(30)
    reporter.close(END)


def test_a_window_that_comes_too_often_is_kept(moody: Moody) -> None:
    reporter = desk(moody)
    assert reporter.wait_ready(30)
    moody.status = 429
    for window in range(3):
        reporter.put(Cluster().report(window, moody.fold.decision))
    until = time.monotonic() + 30
    while moody.asked < 3 and time.monotonic() < until:
        time.sleep(0.01)
    moody.status = None
    reporter.close(END)
    assert moody.windows == [0, 1, 2]
