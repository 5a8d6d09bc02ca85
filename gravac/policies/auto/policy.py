"""The auto policy: codec and strength by predicted useful throughput, within a bound on statistical efficiency."""

from copy import copy
from typing import ClassVar, Self

from gravac.policies.auto import space, timemodel
from gravac.policies.auto.learning import SETTLED
from gravac.policies.auto.outlook import before_any_window
from gravac.policies.auto.rule import START_STEPS, TRIAL_STEPS, AutoEvaluation, at_once
from gravac.policies.auto.settings import AutoSettings, AutoState
from gravac.policies.auto.space import Space
from gravac.policies.base import (
    DENSE,
    ConfiguredPolicy,
    Plan,
    PolicySettings,
    PolicyState,
    Verdict,
    narrow,
)
from gravac.policies.windows import first_decision
from gravac.protocol import JobSpec, WindowReport


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
        self._space: Space = space.unfitted(self.settings.plans)

    def plans(self, compressor: str) -> tuple[Plan, ...]:
        return space.plans(self.settings.plans, compressor, self._space.kind)

    def codecs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(plan.codec for plan in self._space.plans if plan.codec is not None))

    def ladder(self) -> tuple[float, ...]:
        return tuple(sorted({plan.cf for plan in self._space.plans}))

    def least_window(self) -> int:
        return max(SETTLED.values())

    def fitted(self, spec: JobSpec) -> Self:
        """Return this policy with the plans of the job, their costs, and the kind of the job's optimizer."""
        other = copy(self)
        other._space = space.of_job(self.settings.plans, spec)
        return other

    def start(self, epoch: int = 0) -> Verdict:
        """Return a few dense steps, to measure what a step takes; on a slow network the plan that saves most."""
        state = AutoState(
            decision=first_decision(
                epoch,
                "warmup",
                1.0,
                "Dense for a few steps, to measure how long a step waits for the network.",
                window_steps=START_STEPS,
            )
        )
        view = before_any_window(self._space, self.settings.bound, state)
        option = timemodel.clear_start(self._space, view.untried(), view.efficiency)
        if option is None:
            return Verdict(state.decision, state)
        changes = {
            "phase": "explore",
            "cf_minimum": option.cf,
            "cf_candidate": option.cf,
            "codec": option.codec,
            "reason": at_once(view, option),
            "window_steps": TRIAL_STEPS,
        }
        decision = state.decision.model_copy(update=changes)
        return Verdict(decision, state.model_copy(update={"decision": decision, "trials": 1}))

    def decide(self, state: PolicyState, report: WindowReport) -> Verdict:
        """Decide after one window; see ``rule``."""
        found = AutoEvaluation(self.settings, self._space, narrow(state, AutoState), report)
        if not self._fits(found):
            return found.restart(
                "The plans are not those that this job began with: measuring dense steps again."
            )
        return found.decide()

    def _fits(self, found: AutoEvaluation) -> bool:
        """Return whether this policy can continue from a state, which may come from other settings."""
        decision = found.state.decision
        return (
            found.plan in self._space.costs
            and decision.cf_minimum == decision.cf_candidate
            and decision.phase in ("warmup", "explore", "hold")
            and (decision.phase != "warmup" or found.plan == DENSE)
        )
