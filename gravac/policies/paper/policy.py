"""GraVAC: find the compression factor with the best T_comp = T_sys · gain while training, and say why.

Tyagi & Swany, "GraVAC: Adaptive Compression for Communication-Efficient Distributed DL Training", IEEE CLOUD
2023 (arXiv 2305.12201). ``variant="fixed"`` repairs what is wrong in the printed algorithm (``docs/gravac.md``
lists it); ``variant="paper"`` does what is printed. The ranks apply the gate of each step (candidate, else minimum,
else dense); the policy decides, once a window, which two CFs the gate compares.
"""

from typing import ClassVar

from gravac.policies import candidates
from gravac.policies.base import (
    ConfiguredPolicy,
    GainDenominator,
    PolicySettings,
    PolicyState,
    Verdict,
    narrow,
)
from gravac.policies.paper import printed
from gravac.policies.paper.evaluation import MIN_SETTLED, Evaluation
from gravac.policies.paper.explore import explore, warmup
from gravac.policies.paper.hold import hold
from gravac.policies.paper.settings import PRESETS, GravacSettings, GravacState
from gravac.policies.windows import first_decision, levels_under, unusable
from gravac.protocol import Decision, WindowReport

_RULES = {"warmup": warmup, "explore": explore, "hold": hold}


class GravacPolicy(ConfiguredPolicy[GravacSettings]):
    """Adaptive compression on a fixed ladder; see ``GravacSettings`` for what can be set."""

    name: ClassVar[str] = "gravac"
    source: ClassVar[str] = "Tyagi and Swany 2023, GraVAC, algorithm 1"
    State: ClassVar[type[PolicyState]] = GravacState
    Settings: ClassVar[type[PolicySettings]] = GravacSettings

    examples: ClassVar[tuple[str, ...]] = (
        "ladder=geometric,cf_max=100,warmup_windows=1",
        "ladder=3/9/27,epsilon=0.5,omega=0.2",
        "epsilon=1",
        "variant=paper",
        "variant=paper,ladder=geometric,cf_min=3,cf_max=50,omega=0.3",
        "epsilon=0.2",
        "ladder=geometric,retry_windows=1,denominator=gradient,epsilon=0.1",
        "preset=paper-geometric,variant=fixed",
    )

    def __init__(self, **given: object) -> None:
        preset = given.get("preset")
        published = PRESETS.get(preset, {}) if isinstance(preset, str) else {}  # type: ignore[call-overload]
        super().__init__(**{**published, **given})

    def ladder(self) -> tuple[float, ...]:
        settings = self.settings
        return printed.reachable(settings) if settings.variant == "paper" else settings.rungs

    def least_window(self) -> int:
        return 1 if self.settings.variant == "paper" else MIN_SETTLED

    def smoothing(self, world_size: int) -> float:
        """Return the setting; if it is null, the paper's choice (GraVAC §IV)."""
        return self.settings.smoothing or min(1.0, world_size / 100)

    def gain_denominator(self) -> GainDenominator:
        return self.settings.denominator

    def start(self, epoch: int = 0) -> Verdict:
        """Return dense, to measure the baseline; in the paper variant, the first two rungs at once."""
        settings = self.settings
        if settings.variant == "paper":
            return printed.start(settings, epoch)
        windows = settings.warmup_windows
        decision = first_decision(
            epoch,
            "warmup",
            1.0,
            f"First {windows} dense {'window' if windows == 1 else 'windows'}, to have a baseline.",
            epsilon=settings.epsilon,
            candidates=candidates.untried(settings.rungs),
        )
        return Verdict(decision, GravacState.beginning(decision, windows, multiplier=None))

    def decide(self, state: PolicyState, report: WindowReport) -> Verdict:
        """Decide after one window; see ``explore``, ``hold`` and ``printed`` for the rules."""
        evaluation = Evaluation(self.settings, narrow(state, GravacState), report)
        if self.settings.variant == "paper":
            return printed.decide(evaluation)
        if not self._fits(evaluation.previous):
            reason = "The ladder is not the one this job was started with: measuring again, from dense up."
            return evaluation.restart("reexplore", reason, windows=self.settings.warmup_windows)
        if not evaluation.measured and not levels_under(report, evaluation.previous):
            decision = unusable(evaluation.previous, report)
            return Verdict(decision, evaluation.state.model_copy(update={"decision": decision}))
        return _RULES[evaluation.previous.phase](evaluation)

    def _fits(self, decision: Decision) -> bool:
        """Return whether these settings can continue from a decision. A resumed state may come from others."""
        rungs = self.settings.rungs
        lowest = 1 if decision.phase == "explore" else 0
        return (
            decision.phase in _RULES
            and tuple(row.cf for row in decision.candidates) == rungs
            and decision.cf_minimum in rungs
            and decision.cf_candidate in rungs[lowest:]
        )
