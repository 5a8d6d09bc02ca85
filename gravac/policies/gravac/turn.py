"""One window at the GraVAC policy's desk: what was in force, what was measured, and how an answer is made."""

from dataclasses import dataclass, field
from typing import Any

from gravac.policies.base import Verdict
from gravac.policies.gravac import table
from gravac.policies.gravac.settings import GravacSettings, GravacState
from gravac.policies.gravac.table import Table
from gravac.policies.measure import Measurement, gain_of, measure
from gravac.policies.succession import follow
from gravac.protocol import Decision, Phase, Rule, WindowReport


@dataclass(slots=True)
class Turn:
    """Everything a rule looks at. Answers are made with ``stay`` and ``go``.

    ``previous``: the decision in force during the window. ``seen``: what the window measured under it, by CF.
    ``table``: all candidates, with those of these measurements in that count.
    """

    settings: GravacSettings
    state: GravacState
    report: WindowReport
    previous: Decision = field(init=False)
    seen: dict[float, Measurement] = field(init=False)
    table: Table = field(init=False)

    def __post_init__(self) -> None:
        self.previous = self.state.decision
        self.seen = measure(self.report, self.previous, self.settings.min_settled)
        self.table = table.record(self.previous.candidates, self._counting())

    def _counting(self) -> dict[float, Measurement]:
        """What enters the table. Dense steps under a compressing decision compressed first: they are no baseline."""
        compressing = max(self.previous.cf_minimum, self.previous.cf_candidate) > 1.0
        if not compressing or self.settings.baseline == "any":
            return self.seen
        return {cf: measured for cf, measured in self.seen.items() if cf > 1.0}

    def gain(self, cf: float) -> float | None:
        """Smoothed gain of ``cf`` at the end of the window."""
        return gain_of(self.report, cf)

    def neighbour(self, cf: float) -> float:
        """The rung below ``cf``: dense below the first."""
        rungs = self.settings.rungs
        return rungs[rungs.index(cf) - 1]

    def settled_steps(self, cf: float) -> int:
        """Settled steps of ``cf`` under the decision in force, enough or not."""
        levels = (level for level in self.report.levels if level.epoch == self.previous.epoch)
        return sum(level.settled_steps for level in levels if level.cf == cf)

    def stay(self, rule: Rule, reason: str, rows: Table | None = None, **memory: Any) -> Verdict:
        """The same way of sending again; ``memory``: fields of the state that change."""
        return self.go(rule, reason, rows=rows, **memory)

    def go(
        self,
        rule: Rule,
        reason: str,
        *,
        phase: Phase | None = None,
        minimum: float | None = None,
        candidate: float | None = None,
        rows: Table | None = None,
        **memory: Any,
    ) -> Verdict:
        """Another way of sending from here on; what is not given stays."""
        decision = follow(
            self.previous,
            self.report,
            rule,
            reason,
            phase=phase,
            minimum=minimum,
            candidate=candidate,
            candidates=self.table if rows is None else rows,
            epsilon=self.settings.epsilon,
        )
        return Verdict(decision, self.state.model_copy(update={"decision": decision, **memory}))

    def measure_again(self, rule: Rule, reason: str, windows: int) -> Verdict:
        """Back to the dense baseline, with an empty table: what was measured no longer holds."""
        return self.go(
            rule,
            reason,
            phase="warmup",
            minimum=1.0,
            candidate=1.0,
            rows=table.fresh(self.settings.rungs),
            warmup_left=windows,
            extended=0,
            reference=None,
            drifting=0,
            multiplier=None,
        )
