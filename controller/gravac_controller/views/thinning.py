"""Fewer windows of a long trace, none of them made up: of each run of neighbours those that stand out are kept."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gravac.policies.windows import dense_baseline
from gravac.protocol import Decision
from gravac_controller.views.columns import NAMES, Value
from gravac_controller.views.models import DecisionView, WindowView

MOST_MARKED = 4
"""Of a run of windows, as many with a change or a fault are kept besides."""
_AT = {name: at for at, name in enumerate(NAMES)}


@dataclass(frozen=True, slots=True)
class Kept:
    """A window: its values by ``columns.NAMES``; what only charts of the page need; what was decided on it.

    ``marked``: it changed the decision, or had a fault. ``dense``: step and exposed seconds of a dense step, of a
    window of the warm-up.
    """

    row: tuple[Value, ...]
    curve: tuple[int, bool, tuple[float | None, ...]] | None
    dense: tuple[float | None, float | None]
    decision: DecisionView | None
    marked: bool

    def number(self, name: str) -> float | None:
        """A value by the name of its column."""
        found = self.row[_AT[name]]
        return found if isinstance(found, int | float) else None

    @property
    def step_seconds(self) -> float:
        """Mean step of the window."""
        first, last = self.number("first_step") or 0, self.number("last_step") or 0
        return (self.number("seconds") or 0.0) / (last - first + 1)


def kept(
    view: WindowView, row: tuple[Value, ...], decision: DecisionView | None, in_force: Decision | None
) -> Kept:
    """A window as it is kept. ``in_force``: the decision that it ran under, None if not known."""
    report = view.report
    dense = None if in_force is None else dense_baseline(report, in_force)
    return Kept(
        row=row,
        curve=None if report.curve is None else (report.curve.steps, report.curve.own, report.curve.gains),
        dense=(None, None) if dense is None else (dense.step_seconds_median, dense.exposed_seconds_median),
        decision=decision,
        marked=(decision is not None and decision.changed)
        or report.nonfinite_steps > 0
        or report.failed_steps > 0,
    )


class Thinned:
    """Windows in order, at most ``most`` of them. ``run``: how many neighbours are looked at together; 1: all are here.

    Of a run the first window stays, those with the least gain, the largest backlog, the longest step and the highest
    loss, and up to ``MOST_MARKED`` with a change or a fault; and the last of all. Memory is bounded by ``most``.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.run = 1
        self.windows = 0
        self._runs: list[list[Kept]] = []
        self._in_last = 0
        self._kept = 0
        self._last: list[Kept] = []

    def add(self, one: Kept) -> None:
        """Take in the next window."""
        self.windows += 1
        self._last = [one]
        if self._runs and self._in_last < self.run:
            last = self._runs[-1]
            self._runs[-1] = _standing_out([*last, one])
            self._in_last += 1
            self._kept += len(self._runs[-1]) - len(last)
        else:
            self._runs.append([one])
            self._in_last = 1
            self._kept += 1
        while self._kept > self._most and len(self._runs) > 1:
            self._widen()

    def _widen(self) -> None:
        if len(self._runs) % 2 == 0:
            self._in_last += self.run
        pairs = (self._runs[at : at + 2] for at in range(0, len(self._runs), 2))
        self._runs = [_standing_out([one for run in pair for one in run]) for pair in pairs]
        self.run *= 2
        self._kept = sum(map(len, self._runs))

    def __iter__(self) -> Iterator[Kept]:
        for run in self._runs:
            yield from run
        yield from self._left_out()

    def __len__(self) -> int:
        return self._kept + len(self._left_out())

    def _left_out(self) -> list[Kept]:
        """The last window, if its run does not hold it."""
        return [one for one in self._last if self._runs[-1][-1] is not one]


def _standing_out(run: list[Kept]) -> list[Kept]:
    """What is kept of neighbours, in order."""
    if len(run) <= 2:
        return run
    wanted = {0}
    for worst in (_least(lambda one: one.number("gain")), *_MOST):
        at = worst(run)
        if at is not None:
            wanted.add(at)
    wanted.update([at for at, one in enumerate(run) if one.marked][:MOST_MARKED])
    return [one for at, one in enumerate(run) if at in wanted]


def _least(value: Callable[[Kept], float | None]) -> Callable[[list[Kept]], int | None]:
    def find(run: list[Kept]) -> int | None:
        known = [(number, at) for at, one in enumerate(run) if (number := value(one)) is not None]
        return min(known)[1] if known else None

    return find


def _most(value: Callable[[Kept], float | None]) -> Callable[[list[Kept]], int | None]:
    return _least(lambda one: None if (number := value(one)) is None else -number)


_MOST = (
    _most(lambda one: one.number("backlog")),
    _most(lambda one: one.step_seconds),
    _most(lambda one: one.number("loss")),
)
