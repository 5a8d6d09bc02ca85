"""Follow a journal line by line: fold it, decide each window again, and compare with what was recorded.

The order of lines in a journal: the job and the decision it begins with; then per window its report and its
decision, side by side; anywhere between, events, operators' orders and ends; a job line again when the trainer
started anew.
A gap in the windows is announced by a ``gap`` event before the window that follows it.
"""

from dataclasses import dataclass, field
from typing import Literal

from gravac.fold import JobFold
from gravac.policies.base import Policy
from gravac.protocol import Decision, Event, JobSpec, LevelSums, Override, WindowReport
from gravac.traces.line import Line, TraceRecord
from gravac.traces.parts import Part


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing wrong with a trace; ``message`` names window and line. ``window`` -1: before the first one."""

    window: int
    line: int
    message: str


@dataclass(slots=True)  # not frozen: see ``Line``
class Row:
    """One window: what was recorded (null when its decision line is missing) and what replay decides.

    ``report`` null: the decision the job, or a new start of its trainer, began with.
    """

    line: int
    report: WindowReport | None
    recorded: Decision | None
    replayed: Decision
    body: bytes = field(default=b"", compare=False, repr=False)
    """The recorded decision as it was written, where that is known."""

    @property
    def window(self) -> int:
        """Number of the window, -1 for the decision the job began with."""
        return self.replayed.window

    @property
    def same(self) -> bool:
        """Equal byte for byte as JSON, or nothing was recorded."""
        if self.recorded is None or self.recorded is self.replayed:
            return True
        body = self.body or self.recorded.model_dump_json().encode()
        return body == self.replayed.model_dump_json().encode()


class Follower:
    """Push a trace's lines in order; each push gives the rows that became complete and what is wrong.

    ``policy``: decide by this rule in place of the recorded one; its rows then differ where the rules do.
    ``adopt``: where replay differs, go on from the recorded decision, as the ranks did (a controller that takes
    up a journal another version wrote). Memory is bounded: one window. Raises ValueError when the first job line
    names a policy that cannot be built.
    """

    def __init__(self, policy: Policy | None = None, adopt: bool = False) -> None:
        self.fold: JobFold | None = None
        self._policy = policy
        self._adopt = adopt
        self._pending: Row | None = None
        self._in_force: Decision | None = None
        self._gap_announced = False
        self._part: Literal["", "alone", "further"] = (
            ""  # in the head of a part that nothing, or one, came before
        )
        self._head_has_job = False

    @property
    def missing(self) -> Decision | None:
        """The decision of the last window when its line is not in the journal (a crash between the two)."""
        return None if self._pending is None else self._pending.replayed

    @property
    def missing_head(self) -> tuple[TraceRecord, ...]:
        """What the head of the last part lacks, where its tail was torn: the job, the decision in force."""
        if self._part != "further" or self.fold is None:
            return ()
        return (self.fold.decision,) if self._head_has_job else (self.fold.spec_now(), self.fold.decision)

    @property
    def window(self) -> int:
        """The window the next line belongs to, if it is a window's report or decision."""
        if self._pending is not None:
            return self._pending.window
        return -1 if self.fold is None else self.fold.next_window

    def known(self, kind: str, body: bytes) -> TraceRecord | None:
        """For ``trace.read``: a decision recorded in the very bytes that replay gives need not be parsed."""
        if kind != "decision" or self._pending is None:
            return None
        replayed = self._pending.replayed
        return replayed if replayed.model_dump_json().encode() == body else None

    def push(self, line: Line) -> list[Row | Difference]:
        """Fold one line."""
        record = line.record
        if isinstance(
            record, WindowReport
        ):  # the most first: to ask a record what it is not takes pydantic a while
            return self._window(record, line)
        if isinstance(record, Decision):
            return self._decision(record, line)
        if isinstance(record, JobSpec):
            return self._job(record, line)
        if isinstance(record, Part):
            self._part, self._head_has_job = "alone" if self.fold is None else "further", False
        elif isinstance(record, Override):
            self._folding().order(record)
        elif isinstance(record, Event) and record.kind == "gap":
            self._gap_announced = True
        return []

    def _job(self, spec: JobSpec, line: Line) -> list[Row | Difference]:
        found = self._undecided(line)
        self._head_has_job = True
        if self._policy is not None:
            spec = spec.model_copy(update={"policy": self._policy.spec(), "policy_state": None})
        if self.fold is None:
            self.fold = JobFold(spec, self._policy)
            if self._part == "alone":
                self.fold.forget()
        else:
            try:
                self.fold.resume(spec)
            except ValueError as error:
                found.append(Difference(self.fold.next_window, line.number, f"line {line.number}: {error}"))
                return found
        if self._part != "further":  # which repeats what is known, for those who read it alone
            self._pending = Row(line.number, None, None, self.fold.decision)
        return found

    def _window(self, report: WindowReport, line: Line) -> list[Row | Difference]:
        found = self._undecided(line)
        self._part = ""  # its head is over, even where a torn tail took the decision out of it
        fold = self._folding()
        judgement = fold.judge(report)
        announced, self._gap_announced = self._gap_announced, False
        if judgement == "gap" and not announced:
            first, last = fold.next_window, report.window - 1
            text = f"window {first} is" if first == last else f"windows {first} to {last} are"
            found.append(Difference(first, line.number, f"{text} missing before line {line.number}"))
        elif judgement not in ("new", "gap"):
            text = f"window {report.window}: line {line.number} {_FAULT[judgement]}"
            found.append(Difference(report.window, line.number, text))
            return found
        body = line.body
        if self._policy is not None and self._in_force is not None:
            report, body = _relabel(report, self._in_force.epoch, fold.decision.epoch), b""
        self._pending = Row(line.number, report, None, fold.decide(report, body))
        return found

    def _decision(self, recorded: Decision, line: Line) -> list[Row | Difference]:
        fold, self._in_force = self._folding(), recorded
        part, self._part = self._part, ""
        if part == "further" and (recorded == fold.decision or self._policy is not None):
            return []
        if self._pending is None:
            text = f"window {recorded.window}: line {line.number} is a decision without its window"
            return [Difference(recorded.window, line.number, text)]
        row = Row(line.number, self._pending.report, recorded, self._pending.replayed, line.body)
        self._pending = None
        if self._adopt and not row.same:
            fold.adopt(recorded)
        return [row]

    def _undecided(self, line: Line) -> list[Row | Difference]:
        row, self._pending = self._pending, None
        if row is None or row.report is None:
            return []
        text = f"window {row.window} has no decision before line {line.number}"
        return [row, Difference(row.window, line.number, text)]

    def _folding(self) -> JobFold:
        if self.fold is None:
            raise ValueError("a trace begins with its job")
        return self.fold


_FAULT = {
    "duplicate": "repeats it",
    "conflict": "is a second report of it, or comes after a later window",
    "wrong_job": "is of another job",
    "wrong_incarnation": "is from a start of the trainer that is not registered",
}


def _relabel(report: WindowReport, recorded_epoch: int, epoch: int) -> WindowReport:
    """The report as the other policy would have seen it: steps of the decision in force carry its epoch.

    Steps of any other decision get an epoch nobody has, as they belong to neither.
    """

    def level(sums: LevelSums) -> LevelSums:
        return sums.model_copy(update={"epoch": epoch if sums.epoch == recorded_epoch else 2**53})

    levels = tuple(level(sums) for sums in report.levels)
    return report.model_copy(update={"levels": levels, "epoch": epoch})
