"""GraVAC: find the compression factor with the best T_comp = T_sys · gain while training, and say why.

Tyagi & Swany, "GraVAC: Adaptive Compression for Communication-Efficient Distributed DL Training", IEEE CLOUD
2023 (arXiv 2305.12201). ``variant="fixed"`` repairs what is wrong in the printed algorithm (``docs/gravac.md``
lists it); ``variant="paper"`` does what is printed. The gate of each step (candidate, else minimum, else dense)
is the ranks'; this decides, once a window, what the gate is about.
"""

from typing import ClassVar

from gravac.policies.base import PolicyState, Verdict
from gravac.policies.gravac import paper, table
from gravac.policies.gravac.explore import explore, warmup
from gravac.policies.gravac.hold import hold
from gravac.policies.gravac.settings import GravacSettings, GravacState
from gravac.policies.gravac.turn import Turn
from gravac.policies.settings import Configured, PolicySettings, narrow
from gravac.policies.succession import counting_levels, unusable
from gravac.protocol import Decision, WindowReport

_RULES = {"warmup": warmup, "explore": explore, "hold": hold}


class GravacPolicy(Configured[GravacSettings]):
    """Adaptive compression on a fixed ladder; see ``GravacSettings`` for what can be set."""

    name: ClassVar[str] = "gravac"
    source: ClassVar[str] = "Tyagi and Swany 2023, GraVAC, algorithm 1"
    State: ClassVar[type[PolicyState]] = GravacState
    Settings: ClassVar[type[PolicySettings]] = GravacSettings

    def largest_cf(self) -> float:
        """The last rung."""
        settings = self.settings
        return paper.reachable(settings)[-1] if settings.variant == "paper" else settings.rungs[-1]

    def start(self, epoch: int = 0) -> Verdict:
        """Dense, to measure the baseline (paper variant: the first two rungs at once)."""
        settings = self.settings
        if settings.variant == "paper":
            return paper.start(settings, epoch)
        windows = settings.warmup_windows
        decision = Decision(
            window=-1,
            epoch=epoch,
            phase="warmup",
            cf_minimum=1.0,
            cf_candidate=1.0,
            epsilon=settings.epsilon,
            rule="start",
            reason=f"First {windows} dense {'window' if windows == 1 else 'windows'}, to have a baseline.",
            candidates=table.fresh(settings.rungs),
        )
        return Verdict(decision, GravacState.beginning(decision, windows, multiplier=None))

    def decide(self, state: PolicyState, report: WindowReport) -> Verdict:
        """Decide after one window; see ``explore``, ``hold`` and ``paper`` for the rules."""
        turn = Turn(self.settings, narrow(state, GravacState), report)
        if self.settings.variant == "paper":
            return paper.decide(turn)
        if not self._fits(turn.previous):
            reason = "The ladder is not the one this job was started with: measuring again, from dense up."
            return turn.measure_again("reexplore", reason, windows=self.settings.warmup_windows)
        if not turn.seen and not counting_levels(report, turn.previous):
            decision = unusable(turn.previous, report)
            return Verdict(decision, turn.state.model_copy(update={"decision": decision}))
        return _RULES[turn.previous.phase](turn)

    def _fits(self, decision: Decision) -> bool:
        """Whether a decision is one these settings can go on from (a resumed state may come from others)."""
        rungs = self.settings.rungs
        lowest = 1 if decision.phase == "explore" else 0
        return (
            decision.phase in _RULES
            and tuple(row.cf for row in decision.candidates) == rungs
            and decision.cf_minimum in rungs
            and decision.cf_candidate in rungs[lowest:]
        )
