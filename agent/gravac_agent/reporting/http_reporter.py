"""Reports to a controller over HTTP, from a background thread, so that no step waits for the network (promise P1)."""

import logging
import math
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from gravac.policies import build
from gravac.protocol import Decision, End, Event, JobSpec, WindowReport
from gravac.traces.parts import ACTIVE
from gravac_agent.exchange.plan import Directive
from gravac_agent.reporting import controller_api
from gravac_agent.reporting.connection import ControllerConnection, ErrorAnswer, NoAnswer
from gravac_agent.reporting.controller_api import DecisionChecker, read_state
from gravac_agent.reporting.job_lock import JobLock, is_other
from gravac_agent.reporting.launcher import ControllerProcess
from gravac_agent.reporting.outbox import FIRST_PAUSE_SECONDS, Outbox, OutboxRecord, RetryPauses, label
from gravac_agent.reporting.reporter import renumbered, unfit, went_on, without_order
from gravac_agent.settings import AgentSettings
from gravac_agent.sinks import Sink
from gravac_agent.sinks.feed import Feeds

log = logging.getLogger("gravac.agent")

IDLE_SECONDS = 1.0
"""How often an idle reporter checks whether its own controller still runs."""
MAX_REFUSALS = 8
"""A record refused this many times in a row (over half a minute) is dropped, so that later ones can be delivered."""
CLOSING_REFUSALS = 2
"""Such refusals at the end of a training, where there is no time for more: the first one registers the job again."""
START_SECONDS = 30.0
"""Longest time for the agent's own controller to start."""
CLOSING_START_SECONDS = 15.0
"""Longest time to start it again at the end, where it died before the last windows were delivered."""
RECOVERED = "The controller is back: its decision holds again."


class HttpReporter:
    """Delivers records in order, each until it is acknowledged, and restarts the agent's own controller when it died.

    Anything but a valid answer counts as none: the record stays queued and is sent again after a growing pause. After
    ``fallback_windows`` windows without an answer, and the seconds that a controller may take to answer or start, the
    directive is dense (promise P5). As soon as the controller has answered all windows, the directive is that of its
    decision again.

    Args:
        spec: The job.
        settings: The agent's settings.
        process: The agent's own controller; None: the settings name one that runs already.
        lock: Held until ``close``.
        asked: The name that the job had been given; None: as in ``spec``.
        sinks: That are loaded.
    """

    def __init__(
        self,
        spec: JobSpec,
        settings: AgentSettings,
        process: ControllerProcess | None,
        lock: JobLock | None = None,
        asked: str | None = None,
        sinks: Sequence[Sink] = (),
    ) -> None:
        self._spec, self._process, self._job_lock = spec, process, lock
        self._asked = asked or spec.job
        self._left: str | None = None  # a name of its own, until a checkpoint was loaded
        self._token = settings.token if process is None else process.token
        self._request_seconds, self._fallback_windows = settings.request_seconds, settings.fallback_windows
        self.url = settings.controller if process is None else None
        self.policy_state = spec.policy_state
        self._policy = build(spec.policy).fitted(spec)
        start = self._policy.start().decision
        if spec.policy_state is not None:
            start = read_state(self._policy, spec.policy_state).decision
        self._checker = DecisionChecker(
            self._policy, settings.max_cf, None if spec.policy_state is None else start
        )
        self._decided = self.directive = self._directive_of(start)
        self._dense = False  # by agreement, because the controller does not answer
        self._unanswered_since = 0.0  # the oldest queued window, or the answer to the one before it
        self._outbox = Outbox()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ready = threading.Event()
        self._registered = False
        self._offset: int | None = None  # known after the first registration
        # Number after the newest reported window, as the trainer counts.
        self._next_reported = spec.first_window
        self._next_window = 0  # number after the newest window that was decided, as the job counts
        self._refusals = 0  # of the record in flight, in a row
        self._pauses = RetryPauses()
        self._hung = False
        self._given_up = False  # at the end of the training: another attempt would fail like the last one
        self._cannot_start = False  # the agent's own controller did not, when it was last tried
        # When the first start of its own controller ended, well or not; 0: there is none.
        self._start_ended = None if process is not None else 0.0
        self._closing, self._closing_until = threading.Event(), 0.0
        self._wake.set()  # register at once
        self._feeds = Feeds(sinks, spec)
        self._thread = threading.Thread(target=self._run, name="gravac-reporter", daemon=True)
        self._thread.start()

    @property
    def job(self) -> str:
        return self._spec.job

    @property
    def trace_path(self) -> Path | None:
        return None if self._process is None else self._process.data_dir.absolute() / self.job / ACTIVE

    @property
    def goes_on(self) -> bool:
        return (self._offset or 0) > 0

    # -- called by the training -------------------------------------------------------------------------------

    def report_window(self, report: WindowReport) -> None:
        self._feeds.window(report)
        with self._lock:
            dropped = self._outbox.dropped_windows
            if self._outbox.windows == 0:
                self._unanswered_since = time.monotonic()
            self._outbox.add(report)
            self._next_reported = report.window + 1
            unanswered = self._outbox.windows - 1  # the newest cannot have been answered yet
            fall_back = unanswered >= self._fallback_windows and not self._dense and self._silent()
            if fall_back:
                self._dense, self.directive = True, self._decided.dense()
                message = f"No answer from the controller for {unanswered} windows: all ranks go dense."
                self._outbox.add(Event(kind="fallback", window=report.window, message=message))
            dropping = self._outbox.dropped_windows > dropped == 0
        job = self._spec.job
        if fall_back:
            log.warning("job %s: %s", job, message)
        if dropping:
            log.error(
                "job %s: no answer from the controller for %d windows: from now on the oldest are dropped",
                job,
                self._outbox.windows,
            )
        self._wake.set()

    def _silent(self) -> bool:
        """Return whether the controller had time to answer: windows may be shorter than an answer or its start."""
        patience = START_SECONDS if self._start_ended is None else self._request_seconds
        return time.monotonic() - max(self._unanswered_since, self._start_ended or 0.0) >= patience

    def report_event(self, event: Event) -> None:
        with self._lock:
            self._outbox.add(event)
        self._wake.set()

    def resume(self, policy_state: str | None, window: int) -> None:
        if policy_state is None:  # saved before the first answer of a controller
            with self._lock:
                self._spec = self._spec.model_copy(update={"first_window": window})
                self._registered, self._offset, self._next_reported = False, None, window
            self._wake.set()
            return
        try:
            state = without_order(self._spec.job, read_state(self._policy, policy_state))
        except (NoAnswer, ValueError) as error:
            raise unfit(self._spec.policy.name, error) from None
        try:
            directive = self._directive_of(state.decision)
        except ValueError as error:
            log.warning("job %s: the checkpoint has %s: the policy begins again", self.job, error)
            self.resume(None, window)
            return
        policy_state = state.model_dump_json()
        changes = {"policy_state": policy_state, "first_window": window}
        spec, lock = self._spec.model_copy(update=changes), self._job_lock
        # A controller of many jobs names the job when it is registered again.
        if self.job != self._asked and not (
            self._process is not None and is_other(self._process.data_dir, self._asked, spec)
        ):
            if self._process is not None:
                lock = JobLock.acquire(self._process.data_dir, self._asked)
            spec = spec.model_copy(update={"job": self._asked})
        with self._lock:
            if spec.job != self.job:
                self._left = self.job
            self._spec = spec
            if lock is not self._job_lock and self._job_lock is not None:
                self._job_lock.release()
            self._job_lock = lock
            self.policy_state = policy_state
            self._decided = self.directive = directive
            self._checker.resume(state.decision)
            self._registered, self._offset, self._next_reported = False, None, window
        self._wake.set()

    def wait_ready(self, seconds: float) -> bool:
        return self._ready.wait(seconds)

    def close(self, end: End) -> None:
        """Deliver what is left, with a new controller if the agent's own died, and end that. Logs what is lost."""
        with self._lock:
            self._outbox.add(end)
        seconds = 2 * self._request_seconds
        if self._process is not None:
            seconds += CLOSING_START_SECONDS
        self._closing_until = time.monotonic() + seconds
        self._closing.set()
        self._wake.set()
        self._thread.join(seconds + self._request_seconds)
        with self._lock:
            losses = self._outbox.losses()
        if losses:
            log.error("the journal of job %s lacks %s", self._spec.job, losses)
        if self._process is not None:
            self._process.close()
        if self._job_lock is not None:
            self._job_lock.release()
        self._feeds.close()

    # -- the reporter thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake.wait(IDLE_SECONDS)
            self._wake.clear()
            if self._process is not None and self._registered and not self._process.alive():
                log.warning("the controller ended; starting it again")
                self._registered = False
            if self._registered and not len(self._outbox):
                if self._closing.is_set():
                    return
                continue
            try:
                self._pauses.succeeded(self._deliver())
            except NoAnswer as error:
                starting = self._process is not None and not self._process.alive()
                where = "" if self.url is None else f" at {self.url}"
                what = "no controller" if starting else f"no valid answer from the controller{where}"
                pause = self._pauses.failed(
                    f"{what}: {error}", error.retry_after, starting, self._closing.is_set()
                )
            except Exception as error:  # a bug of ours must neither end the thread nor lose a record
                log.exception("reporting to the controller failed")
                pause = self._pauses.failed(
                    f"no valid answer from the controller: {error!r}", ending=self._closing.is_set()
                )
            else:
                if self._outbox or self._closing.is_set():
                    self._wake.set()
                continue
            late = time.monotonic() > self._closing_until or self._given_up
            if self._closing.is_set() and late:
                return
            self._pause(pause)
            self._wake.set()

    def _deliver(self) -> bool:
        """Send all records on one connection. Return False when there was only a registration to send."""
        self._given_up = False
        if self._left is not None and self._process is not None:
            self._leave(self._left)  # its controller serves no other
        self._ensure_process()
        if self.url is None:
            raise NoAnswer("no controller yet")
        delivered = False
        try:
            with ControllerConnection(
                self.url, seconds=self._request_seconds, token=self._token
            ) as connection:
                if not self._registered:
                    self._register(connection)
                while (
                    self._registered and not connection.closed and (record := self._next_record()) is not None
                ):
                    self._send(connection, record)
                    delivered = True
        except NoAnswer as error:
            if (
                isinstance(error, ErrorAnswer)
                and error.reason == "ended"
                and isinstance(end := self._next_record(), End)
            ):
                self._acknowledged(end)  # it was accepted, and the answer was lost
                return True
            if isinstance(error, ErrorAnswer) and error.reason == "unreadable" and self._process is not None:
                self._take_another_name(self._process, str(error))
                raise NoAnswer("it is started again, for that name") from None
            self._hung = not isinstance(error, ErrorAnswer)
            self._registered = False  # it may have lost the job; registering again is harmless otherwise
            raise
        self._hung = False
        return delivered

    def _take_another_name(self, process: ControllerProcess, why: str) -> None:
        """Go on as a job of its own, because the journal of this one cannot be read."""
        with self._lock:
            before = self._job_lock
            self._spec, self._job_lock = JobLock.named(process.data_dir, self._spec, why)
            self._registered = False
        if before is not None:
            before.release()
        process.stop()
        process.job, self.url = self.job, None

    def _leave(self, name: str) -> None:
        """End the job of its own that the run had until a checkpoint was loaded."""
        log.warning("job %s: it goes on as job %s, from a checkpoint of that", name, self.job)
        self._left = None
        try:
            if self.url is not None:
                with ControllerConnection(
                    self.url, seconds=self._request_seconds, token=self._token
                ) as connection:
                    controller_api.send_record(connection, name, went_on(self._spec))
        except NoAnswer as error:
            log.debug("job %s: its end was not reported: %s", name, error)
        if self._process is not None:
            self._process.stop()
            self._process.job, self.url = self.job, None

    def _next_record(self) -> OutboxRecord | None:
        with self._lock:
            return self._outbox.next()

    def _ensure_process(self) -> None:
        """Start the agent's own controller if it does not run. At the end of the training, replace one that hangs."""
        process = self._process
        if process is None:
            return
        closing = self._closing.is_set()
        if process.alive():
            if not (self._hung and closing):
                return
            process.kill()
        self._registered = self._hung = False
        try:
            self.url = process.start(CLOSING_START_SECONDS if closing else START_SECONDS)
        except OSError as error:
            # A second failure, at the end: a third would not end otherwise.
            self._given_up = closing and self._cannot_start
            self._cannot_start = True
            raise NoAnswer(str(error)) from None
        finally:
            if self._start_ended is None:
                self._start_ended = time.monotonic()
        self._cannot_start = False

    def _register(self, connection: ControllerConnection) -> None:
        with self._lock:
            base, first, offset = self._spec, self._outbox.first_window(), self._offset
            state = self.policy_state
        spec = controller_api.resumed(base, state, None if first is None else first + (offset or 0))
        try:
            answer = controller_api.register(connection, spec)
        except ErrorAnswer as refused:
            left = self._closing_until - time.monotonic() if self._closing.is_set() else math.inf
            self._given_up = refused.lasts(left)
            raise
        with self._lock:
            if self._spec is not base:  # a checkpoint was loaded meanwhile: register again
                self._left = None if answer.job == self.job else answer.job
                return
            if answer.job != base.job:
                self._spec = base.model_copy(update={"job": answer.job})
            decided = self._decided_before(answer.next_window)
            self._adopt(answer.decision, answer.policy_state, decided)
            self._next_window = answer.next_window
            if offset is None:
                self._offset = answer.next_window - spec.first_window
            elif first is not None and answer.next_window > first + offset + 1:
                # Another run of this name reported meanwhile: ours were never accepted, so they are numbered after its.
                self._offset = answer.next_window - first
            self._registered = True
        if self._left is not None and self._left != answer.job:
            self._leave(self._left)
        self._left = None
        if answer.note:
            log.warning("job %s: %s", answer.job, answer.note)
        self._feeds.page(self.url)
        self._ready.set()
        log.debug("controller at %s decides for job %s", self.url, spec.job)

    def _decided_before(self, next_window: int) -> int | None:
        """Return the most windows that can have been decided since the last accepted decision; None: any number.

        The caller locks. The first registration cannot know how far the job went before. A later one can: no decision
        follows a window that was not reported, whatever ``next_window`` says. Where another run of this name reported
        meanwhile, its epochs become valid as soon as that many windows were reported.
        """
        if self._offset is not None:
            return max(0, min(next_window, self._next_reported + self._offset) - self._next_window)
        if self._spec.policy_state is None:
            return None
        # Each start since the checkpoint may have ended an order, which takes a window to begin.
        return 2 * max(0, next_window - self._spec.first_window) + 1

    def _send(self, connection: ControllerConnection, record: OutboxRecord) -> None:
        try:
            numbered = renumbered(record, self.job, self._offset or 0)
            answer = controller_api.send_record(connection, self._spec.job, numbered)
            if answer is not None and isinstance(numbered, WindowReport):
                with self._lock:
                    self._adopt(answer.decision, answer.policy_state, decided=1)
                    self._next_window = numbered.window + 1
        except ErrorAnswer as refused:
            if refused.status in (409, 413, 422):
                self._refusals += 1
                if self._refusals >= (CLOSING_REFUSALS if self._closing.is_set() else MAX_REFUSALS):
                    log.error(
                        "job %s: %s is dropped because the controller keeps refusing it: %s",
                        self._spec.job,
                        label(record),
                        refused,
                    )
                    self._acknowledged(record, dropped=True)
            raise
        self._acknowledged(record)

    def _acknowledged(self, record: OutboxRecord, dropped: bool = False) -> None:
        """Remove a record from the queue, and end the fallback when all windows are answered."""
        self._refusals = 0
        back = False
        with self._lock:
            if dropped:
                self._outbox.drop(record)
            else:
                self._outbox.remove(record)
                self._unanswered_since = time.monotonic()
            if self._dense and self._outbox.windows == 0 and not dropped:
                self._dense, self.directive, back = False, self._decided, True
                window = record.window if isinstance(record, WindowReport) else None
                self._outbox.add(Event(kind="recovered", window=window, message=RECOVERED))
        if back:
            log.warning("job %s: %s", self._spec.job, RECOVERED)

    def _adopt(self, decision: Decision, policy_state: str, decided: int | None) -> None:
        """Check a decision and put it in force. The caller locks. Raises NoAnswer for one that is not valid."""
        self._checker.accept(decision, policy_state, decided)
        self.policy_state = policy_state
        self._decided = self._directive_of(decision)
        self._feeds.decision(decision)
        if not self._dense:
            self.directive = self._decided

    def _directive_of(self, decision: Decision) -> Directive:
        return Directive.of(decision, self._policy.codecs())

    def _pause(self, seconds: float) -> None:
        """Wait, even if records arrive. At the end of the training the pause is short, but never zero."""
        if self._closing.is_set() and self._hung and self._process is not None:
            return  # it is replaced next
        began = time.monotonic()
        if self._closing.wait(seconds):
            time.sleep(max(0.0, began + FIRST_PAUSE_SECONDS - time.monotonic()))
