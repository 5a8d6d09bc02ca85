"""Where a simulated job reports: to a controller process, or into a journal on disk."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from gravac.fold import JobFold
from gravac.protocol import Decision, End, Event, JobAnswer, JobSpec, Record, WindowAnswer, WindowReport
from gravac.traces import TraceRecord, TraceWriter
from tools.harness.controller import Controller


class Sink(Protocol):
    """Accepts what an agent sends and returns the decision in force."""

    def register(self, spec: JobSpec) -> Decision: ...

    def window(self, report: WindowReport) -> Decision: ...

    def notify(self, job: str, message: Event | End) -> None: ...


class Http:
    """Posts to a running controller."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller

    def register(self, spec: JobSpec) -> Decision:
        return JobAnswer.model_validate_json(self._post("/v1/jobs", spec)).decision

    def window(self, report: WindowReport) -> Decision:
        return WindowAnswer.model_validate_json(self._post(f"/v1/jobs/{report.job}/windows", report)).decision

    def notify(self, job: str, message: Event | End) -> None:
        self._post(f"/v1/jobs/{job}/{'end' if isinstance(message, End) else 'events'}", message)

    def _post(self, path: str, body: Record) -> bytes:
        answer = self.controller.ask("POST", path, body)
        assert answer.status == 200, (answer.status, answer.body)
        return answer.body


class Disk:
    """Decides in this process and stores the records. ``write`` writes the journal as a controller would."""

    def __init__(self) -> None:
        self.records: list[TraceRecord] = []
        self.fold: JobFold | None = None

    def register(self, spec: JobSpec) -> Decision:
        self.fold = JobFold(spec)
        self.records += [spec, self.fold.decision]
        return self.fold.decision

    def window(self, report: WindowReport) -> Decision:
        assert self.fold is not None
        decision = self.fold.decide(report)
        self.records += [report, decision]
        return decision

    def notify(self, job: str, message: Event | End) -> None:
        self.records.append(message)

    def write(self, data_dir: Path, now: Callable[[], float]) -> None:
        """Write the journal; ``now()`` returns the time of each line."""
        assert self.fold is not None
        folder = data_dir / self.fold.spec.job
        folder.mkdir(parents=True)
        with TraceWriter(folder / "journal.jsonl", now) as writer:
            writer.append(*self.records)
