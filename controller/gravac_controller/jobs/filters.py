"""Filters of the lists of windows and decisions."""

import re
from dataclasses import dataclass

from gravac.protocol import Decision, Phase, Rule, WindowReport

_HEAD = re.compile(
    rb'\{"kind":"window",[^{]*"body":\{"job":"[^"]*","incarnation":"[^"]*","window":([0-9]+),'
    rb'"first_step":([0-9]+),"last_step":([0-9]+),"epoch":([0-9]+),"phase":"([a-z]+)"'
)


@dataclass(frozen=True, slots=True)
class WindowHead:
    """The first fields of a window report: enough to filter by, without parsing the rest."""

    window: int
    first_step: int
    last_step: int
    epoch: int
    phase: str

    @classmethod
    def of_report(cls, report: WindowReport) -> "WindowHead":
        """Return the head of a parsed report."""
        return cls(report.window, report.first_step, report.last_step, report.epoch, report.phase)

    @classmethod
    def of_line(cls, raw: bytes) -> "WindowHead | None":
        """Parse the head of a journal line; None when it is not a window's."""
        match = _HEAD.match(raw)
        if match is None:
            return None
        return cls(int(match[1]), int(match[2]), int(match[3]), int(match[4]), match[5].decode())


@dataclass(frozen=True, slots=True)
class WindowFilter:
    """Windows with a step from ``from_step`` to ``to_step`` (inclusive) that ended under ``epoch`` in ``phase``.

    None: any.
    """

    from_step: int | None = None
    to_step: int | None = None
    epoch: int | None = None
    phase: Phase | None = None

    def matches(self, head: WindowHead) -> bool:
        """Return whether the window passes."""
        return (
            (self.from_step is None or head.last_step >= self.from_step)
            and (self.to_step is None or head.first_step <= self.to_step)
            and self.epoch in (None, head.epoch)
            and self.phase in (None, head.phase)
        )


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """Decisions of this phase, rule and epoch; ``changed``: only those that did, or did not, begin an epoch."""

    phase: Phase | None = None
    rule: Rule | None = None
    epoch: int | None = None
    changed: bool | None = None

    def matches(self, decision: Decision, changed: bool) -> bool:
        """Return whether the decision passes. ``changed``: it began an epoch."""
        return (
            self.phase in (None, decision.phase)
            and self.rule in (None, decision.rule)
            and self.epoch in (None, decision.epoch)
            and self.changed in (None, changed)
        )


EVERY_WINDOW = WindowFilter()
EVERY_DECISION = DecisionFilter()
