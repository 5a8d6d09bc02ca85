"""Where rank 0 takes its window reports, and gets decisions from. Other ranks have none: they hear it in the tick."""

import logging
import time
from pathlib import Path
from typing import Protocol, TypeVar

from gravac.fold import JobFold
from gravac.policies.base import Policy
from gravac.protocol import End, Event, JobSpec, WindowReport
from gravac.signals import figures
from gravac.traces import Line, TraceWriter
from gravac.traces.follow import Follower
from gravac_agent.errors import SetupError
from gravac_agent.exchange.plan import Directive
from gravac_agent.reporting.joblock import JobLock

log = logging.getLogger("gravac.agent")


class Desk(Protocol):
    """Rank 0's decision maker. Nothing here may wait for a network or raise into training."""

    directive: Directive
    """What the ranks should do now; read once a step."""
    url: str | None
    """Address of the live page, once known."""
    trace_path: Path | None
    policy_state: str | None

    def put(self, report: WindowReport) -> None:
        """Hand in a window, in order, once."""
        ...

    def note(self, event: Event) -> None:
        """Hand in something that happened."""
        ...

    def resume(self, policy_state: str, window: int) -> None:
        """Go on from a checkpoint: the policy's state then, and the number of the next window.

        Raises SetupError, with nothing changed, when the state is not one of the job's policy.
        """
        ...

    def wait_ready(self, seconds: float) -> bool:
        """Wait until decisions can be had; False when the time is up."""
        ...

    def close(self, end: End) -> None:
        """The job is over: hand in what is left, within a bounded time."""
        ...


Numbered = TypeVar("Numbered", WindowReport, Event, WindowReport | Event | End)


def renumbered(record: Numbered, offset: int) -> Numbered:
    """Return the record in the job's own count of windows: a trainer started again counts from 0, its job goes on.

    An end stays as it is: who journals it counts the whole job.
    """
    if isinstance(record, End) or not offset or record.window is None:
        return record
    return record.model_copy(update={"window": record.window + offset})


class LocalDesk:
    """Decides in process, at once and so at a fixed step: for tests, notebooks, and policies that are not registered.

    The journal is written to ``data_dir`` all the same, and one that is there already is taken up; a disk that fails
    costs the journal, not the training.
    """

    def __init__(
        self, spec: JobSpec, data_dir: Path, policy: Policy | None = None, lock: JobLock | None = None
    ) -> None:
        self._lock = lock
        self._fold = JobFold(spec, policy)
        self._offset = self._steps = 0  # _steps: of all windows in the journal
        self.url: str | None = None
        self.trace_path: Path | None = data_dir / spec.job / "journal.jsonl"
        self._writer: TraceWriter | None = None
        try:
            self._open(self.trace_path, spec)
        except Exception as error:
            self._lose(error)
        self.directive = Directive.of(self._fold.decision)
        self.policy_state: str | None = self._fold.policy_state

    def _open(self, path: Path, spec: JobSpec) -> None:
        follower = Follower(adopt=True)

        def visit(line: Line) -> None:
            follower.push(line)
            if isinstance(line.record, WindowReport):
                self._steps += figures.steps(line.record)

        self._writer = TraceWriter(path, now=time.time, visit=visit)
        # The run before may have died between a window and its decision.
        self._write(*(follower.missing_head if follower.missing is None else (follower.missing,)))
        if follower.fold is not None:  # the same job name again: its windows and epochs go on
            follower.fold.resume(spec)
            self._fold = follower.fold
            self._offset = self._fold.next_window - spec.first_window
        self._write(spec, self._fold.decision)

    def put(self, report: WindowReport) -> None:
        report = renumbered(report, self._offset)
        decision = self._fold.decide(report)
        self._steps += figures.steps(report)
        self.policy_state = self._fold.policy_state
        self.directive = Directive.of(decision)
        self._write(report, decision)

    def note(self, event: Event) -> None:
        self._write(renumbered(event, self._offset))

    def resume(self, policy_state: str, window: int) -> None:
        spec = self._fold.spec.model_copy(update={"policy_state": policy_state, "first_window": window})
        try:
            self._fold.resume(spec)
        except ValueError as error:
            raise SetupError(
                f"the checkpoint does not fit policy={spec.policy.name!r}: {error}. Resume with the policy that it was "
                "saved with, or start afresh without loading it"
            ) from None
        self._offset = self._fold.next_window - window
        self.policy_state = self._fold.policy_state
        self.directive = Directive.of(self._fold.decision)
        self._write(spec, self._fold.decision)

    def wait_ready(self, seconds: float) -> bool:
        return True

    def close(self, end: End) -> None:
        self._write(end.with_totals(self._fold.next_window, self._steps))
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._lock is not None:
            self._lock.release()

    def _write(self, *records: JobSpec | WindowReport | Event | End | object) -> None:
        if self._writer is None:
            return
        try:
            self._writer.append(*records)  # type: ignore[arg-type]
        except Exception as error:
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        log.warning("no journal from here on: %s: %s", self.trace_path, error)
        self._writer, self.trace_path = None, None
