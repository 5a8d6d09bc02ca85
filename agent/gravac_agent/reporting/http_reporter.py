"""Reports to a controller over HTTP, from a background thread, so that no step waits for the network (promise P1)."""

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from gravac.protocol import Decision, End, Event, JobSpec, WindowReport
from gravac.traces.parts import ACTIVE
from gravac_agent.exchange.plan import Directive
from gravac_agent.reporting import controller_api, controller_link
from gravac_agent.reporting.connection import ControllerConnection, ErrorAnswer, NoAnswer
from gravac_agent.reporting.controller_link import (
    CLOSING_START_SECONDS,
    Contact,
    ControllerLink,
)
from gravac_agent.reporting.decision_in_force import DecisionInForce
from gravac_agent.reporting.job_lock import HeldJob, JobLock
from gravac_agent.reporting.launcher import ControllerProcess
from gravac_agent.reporting.numbering import Numbering, renumbered
from gravac_agent.reporting.outbox import Closing, Outbox, OutboxRecord, RetryPauses, label
from gravac_agent.reporting.reporter import unfit, went_on, without_order
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
RECOVERED = "The controller is back: its decision holds again."


class HttpReporter:
    """Delivers records in order, each until it is acknowledged, and restarts the agent's own controller when it died.

    Anything but a valid answer counts as none: the record stays queued and is sent again after a growing pause. After
    ``FALLBACK_WINDOWS`` windows without an answer, and the seconds that a controller may take to answer or start, the
    directive is dense (promise P5). As soon as the controller has answered all windows, the directive is that of its
    decision again.

    Args:
        spec: The job.
        settings: The agent's settings.
        process: The agent's own controller; None: the settings name one that runs already.
        lock: Held until ``close``.
        asked: The name that the job had been given; None: as in ``spec``.
        sinks: Sinks that are loaded.
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
        self._held, self._numbering = HeldJob(spec, lock, asked), Numbering(spec.first_window)
        self._in_force, self._outbox = DecisionInForce(spec), Outbox()
        self._closing, self._pauses = Closing(), RetryPauses()
        self._link = ControllerLink(settings, process, self._closing)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._ready = threading.Event()
        self._wake.set()  # register at once
        self._feeds = Feeds(sinks, spec)
        self._thread = threading.Thread(target=self._run, name="gravac-reporter", daemon=True)
        self._thread.start()

    @property
    def directive(self) -> Directive:
        return self._in_force.directive

    @property
    def url(self) -> str | None:
        return self._link.url

    @property
    def policy_state(self) -> str | None:
        return self._in_force.policy_state

    @property
    def job(self) -> str:
        return self._held.name

    @property
    def trace_path(self) -> Path | None:
        data_dir = self._link.data_dir
        return None if data_dir is None else data_dir.absolute() / self.job / ACTIVE

    @property
    def goes_on(self) -> bool:
        return self._numbering.offset > 0

    # -- called by the training -------------------------------------------------------------------------------

    def report_window(self, report: WindowReport) -> None:
        self._feeds.window(report)
        with self._lock:
            dropped = self._outbox.dropped_windows
            if self._outbox.windows == 0:
                self._link.waits()
            self._outbox.add(report)
            self._numbering.report(report.window)
            unanswered = self._outbox.windows - 1  # the newest cannot have been answered yet
            fall_back = not self._in_force.dense and self._link.silent(unanswered)
            if fall_back:
                self._in_force.fall_back()
                message = f"No answer from the controller for {unanswered} windows: all ranks go dense."
                self._outbox.add(Event(kind="fallback", window=report.window, message=message))
            dropping = self._outbox.dropped_windows > dropped == 0
        if fall_back:
            log.warning("job %s: %s", self.job, message)
        if dropping:
            log.error(
                "job %s: no answer from the controller for %d windows: from now on the oldest are dropped",
                self.job,
                self._outbox.windows,
            )
        self._wake.set()

    def report_event(self, event: Event) -> None:
        with self._lock:
            self._outbox.add(event)
        self._wake.set()

    def resume(self, policy_state: str | None, window: int) -> None:
        if policy_state is None:  # saved before the first answer of a controller
            with self._lock:
                self._held.change(first_window=window)
                self._begin_again(window)
            self._wake.set()
            return
        try:
            state = without_order(self.job, self._in_force.state_of(policy_state))
        except (NoAnswer, ValueError) as error:
            raise unfit(self._held.spec.policy.name, error) from None
        try:
            directive = self._in_force.directive_of(state.decision)
        except ValueError as error:
            log.warning("job %s: the checkpoint has %s: the policy begins again", self.job, error)
            self.resume(None, window)
            return
        held = self._held.resumed(state.model_dump_json(), window, self._link.data_dir)
        with self._lock:
            if held.name != self.job:
                self._held.release()
            self._held = held
            self._in_force.resume(state, directive)
            self._begin_again(window)
        self._wake.set()

    def _begin_again(self, window: int) -> None:
        """Register the job again, from a checkpoint's window. The caller locks."""
        self._link.contact = Contact.NONE
        self._numbering.restart(window)

    def wait_ready(self, seconds: float) -> bool:
        return self._ready.wait(seconds)

    def close(self, end: End) -> None:
        """Deliver what is left, with a new controller if the agent's own died, and end that. Logs what is lost."""
        with self._lock:
            self._outbox.add(end)
        process, seconds = self._link.process, 2 * controller_link.REQUEST_SECONDS
        if process is not None:
            seconds += CLOSING_START_SECONDS
        self._closing.begin(seconds)
        self._wake.set()
        self._thread.join(seconds + controller_link.REQUEST_SECONDS)
        with self._lock:
            losses = self._outbox.losses()
        if losses:
            log.error("the journal of job %s lacks %s", self.job, losses)
        if process is not None:
            process.close()
        self._held.release()
        self._feeds.close()

    # -- the reporter thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake.wait(IDLE_SECONDS)
            self._wake.clear()
            self._link.notice_death()
            if self._link.registered and not len(self._outbox):
                if self._closing.began:
                    return
                continue
            lasting = False
            try:
                self._pauses.succeeded(self._deliver())
            except NoAnswer as error:
                reason, starting = self._link.outage(error)
                pause = self._pauses.failed(reason, error.retry_after, starting, self._closing.began)
                lasting = error.lasting
            except Exception as error:  # a bug of ours must neither end the thread nor lose a record
                log.exception("reporting to the controller failed")
                reason = f"no valid answer from the controller: {error!r}"
                pause = self._pauses.failed(reason, ending=self._closing.began)
            else:
                if self._outbox or self._closing.began:
                    self._wake.set()
                continue
            if self._closing.began and (lasting or self._closing.seconds_left() < 0.0):
                return
            if not self._link.replaces_next:
                self._closing.pause(pause)
            self._wake.set()

    def _deliver(self) -> bool:
        """Send all records on one connection. Return False when there was only a registration to send."""
        if self._held.left is not None and self._link.process is not None:
            self._leave(self._held.left)  # its controller serves no other
        connection, delivered = self._link.open(), False
        try:
            with connection:
                if not self._link.registered:
                    self._register(connection)
                while (
                    self._link.registered
                    and not connection.closed
                    and (record := self._next_record()) is not None
                ):
                    self._send(connection, record)
                    delivered = True
        except ErrorAnswer as error:
            if error.reason == "ended" and isinstance(end := self._next_record(), End):
                self._acknowledged(end)  # it was accepted, and the answer was lost
                return True
            if error.reason == "unreadable" and self._link.data_dir is not None:
                self._take_another_name(self._link.data_dir, str(error))
                raise NoAnswer("it is started again, for that name") from None
            self._link.failed(error)
            raise
        except NoAnswer as error:
            self._link.failed(error)
            raise
        return delivered

    def _take_another_name(self, data_dir: Path, why: str) -> None:
        """Go on as a job of its own, because the journal of this one cannot be read."""
        with self._lock:
            self._held.rename(data_dir, why)
            self._link.contact = Contact.NONE
        self._link.stop_for(self.job)

    def _leave(self, name: str) -> None:
        """End the job of its own that the run had until a checkpoint was loaded."""
        log.warning("job %s: it goes on as job %s, from a checkpoint of that", name, self.job)
        self._held.left = None
        try:
            if self.url is not None:
                with self._link.connection(self.url) as connection:
                    controller_api.send_record(connection, name, went_on(self._held.spec))
        except NoAnswer as error:
            log.debug("job %s: its end was not reported: %s", name, error)
        self._link.stop_for(self.job)

    def _next_record(self) -> OutboxRecord | None:
        with self._lock:
            return self._outbox.next()

    def _register(self, connection: ControllerConnection) -> None:
        with self._lock:
            held, base = self._held, self._held.spec
            queued, state = self._outbox.first_window(), self.policy_state
            window = None if queued is None else queued + self._numbering.offset
        spec = controller_api.resumed(base, state, window)
        try:
            answer = controller_api.register(connection, spec)
        except ErrorAnswer as refused:
            refused.lasting = refused.lasts(self._closing.seconds_left())
            raise
        with self._lock:
            if self._held.spec is not base:  # a checkpoint was loaded meanwhile: register again
                self._held.left = None if answer.job == self.job else answer.job
                return
            if answer.job != base.job:
                held.change(job=answer.job)
            decided = self._numbering.most_decided(answer.next_window, base)
            self._adopt(answer.decision, answer.policy_state, decided)
            self._numbering.register(answer.next_window, spec, queued)
            self._link.contact = Contact.REGISTERED
        if held.left is not None and held.left != answer.job:
            self._leave(held.left)
        held.left = None
        if answer.note:
            log.warning("job %s: %s", answer.job, answer.note)
        self._feeds.page(self.url)
        self._ready.set()
        log.debug("controller at %s decides for job %s", self.url, spec.job)

    def _send(self, connection: ControllerConnection, record: OutboxRecord) -> None:
        try:
            numbered = renumbered(record, self.job, self._numbering.offset)
            answer = controller_api.send_record(connection, self.job, numbered)
            if answer is not None and isinstance(numbered, WindowReport):
                with self._lock:
                    self._adopt(answer.decision, answer.policy_state, decided=1)
                    self._numbering.decide(numbered.window)
        except ErrorAnswer as refused:
            if refused.status in (409, 413, 422):
                most = CLOSING_REFUSALS if self._closing.began else MAX_REFUSALS
                if self._outbox.refuse() >= most:
                    log.error(
                        "job %s: %s is dropped because the controller keeps refusing it: %s",
                        self.job,
                        label(record),
                        refused,
                    )
                    self._acknowledged(record, dropped=True)
            raise
        self._acknowledged(record)

    def _acknowledged(self, record: OutboxRecord, dropped: bool = False) -> None:
        """Remove a record from the queue, and end the fallback when all windows are answered."""
        back = False
        with self._lock:
            if dropped:
                self._outbox.drop(record)
            else:
                self._outbox.remove(record)
                self._link.waits()
            if self._in_force.dense and self._outbox.windows == 0 and not dropped:
                self._in_force.recover()
                back = True
                window = record.window if isinstance(record, WindowReport) else None
                self._outbox.add(Event(kind="recovered", window=window, message=RECOVERED))
        if back:
            log.warning("job %s: %s", self.job, RECOVERED)

    def _adopt(self, decision: Decision, policy_state: str, decided: int | None) -> None:
        """Check a decision and put it in force. The caller locks. Raises NoAnswer for one that is not valid."""
        self._in_force.adopt(decision, policy_state, decided)
        self._feeds.decision(decision)
