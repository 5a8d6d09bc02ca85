"""One window as the GraVAC policy evaluates it: what was in force, what was measured, and the decision that follows."""

from dataclasses import dataclass, field
from typing import Any

from gravac.policies import candidates
from gravac.policies.base import Verdict
from gravac.policies.candidates import Candidates
from gravac.policies.gravac.settings import GravacSettings, GravacState
from gravac.policies.windows import Measurement, gain_of, measure, next_decision
from gravac.protocol import Decision, KnownRule, Phase, WindowReport


@dataclass(slots=True)
class Evaluation:
    """All that a rule looks at. Rules answer with ``decide`` or ``restart``.

    ``previous``: the decision in force during the window. ``measured``: what the window measured under it, by CF.
    ``candidates``: the rows of all CFs, with those measurements that count.
    """

    settings: GravacSettings
    state: GravacState
    report: WindowReport
    previous: Decision = field(init=False)
    measured: dict[float, Measurement] = field(init=False)
    candidates: Candidates = field(init=False)

    def __post_init__(self) -> None:
        self.previous = self.state.decision
        self.measured = measure(self.report, self.previous, self.settings.min_settled)
        self.candidates = candidates.update(self.previous.candidates, self._counting())

    def _counting(self) -> dict[float, Measurement]:
        """Return what enters the candidates. Dense steps of a compressing decision compressed first: no baseline."""
        if self.previous.dense or self.settings.baseline == "any":
            return self.measured
        return {cf: measured for cf, measured in self.measured.items() if cf > 1.0}

    def gain(self, cf: float) -> float | None:
        """Return the smoothed gain of ``cf`` at the end of the window."""
        return gain_of(self.report, cf)

    def rung_below(self, cf: float) -> float:
        """Return the next lower rung: dense below the first."""
        rungs = self.settings.rungs
        return rungs[rungs.index(cf) - 1]

    def settled_steps(self, cf: float) -> int:
        """Return the settled steps of ``cf`` under the decision in force, enough or not."""
        levels = (level for level in self.report.levels if level.epoch == self.previous.epoch)
        return sum(level.settled_steps for level in levels if level.cf == cf)

    def decide(
        self,
        rule: KnownRule,
        reason: str,
        *,
        phase: Phase | None = None,
        minimum: float | None = None,
        candidate: float | None = None,
        rows: Candidates | None = None,
        **state: Any,
    ) -> Verdict:
        """Return the next decision; what is not given stays. ``state``: fields of the state that change."""
        decision = next_decision(
            self.previous,
            self.report,
            rule,
            reason,
            phase=phase,
            minimum=minimum,
            candidate=candidate,
            candidates=self.candidates if rows is None else rows,
            epsilon=self.settings.epsilon,
        )
        return Verdict(decision, self.state.model_copy(update={"decision": decision, **state}))

    def restart(self, rule: KnownRule, reason: str, windows: int) -> Verdict:
        """Return to the dense baseline, because what was measured no longer holds. ``windows``: how many are dense."""
        return self.decide(
            rule,
            reason,
            phase="warmup",
            minimum=1.0,
            candidate=1.0,
            rows=candidates.untried(self.settings.rungs),
            warmup_left=windows,
            extended=0,
            reference=None,
            drifting=0,
            multiplier=None,
        )
