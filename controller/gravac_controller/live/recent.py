"""The last windows, decisions and moments of one job in memory, and about how many bytes they take.

Older ones are read from the journal when asked for, so any of them may be forgotten to make room (``budget``).
"""

from collections import deque
from dataclasses import dataclass

from gravac_controller.settings import SNAPSHOT_DECISIONS, ControllerSettings
from gravac_controller.views.models import DecisionView, EventView, WindowView

WINDOW_BYTES, DECISION_BYTES = 5_900, 1_650
LEVEL_BYTES, RANK_BYTES, GAIN_BYTES, CURVE_BYTES, CANDIDATE_BYTES = 2_700, 2_300, 540, 2_500, 1_200
"""What each of these takes in memory, measured (tests/controller/test_memory.py)."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing an event stream tells: the journal line it is known by, and what happened."""

    line: int
    window: WindowView | None = None
    decision: DecisionView | None = None
    event: EventView | None = None
    end: str | None = None
    time: float = 0.0

    @property
    def kind(self) -> str:
        """The name of its message."""
        return "window" if self.window is not None else "event" if self.event is not None else "end"


class Recent:
    """What is kept of one job. ``bytes``: about what its windows and decisions take."""

    def __init__(self, settings: ControllerSettings) -> None:
        self._most_ranks = settings.history_rank_rows
        self.windows: deque[WindowView] = deque(maxlen=settings.history_windows)
        """All but the newest."""
        self.decisions: deque[DecisionView] = deque(
            maxlen=max(settings.history_windows, SNAPSHOT_DECISIONS) + 1
        )
        self.bytes = 0
        self._moments: deque[Moment] = deque(maxlen=settings.history_windows)
        self._complete_from = 0

    def add_window(self, view: WindowView) -> None:
        """Keep a window that a newer one follows; without the rows of many ranks."""
        if len(self.windows) == self.windows.maxlen:
            self.bytes -= window_bytes(self.windows[0])
        kept = self._without_many_ranks(view)
        self.windows.append(kept)
        self.bytes += window_bytes(kept)

    def add_decision(self, view: DecisionView) -> None:
        """Keep a decision."""
        if len(self.decisions) == self.decisions.maxlen:
            self.bytes -= decision_bytes(self.decisions[0])
        self.decisions.append(view)
        self.bytes += decision_bytes(view)

    def remember(self, moment: Moment) -> None:
        """Keep what happened for the event streams."""
        if len(self._moments) == self._moments.maxlen:
            self._complete_from = self._moments[0].line
        older = self._moments[-1] if moment.window is not None and self._moments else None
        if older is not None and older.window is not None:
            view = self._without_many_ranks(older.window)
            self._moments[-1] = Moment(older.line, window=view, decision=older.decision, time=older.time)
        self._moments.append(moment)

    def moments_after(self, line: int) -> list[Moment] | None:
        """What happened after journal line ``line``; null when that is no longer known."""
        if line < self._complete_from:
            return None
        recent: list[Moment] = []
        for moment in reversed(self._moments):
            if moment.line <= line:
                break
            recent.append(moment)
        return recent[::-1]

    def forget(self, wanted: int) -> int:
        """Forget the oldest windows and what belongs to them until ``wanted`` bytes are free, or only the newest window
        and decision are left; returns how many bytes are."""
        before = self.bytes
        while before - self.bytes < wanted and (self.windows or len(self.decisions) > 1):
            if not self.windows:
                self.bytes -= decision_bytes(self.decisions.popleft())
                continue
            gone = self.windows.popleft()
            self.bytes -= window_bytes(gone)
            number = gone.report.window
            while len(self.decisions) > 1 and self.decisions[0].decision.window <= number:
                self.bytes -= decision_bytes(self.decisions.popleft())
            while self._moments and _before(self._moments[0], number):
                self._complete_from = self._moments.popleft().line
        return before - self.bytes

    def _without_many_ranks(self, view: WindowView) -> WindowView:
        if len(view.report.ranks) <= self._most_ranks:
            return view
        return view.model_copy(update={"report": view.report.model_copy(update={"ranks": ()})})


def _before(moment: Moment, window: int) -> bool:
    """Whether a moment is no later than this window."""
    return moment.window is None or moment.window.report.window <= window


def window_bytes(view: WindowView) -> int:
    """About what a window takes in memory."""
    report = view.report
    size = WINDOW_BYTES + len(report.levels) * LEVEL_BYTES + len(report.ranks) * RANK_BYTES
    return size + len(report.gains) * GAIN_BYTES + (0 if report.curve is None else CURVE_BYTES)


def decision_bytes(view: DecisionView) -> int:
    """About what a decision takes in memory."""
    return DECISION_BYTES + len(view.decision.candidates) * CANDIDATE_BYTES
