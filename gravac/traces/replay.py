"""Decide every window of a trace again, and say where the recorded decisions differ.

``check`` proves a trace: nothing was altered, and every decision follows from its window. ``replay`` and
``replay_with`` give the recorded and the replayed decisions side by side. The work is ``gravac.traces.follow``'s.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from gravac.policies.base import Policy
from gravac.protocol import Decision
from gravac.traces.follow import Difference, Follower, Row
from gravac.traces.line import altered
from gravac.traces.trace import Line, TraceError, read

__all__ = ["Check", "Difference", "Replay", "Row", "check", "replay", "replay_with"]

MAX_DIFFERENCES = 100
"""How many differences ``check`` lists; one early difference usually brings many."""


@dataclass(frozen=True)
class Replay:
    """A whole trace decided again: a row a window (and one for each start), and oddities as ``notes``."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def differing(self) -> tuple[Row, ...]:
        """The windows decided differently from the record."""
        return tuple(row for row in self.rows if not row.same)


@dataclass
class Check:
    """What ``check`` found. ``decisions`` counts those compared; ``notes`` are oddities that are no error."""

    path: str
    windows: int = 0
    decisions: int = 0
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """The trace is as it was written and replays to the same decisions, byte for byte."""
        return not self.differences


def replay(lines: Iterable[Line]) -> Replay:
    """Decide every window again with the recorded policy and settings. Raises TraceError for a bad trace."""
    return _rows(lines, Follower())


def replay_with(lines: Iterable[Line], policy: Policy) -> Replay:
    """Decide every window again by another rule; rows hold the recorded decision beside the other one.

    The windows were measured under the recorded decisions. Where the other rule would have sent a CF that the
    run did not send, it finds its windows unusable and says so. Raises TraceError for a bad trace.
    """
    return _rows(lines, Follower(policy))


def check(source: str | Path | BinaryIO) -> Check:
    """Check the digests and decide every window again. Never raises for a bad trace: see ``differences``.

    Raises TraceError only when the file cannot be opened. The first difference names the first window that is
    wrong. Memory does not grow with the trace.
    """
    follower = Follower()
    trace = read(source, verify=False, known=follower.known)
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


def _rows(lines: Iterable[Line], follower: Follower) -> Replay:
    path = lines.path if hasattr(lines, "path") else "trace"
    rows, notes, number = [], [], 0
    for line in lines:
        number = line.number
        try:
            items = follower.push(line)
        except ValueError as error:
            raise TraceError(str(path), number, str(error)) from None
        for item in items:
            if isinstance(item, Row):
                rows.append(item)
            else:
                notes.append(item.message)
    return Replay(tuple(rows), tuple(notes) + tuple(getattr(lines, "notes", ())))


def _add(found: Check, difference: Difference) -> None:
    if len(found.differences) < MAX_DIFFERENCES:
        found.differences.append(difference)
    elif len(found.notes) == 0:
        found.notes.append(f"only the first {MAX_DIFFERENCES} differences are listed")


def _where(window: int) -> str:
    return "before window 0" if window < 0 else f"window {window}"


def _differing(row: Row, recorded: Decision) -> Difference:
    text = f"{_where(row.window)}: line {row.line} records {_compare(recorded, row.replayed)}"
    return Difference(row.window, row.line, text)


def _compare(recorded: Decision, replayed: Decision) -> str:
    had = f"CF {recorded.cf_candidate:g} ({recorded.phase}, {recorded.rule})"
    got = f"CF {replayed.cf_candidate:g} ({replayed.phase}, {replayed.rule})"
    if had != got:
        return f"{had}, replay gives {got}: {replayed.reason}"
    for name in Decision.model_fields:
        was, now = getattr(recorded, name), getattr(replayed, name)
        if was != now:
            return f"{name} {_short(was)}, replay gives {_short(now)}"
    return "the same values in other bytes"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 200 else text[:200] + "…"
