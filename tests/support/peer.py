"""Something that answers an agent: a controller of one job by default, and what ``lie`` says while that is set."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from gravac import proof
from gravac.fold import JobFold
from gravac.protocol import End, Event, JobSpec, WindowReport

Lie = Callable[["Handler", bytes], None]


class Ended(Exception):
    """The run has ended: it cannot register again."""


class Peer(ThreadingHTTPServer):
    """Counts what it is asked and keeps what it is sent. ``token``: what it proves; None: it proves nothing."""

    daemon_threads = True
    block_on_close = False  # some lies never end

    def __init__(self, spec: JobSpec, token: str | None, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.spec, self.token = spec, token
        self.lie: Lie | None = None
        self.proves = token is not None
        self.asked: list[tuple[float, str]] = []
        self.lied: list[float] = []
        self.seen = b""
        self.fold = JobFold(spec)
        self.windows: list[int] = []
        self.events: list[Event] = []
        self.ends: list[End] = []
        self.turn = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def busiest_second(self) -> int:
        """The most requests in any second while it lied."""
        return max((sum(at <= one < at + 1.0 for one in self.lied) for at in self.lied), default=0)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Peer

    def do_GET(self) -> None:
        self._note(b"")
        challenge = parse_qs(urlsplit(self.path).query).get("challenge", [""])[0]
        known = [self.server.token] if self.server.token and self.server.proves else []
        self.answer(json.dumps({"proofs": [proof.prove(token, challenge) for token in known]}))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self._note(body)
        if self.server.lie is not None:
            self.server.lied.append(time.monotonic())
            self.server.lie(self, body)
            return
        try:
            with self.server.turn:
                self.answer(self.truth(body))
        except Ended:
            self.problem(409, "this run has ended", reason="ended")

    def truth(self, body: bytes) -> str:
        """What a controller would answer, having taken the record."""
        server = self.server
        if self.path == "/v1/jobs" and server.ends:
            raise Ended
        if self.path == "/v1/jobs":
            server.fold.resume(JobSpec.model_validate_json(body))
            return server.fold.job_answer().model_dump_json()
        if self.path.endswith("/windows"):
            report = WindowReport.model_validate_json(body)
            if server.fold.judge(report) != "duplicate":
                server.fold.decide(report)
                server.windows.append(report.window)
            return server.fold.answer().model_dump_json()
        if self.path.endswith("/events"):
            server.events.append(Event.model_validate_json(body))
            return json.dumps({"time": 0.0, "event": json.loads(body)})
        server.ends.append(End.model_validate_json(body))
        return json.dumps({"job": server.spec.job, "state": "ended"})

    def answer(self, text: str, status: int = 200, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text.encode())))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(text.encode())

    def problem(self, status: int, detail: str = "no", reason: str = "invalid") -> None:
        text = json.dumps({"status": status, "detail": detail, "reason": reason, "errors": []})
        self.answer(text, status, "application/problem+json")

    def _note(self, body: bytes) -> None:
        server = self.server
        server.asked.append((time.monotonic(), f"{self.command} {self.path}"))
        server.seen += self.requestline.encode() + bytes(self.headers) + body
        if self.server.lie is not None and self.command == "GET":
            server.lied.append(time.monotonic())

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:  # the agent gave up on a lie
            self.close_connection = True


@contextmanager
def serving(spec: JobSpec, token: str | None, port: int = 0) -> Iterator[Peer]:
    """A peer that answers in threads of its own."""
    with Peer(spec, token, port) as peer:
        thread = threading.Thread(target=peer.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield peer
        finally:
            peer.shutdown()
            thread.join()


def eventually(condition: Callable[[], object], seconds: float = 150.0) -> None:
    """Wait until it holds; AssertionError when it never does."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.01)
