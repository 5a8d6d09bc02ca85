"""The desk that asks a controller process: a background thread, so a step never waits for HTTP (promise P1)."""

import logging
import random
import threading
import time
from collections import deque
from pathlib import Path

from gravac.policies import build
from gravac.protocol import End, Event, JobAnswer, JobSpec, WindowAnswer, WindowReport
from gravac_agent.client import Refused, Unreachable, post
from gravac_agent.desk import renumbered
from gravac_agent.launcher import ControllerProcess
from gravac_agent.plan import Directive

log = logging.getLogger("gravac.agent")

PENDING_MAX = 1024
"""Windows kept while the controller is away; beyond it the oldest is dropped and the journal shows a gap."""


class RemoteDesk:
    """Reports in order, each until it is acknowledged; restarts a controller of its own when that died.

    After ``fallback_windows`` windows without an answer the directive is dense (P5), and the decision's again as soon
    as the controller has caught up.
    """

    def __init__(
        self,
        spec: JobSpec,
        *,
        process: ControllerProcess | None,
        url: str | None,
        token: str | None,
        request_seconds: float,
        fallback_windows: int,
    ) -> None:
        self._spec, self._process = spec, process
        self._token = process.token if process is not None else token
        self._request_seconds, self._fallback_windows = request_seconds, fallback_windows
        self.url = url
        self.trace_path: Path | None = None
        if process is not None:
            self.trace_path = process.data_dir.absolute() / spec.job / "journal.jsonl"
        self.policy_state = spec.policy_state
        policy = build(spec.policy)
        start = policy.start() if spec.policy_state is None else None
        state = start.state if start else policy.State.model_validate_json(spec.policy_state or "")
        self._decided = Directive.of(state.decision)
        self.directive = self._decided
        self._pending: deque[WindowReport | Event | End] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ready = threading.Event()
        self._registered = False
        self._offset: int | None = None  # known after the first registration
        self._closing_until: float | None = None
        self._warned = False
        self._thread = threading.Thread(target=self._run, name="gravac-desk", daemon=True)
        self._thread.start()

    def put(self, report: WindowReport) -> None:
        with self._lock:
            self._pending.append(report)
            windows = [item for item in self._pending if isinstance(item, WindowReport)]
            if len(windows) > PENDING_MAX:
                self._pending.remove(windows[0])
            # The one just handed in cannot have been answered yet.
            if len(windows) - 1 >= self._fallback_windows and self.directive.phase != "fallback":
                self.directive = self._decided.dense()
                message = f"No answer from the controller for {len(windows) - 1} windows: all ranks go dense."
                self._pending.append(Event(kind="fallback", window=report.window, message=message))
                log.warning(message)
        self._wake.set()

    def note(self, event: Event) -> None:
        with self._lock:
            if len(self._pending) < 2 * PENDING_MAX:
                self._pending.append(event)
        self._wake.set()

    def resume(self, policy_state: str, window: int) -> None:
        state = build(self._spec.policy).State.model_validate_json(policy_state)
        with self._lock:
            self._spec = self._spec.model_copy(update={"policy_state": policy_state, "first_window": window})
            self.policy_state = policy_state
            self._decided = self.directive = Directive.of(state.decision)
            self._registered, self._offset = False, None
        self._wake.set()

    def wait_ready(self, seconds: float) -> bool:
        return self._ready.wait(seconds)

    def close(self, end: End) -> None:
        with self._lock:
            self._pending.append(end)
        self._closing_until = time.monotonic() + 2 * self._request_seconds
        self._wake.set()
        self._thread.join(timeout=3 * self._request_seconds + 1)
        if self._process is not None:
            self._process.stop()

    def _run(self) -> None:
        delay = 0.1
        while True:
            try:
                if not self._registered:
                    self._register()
                while self._pending:
                    self._send(self._pending[0])
                delay = 0.1
            except Unreachable as error:
                self._away(error)
                if self._closing_until is None:
                    self._wake.wait(delay * random.uniform(0.5, 1.5))
                    delay = min(5.0, delay * 2)
            except Exception:
                log.exception("reporting to the controller failed; training goes on")
                self._drop()
            if self._closing_until is not None and (
                not self._pending or time.monotonic() > self._closing_until
            ):
                return
            if self._registered and not self._pending and not self._wake.wait(1.0):
                self._look_after_process()
            self._wake.clear()

    def _register(self) -> None:
        if self._process is not None and not self._process.alive():
            if self._closing_until is not None:
                raise Unreachable("closing")
            try:
                self.url = self._process.start()
            except OSError as error:
                raise Unreachable(str(error)) from None
        first = next((item.window for item in self._pending if isinstance(item, WindowReport)), None)
        spec = self._spec
        if self.policy_state is not None:  # a controller that lost its folder goes on from here
            spec = spec.model_copy(update={"policy_state": self.policy_state})
            if first is not None:
                spec = spec.model_copy(update={"first_window": first + (self._offset or 0)})
        try:
            body = self._post("/v1/jobs", spec.model_dump_json())
        except Refused as refused:  # nothing can be sent without: ask again, ever less often
            raise Unreachable(f"{self.url} answered {refused}") from None
        answer = JobAnswer.model_validate_json(body)
        if self._offset is None:
            self._offset = answer.next_window - spec.first_window
        self._registered, self._warned = True, False
        self._adopt(answer.decision.epoch, Directive.of(answer.decision), answer.policy_state)
        self._ready.set()
        log.debug("controller at %s decides for job %s", self.url, spec.job)

    def _send(self, item: WindowReport | Event | End) -> None:
        base = f"/v1/jobs/{self._spec.job}/"
        try:
            offset = self._offset or 0
            if isinstance(item, WindowReport):
                body = self._post(base + "windows", renumbered(item, offset).model_dump_json())
                answer = WindowAnswer.model_validate_json(body)
                self._adopt(answer.decision.epoch, Directive.of(answer.decision), answer.policy_state)
            elif isinstance(item, Event):
                self._post(base + "events", renumbered(item, offset).model_dump_json())
            else:
                self._post(base + "end", item.model_dump_json())
        except Refused as refused:
            if refused.status in (401, 404):  # it does not know us (any more)
                self._registered = False
                raise Unreachable(f"{self.url} answered {refused}") from None
            log.error("controller refused a %s: %s", type(item).__name__, refused)
        self._drop()

    def _drop(self) -> None:
        with self._lock:
            if self._pending:
                self._pending.popleft()
            waiting = sum(isinstance(item, WindowReport) for item in self._pending)
            if self.directive.phase == "fallback" and waiting == 0:
                self.directive = self._decided
                self._pending.append(
                    Event(
                        kind="recovered",
                        window=None,
                        message="The controller is back: its decision holds again.",
                    )
                )
                log.warning("the controller is back: its decision holds again")

    def _adopt(self, epoch: int, directive: Directive, policy_state: str) -> None:
        if epoch < self._decided.epoch:
            return  # an old answer, delivered late
        self.policy_state = policy_state
        with self._lock:
            self._decided = directive
            if self.directive.phase != "fallback":
                self.directive = directive

    def _post(self, path: str, body: str) -> bytes:
        if self.url is None:
            raise Unreachable("no controller yet")
        return post(self.url, path, body, seconds=self._request_seconds, token=self._token)

    def _away(self, error: Unreachable) -> None:
        if self._process is not None and not self._process.alive():
            self._registered = False
        if not self._warned and self._closing_until is None:
            log.warning("controller away (%s); training goes on, reports are kept", error)
            self._warned = True

    def _look_after_process(self) -> None:
        if self._process is not None and not self._process.alive():
            log.warning("the controller ended; starting it again")
            self._registered = False
