"""A server for an agent's reports: it answers as a controller of one job, or invalidly while ``invalid`` is set.

The kinds of invalid answers are the lies of the chaos test.
"""

import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from gravac import proof
from gravac.fold import JobFold
from gravac.policies import StaticPolicy
from gravac.protocol import Decision, End, Event, JobSpec, WindowReport
from gravac_agent.reporting.http_reporter import HttpReporter
from gravac_agent.settings import AgentSettings
from tools.chaos.events import LIES
from tools.chaos.peers.json_lies import decided, decision_lie, field
from tools.chaos.peers.lies import Lie, LieContext, Responder
from tools.chaos.peers.messages import Message, answer
from tools.harness.cluster import Cluster, job_spec

InvalidAnswer = Callable[["Handler", bytes], None]
TOKEN = "a-token-of-the-job-0123456789abcdef"
SPEC = job_spec(StaticPolicy(cf=10).spec())
DECISION = StaticPolicy(cf=10).start().decision


class Ended(Exception):
    """The run has ended: it cannot register again."""


class Peer(ThreadingHTTPServer):
    """Records all requests. ``token``: what it proves to know; None: it proves nothing."""

    daemon_threads = True
    block_on_close = False  # some invalid answers never end

    def __init__(self, spec: JobSpec, token: str | None, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.spec, self.token = spec, token
        self.invalid: InvalidAnswer | None = None
        """Answers requests while it is set."""
        self.proves = token is not None
        self.requests: list[tuple[float, str]] = []
        self.invalid_at: list[float] = []
        self.received = b""
        self.fold = JobFold(spec)
        self.windows: list[int] = []
        self.events: list[Event] = []
        self.ends: list[End] = []
        self.one_at_a_time = threading.Lock()
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def busiest_second(self) -> int:
        """Return the most requests in any second while its answers were invalid."""
        return max(
            (sum(begin <= at < begin + 1.0 for at in self.invalid_at) for begin in self.invalid_at), default=0
        )


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Peer

    def do_GET(self) -> None:
        self._record(b"")
        if not self.path.startswith(proof.PATH) and self.server.invalid is not None:
            self.server.invalid(self, b"")
            return
        challenge = parse_qs(urlsplit(self.path).query).get("challenge", [""])[0]
        known = [self.server.token] if self.server.token and self.server.proves else []
        self.answer(json.dumps({"proofs": [proof.prove(token, challenge) for token in known]}))

    def do_PUT(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self._record(body)
        if self.server.invalid is not None:
            self.server.invalid_at.append(time.monotonic())
            self.server.invalid(self, body)
            return
        try:
            with self.server.one_at_a_time:
                self.answer(self.valid(body))
        except Ended:
            self.problem(409, "this run has ended", reason="ended")

    def valid(self, body: bytes) -> str:
        """Accept the record and return a controller's answer."""
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

    def _record(self, body: bytes) -> None:
        server = self.server
        server.requests.append((time.monotonic(), f"{self.command} {self.path}"))
        server.received += self.requestline.encode() + bytes(self.headers) + body
        if self.server.invalid is not None and self.command == "GET":
            server.invalid_at.append(time.monotonic())

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:  # the agent gave up on an invalid answer
            self.close_connection = True


@contextmanager
def serving(spec: JobSpec, token: str | None, port: int = 0) -> Iterator[Peer]:
    """Run a peer."""
    with Peer(spec, token, port) as peer:
        thread = threading.Thread(target=peer.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield peer
        finally:
            peer.closing.set()
            peer.shutdown()
            thread.join()


def eventually(condition: Callable[[], object], seconds: float = 150.0) -> None:
    """Wait until the condition holds. Raises AssertionError after ``seconds``."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "the condition never held"
        time.sleep(0.01)


def connected(peer: Peer, token: str | None = TOKEN) -> HttpReporter:
    """Make a reporter that reports to a peer."""
    return HttpReporter(peer.spec, AgentSettings(controller=peer.url, token=token), process=None)


def window_report(window: int, decision: Decision = DECISION) -> WindowReport:
    """Make a report of a window."""
    return Cluster().report(window, decision)


def job_end(windows: int) -> End:
    """Make the end of a job with that many windows."""
    return End(incarnation=SPEC.incarnation, windows=windows, steps=50 * windows, message="finished")


def lying(lie: Lie) -> InvalidAnswer:
    """Answer with a lie about the state before the request. The record is not accepted."""
    context = LieContext(SPEC.job, "static:cf=10", random.Random(0))

    def answer_invalidly(handler: Handler, body: bytes) -> None:
        request = Message(handler.raw_requestline + b"\r\n", body)
        if not lie.answers(request):
            handler.problem(503)
            return
        fold = handler.server.fold
        honest = fold.job_answer() if handler.path == "/v1/jobs" else fold.answer()
        reply = Message(b"HTTP/1.1 200 OK\r\n\r\n", honest.model_dump_json().encode())
        open_still = lie.send(handler.connection, request, reply, context, handler.server.closing)
        handler.close_connection = not open_still

    return answer_invalidly


def of_bytes(*pieces: bytes) -> Responder:
    """Respond to everything with these bytes."""
    return lambda request, reply, context: iter(pieces)


FURTHER = (
    Lie("silent", lambda request, reply, context: itertools.repeat(b""), slow=0.05),
    Lie("403 of a proxy", of_bytes(answer("403 Forbidden", b"denied", kind="text/plain")), keeps_open=True),
    Lie(
        "head without body",
        of_bytes(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 400\r\n\r\n"),
    ),
    decision_lie("codec that no rank has built", decided(codec="int4")),
    decision_lie("huge pinned cf", decided(cf_candidate=1e9, cf_minimum=1e9, rule="pinned")),
    decision_lie("epoch without a window", decided(epoch=9)),
    decision_lie(
        "epoch and next window far ahead",
        lambda content, context, request: field(next_window=10**6)(
            decided(epoch=10**6)(content, context, request), context, request
        ),
    ),
    decision_lie("policy_state of nothing", field(policy_state="{}")),
)
"""Invalid to an agent that has reported a window."""
MAY_BE_VALID = {lie.name for lie in LIES if lie.plausible} - {"wrong content type"} | {
    "next_window far ahead"
}
INVALID_ANSWERS = {
    lie.name: lying(lie)
    for lie in LIES + FURTHER
    if lie.name not in MAY_BE_VALID and "proof" not in lie.name and lie.name != "429 for ever"
}
"""By kind. Proofs, and a pause of a minute, have tests of their own."""
