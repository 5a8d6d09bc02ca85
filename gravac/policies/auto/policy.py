"""The auto policy: codec and strength by predicted useful throughput, within a bound on statistical efficiency."""

from copy import copy
from typing import ClassVar, Self

from gravac.policies.auto.beliefs import SETTLED, Belief, believe, learn
from gravac.policies.auto.choose import MORE_STEPS, START_STEPS, NextPlan, Search, at_once
from gravac.policies.auto.plans import plans
from gravac.policies.auto.say import at_once as say_at_once
from gravac.policies.auto.say import say
from gravac.policies.auto.settings import AutoSettings, AutoState
from gravac.policies.auto.table import PlanTable, table_of, unfitted
from gravac.policies.base import (
    DENSE,
    ConfiguredPolicy,
    Plan,
    PolicySettings,
    PolicyState,
    Verdict,
    narrow,
)
from gravac.policies.trials import TRIAL_STEPS, trial
from gravac.policies.windows import MOST, first_decision, gain_of, levels_under, next_decision, unusable
from gravac.protocol import Candidate, JobSpec, WindowReport


class AutoPolicy(ConfiguredPolicy[AutoSettings]):
    """Choose the plan with the highest useful throughput that loses no more efficiency than you accept."""

    name: ClassVar[str] = "auto"
    source: ClassVar[str] = "gravac's own: useful throughput T_sys · η over codecs and strengths"
    State: ClassVar[type[PolicyState]] = AutoState
    Settings: ClassVar[type[PolicySettings]] = AutoSettings
    examples: ClassVar[tuple[str, ...]] = (
        "bound=1",
        "bound=0.2,plans=nearest:levels=7;block=32@10/topk@10/dgc@27/topk@100",
    )

    def __init__(self, **given: object) -> None:
        super().__init__(**given)
        self._table: PlanTable | None = None
        self._unfitted: PlanTable | None = None

    @property
    def _plans(self) -> tuple[Plan, ...]:
        """The plans of the job."""
        return tuple(row.plan for row in self.table.rows)

    @property
    def table(self) -> PlanTable:
        """The plan table of the job; before it is known, one by CF alone."""
        if self._table is not None:
            return self._table
        if self._unfitted is None:
            self._unfitted = unfitted(self.settings.plans, self.settings.bound)
        return self._unfitted

    def plans(self, compressor: str) -> tuple[Plan, ...]:
        kind = "other" if self._table is None else self._table.kind
        return plans(self.settings.plans, compressor, kind)

    def codecs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(plan.codec for plan in self._plans if plan.codec is not None))

    def ladder(self) -> tuple[float, ...]:
        return tuple(sorted({plan.cf for plan in self._plans}))

    def least_window(self) -> int:
        return max(SETTLED.values())

    def fitted(self, spec: JobSpec) -> Self:
        """Return this policy with the plan table of the job."""
        other = copy(self)
        other._table = table_of(self.settings.plans, self.settings.bound, spec)
        return other

    def start(self, epoch: int = 0) -> Verdict:
        """Return a few dense steps, to measure what a step takes; on a slow network a plan that saves much."""
        reason = "Dense for a few steps, to measure how long a step waits for the network."
        decision = first_decision(epoch, "warmup", 1.0, reason, window_steps=START_STEPS)
        state = AutoState(decision=decision)
        rows = () if self._table is None else believe(self._table, state.beliefs, DENSE, 0, 0)
        option = None if self._table is None else at_once(self._table, rows)
        if option is None or self._table is None:
            return Verdict(decision, state)
        row = next(row for row in rows if row.plan == option)
        changes = {
            "phase": "explore",
            "cf_minimum": option.cf,
            "cf_candidate": option.cf,
            "codec": option.codec,
            "reason": say_at_once(self._table, row),
            "window_steps": TRIAL_STEPS,
        }
        decision = decision.model_copy(update=changes)
        return Verdict(decision, state.model_copy(update={"decision": decision, "trials": 1}))

    def decide(self, state: PolicyState, report: WindowReport) -> Verdict:
        """Decide after one window; see ``choose``."""
        known, table = narrow(state, AutoState), self.table
        previous = known.decision
        if not levels_under(report, previous):
            decision = unusable(previous, report)
            return Verdict(decision, known.model_copy(update={"decision": decision}))
        plan = Plan(previous.codec, previous.cf_candidate) if previous.cf_candidate > 1.0 else DENSE
        if not self._continues(known, plan):
            known = type(known)(decision=previous)
            rows = believe(table, known.beliefs, DENSE, report.window, report.last_step + 1)
            restart = NextPlan("restart", DENSE, "warmup", rows, plan, window_steps=MORE_STEPS)
            return self._verdict(known, restart, report)
        lesson = learn(table, known.beliefs, report, previous, known.held_seconds)
        search = Search(table, known, lesson, report)
        choice = search.choose()
        return self._verdict(search.state, choice, report)

    def _continues(self, state: AutoState, plan: Plan) -> bool:
        """Return whether this policy can continue from a state, which may come from other settings."""
        decision = state.decision
        return (
            plan in self.table.by_plan
            and decision.cf_minimum == decision.cf_candidate
            and decision.phase in ("warmup", "explore", "hold")
            and (decision.phase != "warmup" or plan == DENSE)
        )

    def _verdict(self, state: AutoState, choice: NextPlan, report: WindowReport) -> Verdict:
        """Return the decision of a choice. Here plans get the names that decisions have."""
        rule, reason = say(choice, self.table, state.beliefs.confirmed)
        limit = choice.trial_limit
        decision = next_decision(
            state.decision,
            report,
            rule,
            reason[:1000],
            phase=choice.phase,
            minimum=choice.plan.cf,
            candidate=choice.plan.cf,
            candidates=candidates(choice.rows, choice.plan, choice.phase == "explore", report, choice.before),
            epsilon=0.0,
            codec=choice.plan.codec,
            window_steps=choice.window_steps,
            trial=None if limit is None else trial(limit, state.held),
        )
        return Verdict(decision, state.model_copy(update={"decision": decision}))


def candidates(
    rows: tuple[Belief, ...], chosen: Plan, trying: bool, report: WindowReport, before: Plan
) -> tuple[Candidate, ...]:
    """Return the rows of a decision. Throughput is given where it was measured, else as predicted.

    Args:
        rows: What is believed of every plan.
        chosen: Plan of the decision.
        trying: Whether it is only being tried.
        report: The window.
        before: Plan in force during it, whose gain it may show.
    """
    steps = report.last_step - report.first_step + 1
    samples = (report.samples or steps) / steps if steps > 0 else 1.0
    known, gain = any(row.fresh for row in rows), gain_of(report, before.cf, before.codec)
    found = []
    for row in rows:
        seen, likely = row.measured, row.efficiency
        timed = seen is not None and seen.step_seconds > 0.0
        rate = min(MOST, samples / max(1e-9, seen.step_seconds)) if timed and seen is not None else None
        verdict = "untried" if not timed else "passed"
        if not row.keeps and not row.doubtful:
            verdict = "too_strong"
        if row.plan == chosen:
            verdict = "trying" if trying else "chosen"
        found.append(
            Candidate.model_validate(
                {
                    "cf": row.plan.cf,
                    "codec": row.plan.codec,
                    "gain": 1.0 if row.plan == DENSE else gain if row.plan == before else None,
                    "samples_per_second": rate,
                    "useful_samples_per_second": None if rate is None or likely is None else rate * likely,
                    "window": seen.window if timed and seen is not None else None,
                    "verdict": verdict,
                    "efficiency": likely,
                    "efficiency_error": None if likely is None else row.efficiency_error,
                    "efficiency_steps": int(row.steps),
                    "predicted_samples_per_second": min(MOST, samples / row.seconds)
                    if known and not row.fresh
                    else None,
                }
            )
        )
    return tuple(found)
