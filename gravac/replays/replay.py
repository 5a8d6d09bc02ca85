"""Replay: decide every window of a trace again and compare with what was recorded.

``replay`` returns the recorded and the replayed decisions side by side, also by another policy. ``check`` verifies a
trace: nothing was altered, and every decision follows from its window.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from gravac.policies.base import Policy
from gravac.protocol import Decision
from gravac.replays.follow import Difference, Follower, ReplayedDecision
from gravac.traces.line import Line, TraceError, altered
from gravac.traces.reader import open_lines, read_trace
from gravac.wording import shortened

MAX_DIFFERENCES = 100
"""Differences that ``check`` lists. One early difference usually causes many."""


@dataclass(frozen=True)
class Replay:
    """A whole trace, decided again.

    Attributes:
        decisions: One for each window and one for each start of the trainer, in order.
        notes: Repairs and oddities of the trace that are no error.
    """

    decisions: tuple[ReplayedDecision, ...]
    notes: tuple[str, ...] = ()

    @property
    def differing(self) -> tuple[ReplayedDecision, ...]:
        """The decisions that differ from the recorded ones in any byte."""
        return tuple(decision for decision in self.decisions if not decision.same)


@dataclass
class Check:
    """Result of ``check``.

    Attributes:
        path: The trace.
        windows: Windows in the trace.
        decisions: Decisions compared.
        differences: What is wrong, at most ``MAX_DIFFERENCES``; the first one names the first window that is wrong.
        notes: Repairs and oddities that are no error.
    """

    path: str
    windows: int = 0
    decisions: int = 0
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether the trace is unaltered and replays to the same decisions, byte for byte."""
        return not self.differences


def replay(trace: str | Path | BinaryIO | Iterable[Line], policy: Policy | None = None) -> Replay:
    """Decide every window of a trace again.

    With another policy, remember that the windows were measured under the recorded decisions: where ``policy`` would
    have sent a CF that the run did not send, it finds its windows unusable and says so. See also ``redecide``.

    Args:
        trace: Path of a trace, an open binary stream, or the lines of one. Of a journal, the path of its active part.
        policy: Decide by this policy; None: by the recorded policy and settings.

    Returns:
        The recorded and the replayed decisions, side by side. Holds all windows in memory.

    Raises:
        TraceError: The trace cannot be read, or was altered.

    Example::

        again = gravac.replay("gravac-runs/my-job/journal.jsonl")
        assert not again.differing
        for decision in again.decisions:
            print(decision.window, decision.replayed.cf_candidate, decision.replayed.reason)
    """
    follower = Follower(policy)
    decisions, notes, number = [], [], 0
    with open_lines(trace) as lines:
        for line in lines:
            number = line.number
            try:
                items = follower.push(line)
            except ValueError as error:
                raise TraceError(str(getattr(lines, "path", "trace")), number, str(error)) from None
            for item in items:
                if isinstance(item, ReplayedDecision):
                    decisions.append(item)
                else:
                    notes.append(item.message)
    return Replay(tuple(decisions), tuple(notes) + tuple(getattr(lines, "notes", ())))


def check(source: str | Path | BinaryIO) -> Check:
    """Verify the digests of a trace and decide every window again. Memory does not grow with the trace.

    Args:
        source: Path of a trace, or an open binary stream. Of a journal, the path of its active part.

    Returns:
        What was found. A damaged trace raises nothing: it is among the differences.

    Raises:
        TraceError: The file cannot be opened.
    """
    follower = Follower()
    trace = read_trace(source, verify=False, recognize=follower.recognize)
    found = Check(trace.path)
    try:
        for line in trace:
            found.windows += line.kind == "window"
            if not line.intact:
                text = f"line {line.number} {altered(line.digest, line.expected)}"
                _add(found, Difference(follower.window, line.number, f"{_where(follower.window)}: {text}"))
            for item in follower.push(line):
                if isinstance(item, Difference):
                    _add(found, item)
                elif item.recorded is not None:
                    found.decisions += 1
                    if not item.same:
                        _add(found, _differing(item, item.recorded))
    except TraceError as error:
        where = _where(follower.window)
        _add(
            found,
            Difference(follower.window, error.line or 0, f"{where}: line {error.line}: {error.message}"),
        )
    except ValueError as error:
        number = trace.last_line
        _add(found, Difference(follower.window, number, f"{_where(follower.window)}: line {number}: {error}"))
    found.notes.extend(trace.notes)
    if follower.missing is not None and follower.missing.window >= 0:
        found.notes.append(f"the decision of the last window, {follower.missing.window}, is not in the trace")
    if follower.fold is None and found.ok:
        found.differences.append(Difference(-1, 0, "the trace is empty"))
    return found


def _add(found: Check, difference: Difference) -> None:
    if len(found.differences) < MAX_DIFFERENCES:
        found.differences.append(difference)
    elif len(found.notes) == 0:
        found.notes.append(f"only the first {MAX_DIFFERENCES} differences are listed")


def _where(window: int) -> str:
    return "before window 0" if window < 0 else f"window {window}"


def _differing(item: ReplayedDecision, recorded: Decision) -> Difference:
    text = f"{_where(item.window)}: line {item.line} records {_compare(recorded, item.replayed)}"
    return Difference(item.window, item.line, text)


def _compare(recorded: Decision, replayed: Decision) -> str:
    had = f"CF {recorded.cf_candidate:g} ({recorded.phase}, {recorded.rule})"
    got = f"CF {replayed.cf_candidate:g} ({replayed.phase}, {replayed.rule})"
    if had != got:
        return f"{had}, replay gives {got}: {replayed.reason}"
    for name in Decision.model_fields:
        was, now = getattr(recorded, name), getattr(replayed, name)
        if was != now:
            return f"{name} {shortened(str(was), 200)}, replay gives {shortened(str(now), 200)}"
    return "the same values in other bytes"
