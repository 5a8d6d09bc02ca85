"""Following a journal line by line: fold it, decide each window again, and pair that with the recorded decision.

The lines of a journal come in this order: the job and the decision it begins with; then, for each window, its report
and its decision. Events, operators' orders and ends may stand anywhere between. A further job line follows a restart of
the trainer. A gap in the windows is announced by a ``gap`` event before the window that follows it.
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
    """One thing wrong with a trace.

    Attributes:
        window: Number of the window; -1: before the first one.
        line: Number of the line, from 1.
        message: What is wrong; names window and line.
    """

    window: int
    line: int
    message: str


@dataclass(slots=True)  # not frozen: see ``Line``
class ReplayedDecision:
    """A decision as recorded, and as replay gives it.

    Attributes:
        line: Number of the line that completed it, from 1.
        report: The window it followed; None for the decision that a job, or a new start of its trainer, begins with.
        recorded: The recorded decision; None when its line is missing.
        replayed: The decision that replay gives.
        body: The recorded decision as JSON, as written; empty where unknown.
    """

    line: int
    report: WindowReport | None
    recorded: Decision | None
    replayed: Decision
    body: bytes = field(default=b"", compare=False, repr=False)

    @property
    def window(self) -> int:
        """Number of the window; -1 for the decision the job began with."""
        return self.replayed.window

    @property
    def same(self) -> bool:
        """Whether both are equal byte for byte as JSON, or nothing was recorded.

        A decision of an older version lacks fields that are new: they count as their defaults, which it is read with.
        """
        if self.recorded is None or self.recorded is self.replayed:
            return True
        replayed = self.replayed.model_dump_json().encode()
        return self.body == replayed or self.recorded.model_dump_json().encode() == replayed


class Follower:
    """Replays a trace whose lines are pushed in order. Holds one window in memory.

    Args:
        policy: Decide by this policy instead of the recorded one.
        adopt: Where replay differs, go on from the recorded decision, as the ranks did. For a controller that takes
            over a journal that another version wrote.

    Attributes:
        fold: State of the job after the last line; None before the job line.
    """

    def __init__(self, policy: Policy | None = None, adopt: bool = False) -> None:
        self.fold: JobFold | None = None
        self._policy = policy
        self._adopt = adopt
        self._pending: ReplayedDecision | None = None
        self._in_force: Decision | None = None
        self._gap_announced = False
        # Set in the head of a part. "alone": the trace begins with this part; "further": other parts came before it.
        self._part: Literal["", "alone", "further"] = ""
        self._head_has_job = False

    @property
    def missing(self) -> Decision | None:
        """The last window's decision if its line is missing, after a crash between the two lines; else None."""
        return None if self._pending is None else self._pending.replayed

    @property
    def missing_head(self) -> tuple[TraceRecord, ...]:
        """Records that a torn head of the last part lacks: the job, the decision in force."""
        if self._part != "further" or self.fold is None:
            return ()
        return (self.fold.decision,) if self._head_has_job else (self.fold.spec_now(), self.fold.decision)

    @property
    def window(self) -> int:
        """Number of the window that the next line belongs to, if that is a report or a decision."""
        if self._pending is not None:
            return self._pending.window
        return -1 if self.fold is None else self.fold.next_window

    def recognize(self, kind: str, body: bytes) -> TraceRecord | None:
        """Return the pending decision if ``body`` is exactly its JSON, else None. For ``read_trace``."""
        if kind != "decision" or self._pending is None:
            return None
        replayed = self._pending.replayed
        return replayed if replayed.model_dump_json().encode() == body else None

    def push(self, line: Line) -> list[ReplayedDecision | Difference]:
        """Fold one line.

        Returns:
            The decisions that became complete, and what is wrong with the trace up to here.

        Raises:
            ValueError: The policy cannot be built, or the trace does not begin with its job.
        """
        record = line.record
        # The most frequent first: pydantic takes long to say that a record is not of a class.
        if isinstance(record, WindowReport):
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

    def _job(self, spec: JobSpec, line: Line) -> list[ReplayedDecision | Difference]:
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
        if self._part != "further":  # a further part only repeats what came before
            self._pending = ReplayedDecision(line.number, None, None, self.fold.decision)
        return found

    def _window(self, report: WindowReport, line: Line) -> list[ReplayedDecision | Difference]:
        found = self._undecided(line)
        self._part = ""  # the head is over, even if a torn tail took its decision
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
        self._pending = ReplayedDecision(line.number, report, None, fold.decide(report, body))
        return found

    def _decision(self, recorded: Decision, line: Line) -> list[ReplayedDecision | Difference]:
        fold, self._in_force = self._folding(), recorded
        part, self._part = self._part, ""
        if part == "further" and (recorded == fold.decision or self._policy is not None):
            return []
        if self._pending is None:
            text = f"window {recorded.window}: line {line.number} is a decision without its window"
            return [Difference(recorded.window, line.number, text)]
        found = ReplayedDecision(
            line.number, self._pending.report, recorded, self._pending.replayed, line.body
        )
        self._pending = None
        if self._adopt and not found.same:
            fold.adopt(recorded)
        return [found]

    def _undecided(self, line: Line) -> list[ReplayedDecision | Difference]:
        pending, self._pending = self._pending, None
        if pending is None or pending.report is None:
            return []
        text = f"window {pending.window} has no decision before line {line.number}"
        return [pending, Difference(pending.window, line.number, text)]

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
    """Return the report as another policy would have seen it: steps of the decision in force carry its epoch.

    Steps of any other decision belong to neither policy and get an epoch that no decision has.
    """

    def level(sums: LevelSums) -> LevelSums:
        return sums.model_copy(update={"epoch": epoch if sums.epoch == recorded_epoch else 2**53})

    levels = tuple(level(sums) for sums in report.levels)
    return report.model_copy(update={"levels": levels, "epoch": epoch})
