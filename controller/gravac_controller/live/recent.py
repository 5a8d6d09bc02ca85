"""The recent windows, decisions and changes of each job in memory, and the bound on the bytes they take together.

Older ones are read from the journal on request, so any of these may be dropped to make room.
"""

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass

from gravac_controller.settings import SNAPSHOT_DECISIONS, ControllerSettings
from gravac_controller.views.heat import RankHeat
from gravac_controller.views.models import DecisionView, EventView, WindowView

KEPT_EVENTS = 100
WINDOW_BYTES, DECISION_BYTES = 5_900, 1_650
LEVEL_BYTES, RANK_BYTES, GAIN_BYTES, CURVE_BYTES, CANDIDATE_BYTES = 2_700, 2_300, 540, 2_500, 1_200
"""Bytes that each of these takes in memory, measured (tests/controller/live/test_recent.py)."""
SLACK = 0.95
"""Above its bound memory is freed down to this share of it, so that not every window frees some."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change that event streams send: its journal line, and the window, event or end it is about."""

    line: int
    window: WindowView | None = None
    decision: DecisionView | None = None
    event: EventView | None = None
    end: str | None = None
    time: float = 0.0

    @property
    def kind(self) -> str:
        """The name of its message in the stream."""
        return "window" if self.window is not None else "event" if self.event is not None else "end"


class Recent:
    """Recent history of one job. ``bytes``: about what its windows and decisions take."""

    def __init__(self, settings: ControllerSettings) -> None:
        self._most_ranks = settings.limits.history_rank_rows
        self.windows: deque[WindowView] = deque(maxlen=settings.limits.history_windows)
        """All but the latest."""
        self.decisions: deque[DecisionView] = deque(
            maxlen=max(settings.limits.history_windows, SNAPSHOT_DECISIONS) + 1
        )
        self.events: deque[EventView] = deque(maxlen=KEPT_EVENTS)
        self.heat = RankHeat()
        self.bytes = 0
        self.changed = asyncio.Event()
        """The event of the next change. Get it before reading, so that none is missed before waiting."""
        self._changes: deque[Change] = deque(maxlen=settings.limits.history_windows)
        self._complete_from = 0

    def add_window(self, view: WindowView) -> None:
        """Add a window that a newer one replaced as the latest; without the rows of many ranks."""
        if len(self.windows) == self.windows.maxlen:
            self.bytes -= window_bytes(self.windows[0])
        view = self.without_many_ranks(view)
        self.windows.append(view)
        self.bytes += window_bytes(view)

    def add_decision(self, view: DecisionView) -> None:
        """Add a decision."""
        if len(self.decisions) == self.decisions.maxlen:
            self.bytes -= decision_bytes(self.decisions[0])
        self.decisions.append(view)
        self.bytes += decision_bytes(view)

    def add_change(self, change: Change) -> None:
        """Add a change for the event streams."""
        if len(self._changes) == self._changes.maxlen:
            self._complete_from = self._changes[0].line
        older = self._changes[-1] if change.window is not None and self._changes else None
        if older is not None and older.window is not None:
            view = self.without_many_ranks(older.window)
            self._changes[-1] = Change(older.line, window=view, decision=older.decision, time=older.time)
        self._changes.append(change)

    def add_event(self, line: int, view: EventView) -> None:
        """Add an event from this journal line."""
        self.events.append(view)
        self.add_change(Change(line, event=view, time=view.time))

    def notify(self) -> None:
        """Wake all tasks that wait for a change."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def changes_after(self, line: int) -> list[Change] | None:
        """Return the changes after journal line ``line``; None when they are no longer known."""
        if line < self._complete_from:
            return None
        recent: list[Change] = []
        for change in reversed(self._changes):
            if change.line <= line:
                break
            recent.append(change)
        return recent[::-1]

    def drop(self, wanted: int) -> int:
        """Drop the oldest windows and their decisions until ``wanted`` bytes are free, or only the latest are left.

        Returns:
            The bytes freed.
        """
        before = self.bytes
        while before - self.bytes < wanted and (self.windows or len(self.decisions) > 1):
            if not self.windows:
                self.bytes -= decision_bytes(self.decisions.popleft())
                continue
            dropped = self.windows.popleft()
            self.bytes -= window_bytes(dropped)
            number = dropped.report.window
            while len(self.decisions) > 1 and self.decisions[0].decision.window <= number:
                self.bytes -= decision_bytes(self.decisions.popleft())
            while self._changes and _before(self._changes[0], number):
                self._complete_from = self._changes.popleft().line
        return before - self.bytes

    def without_many_ranks(self, view: WindowView) -> WindowView:
        """Return the window, without the rows of its ranks in a job of many."""
        if len(view.report.ranks) <= self._most_ranks:
            return view
        return view.model_copy(update={"report": view.report.model_copy(update={"ranks": ()})})


class Budget:
    """Keeps the bytes of every job's ``Recent`` together at ``most`` or below.

    The job that reported longest ago drops its oldest windows first. The latest window and decision of a job are never
    dropped. It lives on the event loop.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.bytes = 0
        self._jobs: OrderedDict[str, tuple[Recent, int]] = OrderedDict()  # the longest silent first

    def changed(self, job: str, recent: Recent) -> None:
        """Note that a job added or dropped something, and free memory where the sum is too large."""
        _, counted = self._jobs.pop(job, (recent, 0))
        self._jobs[job] = (recent, recent.bytes)
        self.bytes += recent.bytes - counted
        if self.bytes > self.most:
            self._free()

    def _free(self) -> None:
        for job, (recent, _) in self._jobs.items():
            excess = self.bytes - int(SLACK * self.most)
            if excess <= 0:
                return
            self.bytes -= recent.drop(excess)
            self._jobs[job] = (recent, recent.bytes)


def _before(change: Change, window: int) -> bool:
    """Return whether a change is no later than this window."""
    return change.window is None or change.window.report.window <= window


def window_bytes(view: WindowView) -> int:
    """Estimate the bytes that a window takes in memory."""
    report = view.report
    size = WINDOW_BYTES + len(report.levels) * LEVEL_BYTES + len(report.ranks) * RANK_BYTES
    return size + len(report.gains) * GAIN_BYTES + (0 if report.curve is None else CURVE_BYTES)


def decision_bytes(view: DecisionView) -> int:
    """Estimate the bytes that a decision takes in memory."""
    return DECISION_BYTES + len(view.decision.candidates) * CANDIDATE_BYTES
