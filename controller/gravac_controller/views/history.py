"""The windows and decisions of a trace as JSON in columns, as the page draws them in reports and ``gravac ui``."""

from collections import deque
from collections.abc import Iterable, Sequence

from gravac.protocol import Decision
from gravac_controller.views.columns import COLUMNS, NAMES, Value, row_of
from gravac_controller.views.models import DecisionView, WindowView
from gravac_controller.views.thinning import Thinned, ThinnedWindow

MOST_CHANGES = 2_000
"""Changing decisions whose windows are left out: this many of the newest are still included."""
MOST_CURVES = 2_000
"""Windows with their gain curve: this many, evenly spaced, and those with a change or a fault."""
DIGITS = 9
CURVE_DIGITS = 3
Plain = dict[str, object]


class History:
    """The history of a trace, added window by window; at most ``most`` windows (``Thinned``)."""

    def __init__(self, most: int) -> None:
        self.windows = Thinned(most)
        self.changes = 0
        self._first: DecisionView | None = None
        self._in_force: Decision | None = None
        self._changes: deque[DecisionView] = deque(maxlen=MOST_CHANGES)

    def begin(self, decision: DecisionView) -> None:
        """Set the decision that the trace begins with. Later calls do nothing."""
        if self._first is None:
            self._first, self._in_force = decision, decision.decision

    def add(self, view: WindowView, decision: DecisionView | None) -> None:
        """Add the next window and the decision on it; None: the trace ends before it."""
        if decision is not None and decision.changed:
            self.changes += 1
            self._changes.append(decision)
        self.windows.add(ThinnedWindow.of(view, row_of(view), decision, self._in_force))
        if decision is not None:
            self._in_force = decision.decision

    def decisions(self) -> list[DecisionView]:
        """Return the decisions on the windows that remain, the changing ones, and the first; in order."""
        found = [window.decision for window in self.windows if window.decision is not None]
        there = {id(view) for view in found}
        found += [change for change in self._changes if id(change) not in there]
        if self._first is not None and id(self._first) not in there:
            found.append(self._first)
        return sorted(found, key=lambda view: (view.decision.window, view.decision.epoch))


def plain(windows: Sequence[ThinnedWindow], decisions: Iterable[DecisionView], exact: bool) -> Plain:
    """Return the JSON that ``static/rows.js`` reads. Unless ``exact``, numbers have nine digits, in curves three."""
    plan = NAMES.index("plan")
    plans = list(dict.fromkeys(str(window.row[plan]) for window in windows))
    columns: dict[str, list[Value]] = {
        column.name: [_number(column.name, window.row[at], exact) for window in windows]
        for at, column in enumerate(COLUMNS)
        if not windows or any(window.row[at] is not None for window in windows)  # else a null for each
    }
    return {
        "columns": columns | {"plan": [plans.index(str(window.row[plan])) for window in windows]},
        "plans": plans,
        "curves": _curves(windows, exact),
        "dense": [[at, *window.dense] for at, window in enumerate(windows) if window.dense != (None, None)],
        **_decisions(decisions, exact),
    }


def digits(value: float, count: int) -> float | int:
    """Round to this many significant digits; whole numbers become integers, which are shorter in JSON."""
    short = float(f"{value:.{count}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _number(name: str, value: Value, exact: bool) -> Value:
    """Round a value of this column; times to a millisecond."""
    if exact or not isinstance(value, float):
        return value
    return round(value, 3) if name == "time" else digits(value, DIGITS)


def _short(value: float | None, count: int, exact: bool) -> float | int | None:
    return value if exact or value is None else digits(value, count)


def _curves(windows: Sequence[ThinnedWindow], exact: bool) -> list[object]:
    """Return [index of the window, steps, own, gains] of each curve that is included."""
    every, last = -(-len(windows) // MOST_CURVES), len(windows) - 1
    return [
        [
            at,
            window.curve[0],
            window.curve[1],
            [_short(gain, CURVE_DIGITS, exact) for gain in window.curve[2]],
        ]
        for at, window in enumerate(windows)
        if window.curve is not None and (at % every == 0 or window.marked or at == last)
    ]


def _decisions(views: Iterable[DecisionView], exact: bool) -> Plain:
    """Candidates change little between decisions, so each is included once and decisions refer to it by index."""
    places: dict[tuple[object, ...], int] = {}
    rows = []
    for view in views:
        it = view.decision
        indices = [
            places.setdefault(
                (
                    candidate.cf,
                    _short(candidate.gain, DIGITS, exact),
                    _short(candidate.samples_per_second, DIGITS, exact),
                    _short(candidate.useful_samples_per_second, DIGITS, exact),
                    candidate.window,
                    candidate.verdict,
                    candidate.codec,
                    _short(candidate.efficiency, DIGITS, exact),
                    _short(candidate.predicted_samples_per_second, DIGITS, exact),
                    words,
                ),
                len(places),
            )
            for candidate, words in zip(it.candidates, view.candidate_plans, strict=True)
        ]
        made = [view.time if exact else round(view.time, 3), view.changed, view.plan_before, view.plan]
        what = [it.window, it.epoch, it.phase, it.codec, it.cf_minimum, it.cf_candidate, it.epsilon]
        what += [it.rule, it.reason]
        rows.append([*made, *what, indices])
    return {"candidates": [list(place) for place in places], "decisions": rows}
