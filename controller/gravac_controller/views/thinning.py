"""Thins the windows of a long trace: of each run of neighbors those that stand out remain, unchanged."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gravac.policies.windows import dense_baseline
from gravac.protocol import Decision
from gravac_controller.views.columns import NAMES, Value
from gravac_controller.views.models import DecisionView, WindowView

MOST_MARKED = 4
"""Windows with a change or a fault that remain of a run in addition."""
_AT = {name: at for at, name in enumerate(NAMES)}


@dataclass(frozen=True, slots=True)
class ThinnedWindow:
    """A window: its values by ``columns.NAMES``, what only the charts of the page need, and the decision on it.

    ``marked``: it changed the decision, or had a fault. ``dense``: step and exposed seconds of a dense step, in windows
    of the warm-up.
    """

    row: tuple[Value, ...]
    curve: tuple[int, bool, tuple[float | None, ...]] | None
    dense: tuple[float | None, float | None]
    decision: DecisionView | None
    marked: bool

    def number(self, name: str) -> float | None:
        """Return a value by the name of its column; None where it is not a number."""
        found = self.row[_AT[name]]
        return found if isinstance(found, int | float) else None

    @property
    def step_seconds(self) -> float:
        """Mean step of the window, in seconds."""
        first, last = self.number("first_step") or 0, self.number("last_step") or 0
        return (self.number("seconds") or 0.0) / (last - first + 1)

    @classmethod
    def of(
        cls,
        view: WindowView,
        row: tuple[Value, ...],
        decision: DecisionView | None,
        in_force: Decision | None,
    ) -> "ThinnedWindow":
        """Return what remains of a window.

        Args:
            view: The window.
            row: Its values by ``columns.NAMES``.
            decision: The decision on it.
            in_force: The decision that it ran under; None if unknown.
        """
        report = view.report
        dense = None if in_force is None else dense_baseline(report, in_force)
        curve = None if report.curve is None else (report.curve.steps, report.curve.own, report.curve.gains)
        return cls(
            row=row,
            curve=curve,
            dense=(None, None)
            if dense is None
            else (dense.step_seconds_median, dense.exposed_seconds_median),
            decision=decision,
            marked=(decision is not None and decision.changed)
            or report.nonfinite_steps > 0
            or report.failed_steps > 0,
        )


class Thinned:
    """Windows in order, at most ``most`` of them. ``run``: length of the runs that are thinned; 1: nothing is left out.

    Of a run these remain: the first window, those with the least gain, the largest backlog, the longest step and the
    highest loss, and up to ``MOST_MARKED`` with a change or a fault. So does the last window of all. Memory is bounded
    by ``most``.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.run = 1
        self.windows = 0
        self._runs: list[list[ThinnedWindow]] = []
        self._in_last = 0
        self._size = 0
        self._last: list[ThinnedWindow] = []

    def add(self, window: ThinnedWindow) -> None:
        """Add the next window."""
        self.windows += 1
        self._last = [window]
        if self._runs and self._in_last < self.run:
            last = self._runs[-1]
            self._runs[-1] = _standing_out([*last, window])
            self._in_last += 1
            self._size += len(self._runs[-1]) - len(last)
        else:
            self._runs.append([window])
            self._in_last = 1
            self._size += 1
        while self._size > self._most and len(self._runs) > 1:
            self._widen()

    def _widen(self) -> None:
        if len(self._runs) % 2 == 0:
            self._in_last += self.run
        pairs = (self._runs[at : at + 2] for at in range(0, len(self._runs), 2))
        self._runs = [_standing_out([window for run in pair for window in run]) for pair in pairs]
        self.run *= 2
        self._size = sum(map(len, self._runs))

    def __iter__(self) -> Iterator[ThinnedWindow]:
        for run in self._runs:
            yield from run
        yield from self._left_out()

    def __len__(self) -> int:
        return self._size + len(self._left_out())

    def _left_out(self) -> list[ThinnedWindow]:
        """Return the last window, if its run left it out."""
        return [window for window in self._last if self._runs[-1][-1] is not window]


def _standing_out(run: list[ThinnedWindow]) -> list[ThinnedWindow]:
    """Return the windows of a run that remain, in order."""
    if len(run) <= 2:
        return run
    wanted = {0}
    for worst in (_least(lambda window: window.number("gain")), *_MOST):
        at = worst(run)
        if at is not None:
            wanted.add(at)
    wanted.update([at for at, window in enumerate(run) if window.marked][:MOST_MARKED])
    return [window for at, window in enumerate(run) if at in wanted]


def _least(value: Callable[[ThinnedWindow], float | None]) -> Callable[[list[ThinnedWindow]], int | None]:
    def find(run: list[ThinnedWindow]) -> int | None:
        known = [(number, at) for at, window in enumerate(run) if (number := value(window)) is not None]
        return min(known)[1] if known else None

    return find


def _most(value: Callable[[ThinnedWindow], float | None]) -> Callable[[list[ThinnedWindow]], int | None]:
    return _least(lambda window: None if (number := value(window)) is None else -number)


_MOST = (
    _most(lambda window: window.number("backlog")),
    _most(lambda window: window.step_seconds),
    _most(lambda window: window.number("loss")),
)
