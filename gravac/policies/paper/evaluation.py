"""One window as the GraVAC policy evaluates it: what was in force, what was measured, and the decision that follows."""

from dataclasses import dataclass, field
from typing import Any

from gravac.policies import candidates, trials
from gravac.policies.base import Plan, Verdict
from gravac.policies.candidates import Candidates
from gravac.policies.paper.settings import GravacSettings, GravacState, PaperSearch
from gravac.policies.windows import MOST, WindowMeasurement, gain_of, measure, next_decision, predicted_gain
from gravac.protocol import Candidate, Decision, KnownRule, Phase, Trial, WindowReport

MIN_SETTLED = 3
"""Settled steps that a CF needs in a window to be measured."""
NOISE = 0.05
"""A T_comp must be higher by this share to count as higher."""
HEADROOM = 0.05
"""Share of its time that a dense step must wait for the network, else no CF can pay."""
CLEARLY = 0.9
"""Share of ε below which a promised gain counts as too little: curves move a little from step to step."""


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
    measured: dict[float, WindowMeasurement] = field(init=False)
    candidates: Candidates = field(init=False)

    def __post_init__(self) -> None:
        self.previous = self.state.decision
        change = {"elapsed": min(1e12, self.state.elapsed + self.report.seconds)}
        if self.previous.trial is not None:
            took = trials.cost(self.report.seconds, self.steps, self.state.held_seconds)
            change["spent"] = min(1e12, self.state.spent + took)
        self.state = self.state.model_copy(update=change)
        self.measured = measure(self.report, self.previous, MIN_SETTLED)
        self.candidates = candidates.update(self.previous.candidates, self._counting())

    @property
    def steps(self) -> int:
        """Steps of the window."""
        return self.report.last_step - self.report.first_step + 1

    @property
    def ended(self) -> float | None:
        """Seconds of the step that ended the trial in force; None: it was not ended."""
        return None if self.previous.trial is None else self.report.trial_seconds

    @property
    def left(self) -> float:
        """Seconds that trials may still cost."""
        return trials.allowance(self.state.elapsed, self.state.spent)

    def trial(self, predicted: float, held: float, back: float) -> dict[str, Any]:
        """Return what makes the next decision a trial with a price, for ``decide``.

        Args:
            predicted: Seconds of a step of it.
            held: Seconds of a step of ``back``.
            back: The CF to go back to.
        """
        limit = trials.step_limit(predicted, held, self.left)
        return {"trial": trials.trial(limit, Plan(None, back)), "held_seconds": held}

    def seconds(self, rate: float | None) -> float | None:
        """Return the seconds of a step at a number of samples/s; None: not known."""
        return (self.report.samples or self.steps) / self.steps / rate if rate else None

    def _counting(self) -> dict[float, WindowMeasurement]:
        """Return what enters the candidates. Dense steps of a compressing decision compressed first: no baseline."""
        if self.previous.dense or self.settings.baseline == "any":
            return self.measured
        return {cf: measured for cf, measured in self.measured.items() if cf > 1.0}

    def gain(self, cf: float) -> float | None:
        """Return the smoothed gain of ``cf`` at the end of the window."""
        return gain_of(self.report, cf)

    def promised(self, cf: float) -> float | None:
        """Return about the largest gain that ``cf`` can reach by the window's curve; None if that is not known."""
        if self.settings.denominator == "gradient":  # the curve is of the gradient with the residual
            return None
        return predicted_gain(self.report, cf)

    def hopeless(self, cf: float) -> float | None:
        """Return the promised gain of ``cf`` if that is clearly below ε: no window is spent on it."""
        gain = self.promised(cf)
        return gain if gain is not None and gain < CLEARLY * self.settings.epsilon else None

    def free_rate(self) -> float | None:
        """Return the most samples/s that any CF can give: those of a step that never waits for the network."""
        free = self.dense_free_rate()
        if free is None:
            return None
        seen = [row.samples_per_second for row in self.candidates]
        # Of compressed steps, too: dense ones may have been measured in a bad moment.
        now = [each.free_samples_per_second for each in self.measured.values()]
        return max(free, *(rate for rate in (*seen, *now) if rate is not None), 0.0)

    def dense_free_rate(self) -> float | None:
        """Return the samples/s of a dense step without its wait for the network, as last measured; None: not known."""
        dense = self.measured.get(1.0) if self.previous.dense else None
        now = None if dense is None else dense.free_samples_per_second
        return self.state.search.free_rate if now is None else now

    def limit(self, cf: float, gain: float) -> float | None:
        """Return the best T_comp that ``cf`` and all above can reach: a free network, and the gain promised.

        Gain falls with CF, so ``gain``, that of a weaker CF, is a limit, too; but the gain over the raw gradient need
        not. None if the limit is not known.
        """
        free, promised = self.free_rate(), self.promised(cf)
        if free is None:
            return None
        if self.settings.denominator == "gradient":
            gain = 1.0
        return min(MOST, free * (gain if promised is None else min(gain, promised / CLEARLY)))

    def compared(self, rows: Candidates) -> Candidates:
        """Return the rows that the search in progress compares: dense, and what was measured since it began."""
        since = self.state.search.since
        return tuple(row for row in rows if row.cf == 1.0 or (row.window is not None and row.window >= since))

    def choose(self, rows: Candidates) -> tuple[Candidate, Candidate]:
        """Return the row to hold, which on a tie is the lower CF, and the row with the best T_comp."""
        settings = self.settings
        return candidates.choose(self.compared(rows), settings.epsilon, settings.omega)

    def fewer(self, cf: float) -> float:
        """Return how many times less a step at ``cf`` sent in this window than a dense one."""
        levels = [level for level in self.report.levels if level.cf == cf and level.payload_bytes > 0]
        return levels[-1].dense_bytes / levels[-1].payload_bytes if levels else cf

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
        window_steps: int | None = None,
        trial: Trial | None = None,
        **state: Any,
    ) -> Verdict:
        """Return the next decision; what is not given stays, but windows have the job's length and no trial goes on.

        ``state``: fields of the state that change.
        """
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
            window_steps=window_steps,
            trial=trial,
        )
        return Verdict(decision, self.state.model_copy(update={"decision": decision, **state}))

    def restart(self, rule: KnownRule, reason: str, windows: int, **more: Any) -> Verdict:
        """Return to the dense baseline, because what was measured no longer holds.

        Args:
            rule: Rule that fired.
            reason: Reason in words.
            windows: Number of dense windows.
            more: Arguments of ``decide``.
        """
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
            low=0,
            fitting=0,
            promising=0,
            search=PaperSearch(),
            freed=0,
            looks=0,
            unlooked=0,
            **more,
        )
