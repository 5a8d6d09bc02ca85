"""Rank 0's reporter: takes window reports and returns decisions. The other ranks get decisions from the tick."""

import contextlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from gravac.fold import JobFold
from gravac.policies import steering
from gravac.policies.base import Policy, PolicyState
from gravac.protocol import Decision, End, Event, JobSpec, WindowReport
from gravac.replays.follow import Follower
from gravac.signals import figures
from gravac.traces import Line, TraceError, TraceWriter
from gravac.traces.parts import ACTIVE
from gravac_agent.errors import SetupError
from gravac_agent.exchange.plan import Directive
from gravac_agent.reporting.job_lock import JobLock, is_other
from gravac_agent.reporting.numbering import renumbered
from gravac_agent.sinks import Sink
from gravac_agent.sinks.feed import Feeds

log = logging.getLogger("gravac.agent")


class Reporter(Protocol):
    """Reports windows and events of a job, and holds the decision in force.

    No method may raise into the training, and none but ``wait_ready`` and ``close`` may wait for a network.
    """

    @property
    def directive(self) -> Directive:
        """What the ranks should do now. The exchange thread reads it once a step."""
        ...

    @property
    def url(self) -> str | None:
        """Address of the live page, once known."""
        ...

    @property
    def policy_state(self) -> str | None:
        """State of the policy as JSON, for checkpoints."""
        ...

    @property
    def job(self) -> str:
        """The job's name; another than was asked for where that one is another training."""
        ...

    @property
    def trace_path(self) -> Path | None:
        """The job's journal, where it is on this machine."""
        ...

    @property
    def goes_on(self) -> bool:
        """Whether an earlier start has reported windows of the job; False while that is not known."""
        ...

    def report_window(self, report: WindowReport) -> None:
        """Report a window. Windows come in order, each once."""
        ...

    def report_event(self, event: Event) -> None:
        """Report an event."""
        ...

    def resume(self, policy_state: str | None, window: int) -> None:
        """Continue from a checkpoint.

        Args:
            policy_state: The policy's state when it was saved, as JSON; None where no controller had answered yet.
            window: Number of the next window.

        Raises:
            SetupError: The state is not one of the job's policy; nothing changed.
        """
        ...

    def wait_ready(self, seconds: float) -> bool:
        """Wait until decisions can be made. Return False after ``seconds``."""
        ...

    def close(self, end: End) -> None:
        """End the job: deliver what is left, within a bounded time."""
        ...


def without_order(job: str, state: PolicyState) -> PolicyState:
    """Return a state from a checkpoint without the operator's order in it, and log that."""
    released = steering.ended(state)
    if released is not state:
        log.warning("job %s: %s", job, released.decision.reason)
    return released


def went_on(spec: JobSpec) -> End:
    """Return the end of a name that a run had until it loaded a checkpoint."""
    message = f"loaded a checkpoint, and goes on as job {spec.job}"
    return End(incarnation=spec.incarnation, windows=0, steps=0, message=message)


def unfit(policy: str, why: object) -> SetupError:
    """Return the error for a checkpoint of another policy."""
    return SetupError(
        f"the checkpoint does not fit policy={policy!r}: {why}. Resume with the policy that it was saved with, or "
        "start without loading it"
    )


class LocalReporter:
    """Decides in process, at once and so at a fixed step: for tests, notebooks, and policies that are not registered.

    It writes a journal too, and continues one that exists. When the disk fails, the journal ends and the training goes
    on.

    Args:
        spec: The job.
        data_dir: Folder of the journals.
        policy: The decision rule; None: the registered one of ``spec``.
        lock: Held until ``close``.
        asked: The name that the job had been given; None: as in ``spec``.
        sinks: Sinks that are loaded.
    """

    def __init__(
        self,
        spec: JobSpec,
        data_dir: Path,
        policy: Policy | None = None,
        lock: JobLock | None = None,
        asked: str | None = None,
        sinks: Sequence[Sink] = (),
    ) -> None:
        self._lock, self._data_dir, self._policy = lock, data_dir, policy
        self._asked = asked or spec.job
        self.url: str | None = None
        self._begin(spec)
        self.directive = self._directive_of(self._fold.decision)
        self.policy_state: str | None = self._fold.policy_state
        self._feeds = Feeds(sinks, self._fold.spec)
        self._feeds.decision(self._fold.decision)

    @property
    def job(self) -> str:
        return self._fold.spec.job

    @property
    def goes_on(self) -> bool:
        return self._offset > 0

    def _begin(self, spec: JobSpec) -> None:
        self._fold = JobFold(spec, self._policy)
        self._offset = self._steps = 0  # _steps: of all windows in the journal
        self.trace_path: Path | None = self._data_dir / spec.job / ACTIVE
        self._writer: TraceWriter | None = None
        try:
            self._open(self.trace_path, spec)
        except TraceError as error:
            if error.line is None:  # another name would not help
                self._stop_journal(error)
                return
            before = self._lock
            spec, self._lock = JobLock.named(self._data_dir, spec, str(error))
            if before is not None:
                before.release()
            self._begin(spec)
        except Exception as error:
            self._stop_journal(error)

    def _open(self, path: Path, spec: JobSpec) -> None:
        follower = Follower(adopt=True)

        def visit(line: Line) -> None:
            follower.push(line)
            if isinstance(line.record, WindowReport):
                self._steps += figures.steps(line.record)

        self._writer = TraceWriter(path, now=time.time, visit=visit)
        # The previous run may have died between a window and its decision.
        self._write(*(follower.missing_head if follower.missing is None else (follower.missing,)))
        if follower.fold is not None:  # the job was run before: its windows and epochs continue
            if over := follower.fold.resume(spec):
                log.warning("job %s: %s", spec.job, over)
            self._fold = follower.fold
            self._offset = self._fold.next_window - spec.first_window
        self._write(spec, self._fold.decision)

    def report_window(self, report: WindowReport) -> None:
        report = renumbered(report, self.job, self._offset)
        decision = self._fold.decide(report)
        self._steps += figures.steps(report)
        self.policy_state = self._fold.policy_state
        self._write(report, decision)
        self._feeds.window(report)
        self._feeds.decision(decision)
        try:
            self.directive = self._directive_of(decision)
        except ValueError as error:
            log.error("the policy made %s: the ranks go on as before", error)

    def report_event(self, event: Event) -> None:
        self._write(renumbered(event, self.job, self._offset))

    def resume(self, policy_state: str | None, window: int) -> None:
        spec = self._fold.spec
        try:
            if policy_state is not None:
                state = without_order(spec.job, self._fold.read_state(policy_state))
                policy_state = state.model_dump_json()
            changes = {"policy_state": policy_state, "first_window": window}
            if (
                policy_state is not None
                and self.job != self._asked
                and not is_other(self._data_dir, self._asked, spec.model_copy(update=changes))
            ):
                spec = self._take_asked_name()
            spec = spec.model_copy(update=changes)
            if over := self._fold.resume(spec):
                log.warning("job %s: %s", self.job, over)
            directive = self._directive_of(self._fold.decision)
        except ValueError as error:
            raise unfit(spec.policy.name, error) from None
        self._offset = self._fold.next_window - window
        self.policy_state = self._fold.policy_state
        self.directive = directive
        self._write(spec, self._fold.decision)

    def _take_asked_name(self) -> JobSpec:
        """Go on under the name that was asked for: a checkpoint continues its job. Raises SetupError where it runs."""
        name, spec = self.job, self._fold.spec.model_copy(update={"job": self._asked})
        lock = JobLock.acquire(self._data_dir, self._asked)
        self._end_journal(went_on(spec))
        self._lock = lock
        self._begin(spec)
        log.warning("job %s: it goes on as job %s, from a checkpoint of that", name, self._asked)
        return spec

    def wait_ready(self, seconds: float) -> bool:
        return True

    def close(self, end: End) -> None:
        self._end_journal(end)
        self._feeds.close()

    def _end_journal(self, end: End) -> None:
        self._write(end.with_totals(self._fold.next_window, self._steps))
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._lock is not None:
            self._lock.release()

    def _directive_of(self, decision: Decision) -> Directive:
        """Return the directive of a decision. Raises ValueError for one with a codec that the policy does not list."""
        return Directive.of(decision, self._fold.policy.codecs())

    def _write(self, *records: JobSpec | WindowReport | Event | End | object) -> None:
        if self._writer is None:
            return
        try:
            self._writer.append(*records)  # type: ignore[arg-type]
        except Exception as error:
            self._stop_journal(error)

    def _stop_journal(self, error: Exception) -> None:
        log.warning("the journal %s ends here, because writing it failed: %s", self.trace_path, error)
        writer, self._writer, self.trace_path = self._writer, None, None
        if writer is not None:
            with contextlib.suppress(OSError):
                writer.close()
