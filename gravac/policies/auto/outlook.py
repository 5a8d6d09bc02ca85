"""What each plan promises now: its efficiency, whether it keeps the bound, and its useful throughput."""

from collections.abc import Iterable
from dataclasses import dataclass

from gravac import offers
from gravac.policies.auto.settings import AutoState, Seen
from gravac.policies.auto.space import Space
from gravac.policies.auto.timemodel import PlanTimeModel
from gravac.policies.base import DENSE, Plan
from gravac.policies.windows import MOST
from gravac.protocol import Candidate
from gravac.signals import efficiency
from gravac.signals.efficiency import Efficiency

RECENT = 8
"""Windows for which a measured efficiency counts before the one that was expected. [windows; chosen]"""
MOST_LOST = 0.04
"""Largest loss of η of a plan that is held, whatever the bound. Of 15 simulated jobs of image nets under AdamW that
held 7 levels, which lose 6 to 9 % there, 14 did not reach the target loss in their planned steps, and 10 of 12
that held 15 levels did not, either. [share; simulated]"""
UNMEASURED = 0.75
"""Share of the bound by which a plan that is tried may be expected to lose more, for kinds of optimizer whose backlog
says nothing: there, a trial next to a dense reference shows whether this model bears the plan. [share; chosen]"""


@dataclass(frozen=True)
class Outlook:
    """Ranks the plans of a space.

    Useful throughput is compared as η / seconds of a step, as all steps have the same number of samples. A plan keeps
    the bound if its *likely* η does: the lowest credible one would leave nothing to choose from at 2 %. But the lowest
    one must be at least ``efficiency.LEAST_KEPT``, unless a window showed better. Where windows show η, plans of which
    the highest credible one keeps the bound are tried after those. Where only a dense reference shows η, these are the
    plans that are expected to lose little more, until one was left: then what is expected follows what was measured.

    Attributes:
        space: The plans.
        bound: Largest loss of η that the user accepts; 1: any.
        model: Predicts steps.
        seen: Measurements by plan.
        severity: Measured loss of η / expected one.
        confirmed: ρ, the part of the mean gradient that is not noise; None: not known.
        window: Number of the window.
        resting: Plans that are not tried now.
        left: Plans that were left for their η, resting or not.
    """

    space: Space
    bound: float
    model: PlanTimeModel
    seen: dict[Plan, Seen]
    severity: float
    confirmed: float | None
    window: int
    resting: frozenset[Plan]
    left: frozenset[Plan]

    def efficiency(self, plan: Plan) -> float | None:
        """Return the likely η of a plan; None if nothing is known of its codec."""
        if plan.cf == 1.0:
            return 1.0
        row, table = self._measured(plan), self._simulated(plan)
        if row is not None and row.window + RECENT >= self.window:
            return row.efficiency
        if table is not None:
            return max(efficiency.LOWEST, 1.0 - self.severity * (1.0 - table.likely))
        if row is not None:
            return row.efficiency
        return max(efficiency.LOWEST, 1.0 - self.bound) if self.space.limited else None

    def _measured(self, plan: Plan) -> Seen | None:
        """Return the newest measurement of η of a plan, or of one that sends the same values."""
        values = self.space.values
        rows = (
            row
            for row in self.seen.values()
            if row.efficiency is not None and values(row.plan) == values(plan)
        )
        return max(rows, key=lambda row: row.window, default=None)

    def _simulated(self, plan: Plan) -> Efficiency | None:
        """Return η by simulations, which are of error feedback."""
        codec = self.space.codec(plan)
        if not self.space.remembers and not offers.of(codec).lossless:
            return None
        return self.space.expected(plan, self.confirmed)

    def may_keep(self, plan: Plan) -> bool:
        """Return whether a plan may be tried: ``keeps``, or its η is not known well and may keep the bound."""
        if self.keeps(plan):
            return True
        if plan in self.left or self._measured(plan) is not None or self._weaker_failed(plan):
            return False
        if self.bound > MOST_LOST + efficiency.ROUNDING and not self._reliable(plan):
            return False
        table = self._simulated(plan)
        if table is None:
            return False
        if self.space.kind in efficiency.TELLING:
            return self._within(1.0 - self.severity * (1.0 - table.high))
        if efficiency.counts_late(self.space.codec(plan), self.space.kind):  # a trial would not show more
            return False
        if self.left or not self._reliable(plan):
            return False
        return self._within(1.0 - self.severity * (1.0 - table.likely), UNMEASURED)

    def _reliable(self, plan: Plan) -> bool:
        """Return whether a plan keeps enough even in the task that bears it worst, or the user listed it."""
        table = self._simulated(plan)
        return self.space.limited or table is None or table.reliable

    def _weaker_failed(self, plan: Plan) -> bool:
        """Return whether the same codec at a lower CF was measured outside the bound."""
        values = self.space.values
        weaker = (
            row
            for row in self.seen.values()
            if values(row.plan).codec == values(plan).codec and 1.0 < row.cf < plan.cf
        )
        return any(row.efficiency is not None and not self._within(row.efficiency) for row in weaker)

    def keeps(self, plan: Plan) -> bool:
        """Return whether a plan may be held: it keeps the bound, see ``accepted_loss``."""
        if plan.cf == 1.0:
            return True
        found = self.efficiency(plan)
        if found is None or not self._within(found):
            return False
        return self._measured(plan) is not None or self._reliable(plan)

    def _within(self, found: float, leeway: float = 0.0) -> bool:
        return found >= 1.0 - (1.0 + leeway) * accepted_loss(self.bound, self.space) - efficiency.ROUNDING

    def fresh(self, plan: Plan) -> bool:
        """Return whether a plan was measured since the step time last moved."""
        return plan in self.seen and self.seen[plan].fresh

    def seconds(self, plan: Plan) -> float:
        """Return the seconds of a step: measured, or else predicted."""
        return max(1e-9, self.seen[plan].step_seconds) if self.fresh(plan) else self.model.seconds(plan)

    def score(self, plan: Plan) -> float:
        """Return η / seconds of a step."""
        return (self.efficiency(plan) or 0.0) / self.seconds(plan)

    def most(self, plan: Plan) -> float:
        """Return the most that η / seconds of a step can be."""
        return (self.efficiency(plan) or 0.0) / self.model.least_seconds(plan)

    def untried(self) -> list[Plan]:
        """Return the plans that were not measured and are expected to keep the bound.

        Before any plan was tried, these are also those that lose little more and whose trial shows what they lose:
        from the optimizer's own state it shows most, and a later one starts from the state that another plan left.
        """
        first = self.space.kind not in efficiency.TELLING and all(plan == DENSE for plan in self.seen)
        allowed = self.may_keep if first else self.keeps
        return [plan for plan in self._left_to_try() if allowed(plan)]

    def doubtful(self) -> list[Plan]:
        """Return the plans that may be tried though they are not expected to keep the bound, the most likely first."""
        found = [plan for plan in self._left_to_try() if not self.keeps(plan) and self.may_keep(plan)]
        return sorted(found, key=lambda plan: -(self.efficiency(plan) or 0.0))

    def _left_to_try(self) -> list[Plan]:
        return [plan for plan in self.space.plans if not self.fresh(plan) and plan not in self.resting]

    def tried(self) -> list[Plan]:
        """Return the plans that were measured and may be held."""
        return [
            plan
            for plan in self.space.plans
            if self.fresh(plan) and plan not in self.resting and self.keeps(plan)
        ]

    def best(self, plans: Iterable[Plan]) -> Plan | None:
        """Return the plan with the highest useful throughput, of equals the first; None of none."""
        return max(plans, key=self.score, default=None)

    def candidates(
        self, chosen: Plan, trying: bool, samples: float, gains: dict[Plan, float]
    ) -> tuple[Candidate, ...]:
        """Return the rows of a decision. Throughput is given where it was measured, else as predicted.

        Args:
            chosen: Plan of the decision.
            trying: Whether it is only being tried.
            samples: Of one step, all ranks.
            gains: Measured in this window.
        """
        return tuple(self._row(plan, chosen, trying, samples, gains.get(plan)) for plan in self.space.plans)

    def _row(self, plan: Plan, chosen: Plan, trying: bool, samples: float, gain: float | None) -> Candidate:
        row, likely = self.seen.get(plan), self.efficiency(plan)
        rate = None if row is None else min(MOST, samples / max(1e-9, row.step_seconds))
        known = any(row.fresh for row in self.seen.values())
        predicted = None if not known or self.fresh(plan) else min(MOST, samples / self.seconds(plan))
        return Candidate.model_validate(
            {
                "cf": plan.cf,
                "codec": plan.codec,
                "gain": 1.0 if plan == DENSE else gain,
                "samples_per_second": rate,
                "useful_samples_per_second": None if rate is None or likely is None else rate * likely,
                "window": None if row is None else row.window,
                "verdict": self._verdict(plan, chosen, trying),
                "efficiency": likely,
                "predicted_samples_per_second": predicted,
            }
        )

    def _verdict(self, plan: Plan, chosen: Plan, trying: bool) -> str:
        if plan == chosen:
            return "trying" if trying else "chosen"
        measured = plan in self.seen
        if not (self.keeps(plan) if measured else self.may_keep(plan)):
            return "too_strong"
        return "passed" if measured else "untried"


def accepted_loss(bound: float, space: Space) -> float:
    """Return the largest loss of η of a plan that may be held; of plans that the user listed the bound alone counts."""
    return bound if space.limited else min(bound, MOST_LOST)


def before_any_window(space: Space, bound: float, state: AutoState) -> Outlook:
    """Return the outlook before anything was measured but the network."""
    return outlook(space, bound, PlanTimeModel(space, (), 1.0, 0.0, 0.0, determined=False), state, 0)


def outlook(space: Space, bound: float, model: PlanTimeModel, state: AutoState, window: int) -> Outlook:
    """Return the outlook by a state after a window."""
    resting = frozenset(rest.plan for rest in state.resting if rest.until > window)
    seen = {row.plan: row for row in state.seen}
    left = frozenset(rest.plan for rest in state.resting)
    return Outlook(space, bound, model, seen, state.severity, state.confirmed, window, resting, left)
