"""Never compress. The baseline every other policy is compared with."""

from typing import ClassVar

from gravac.policies.base import PolicyState, Verdict
from gravac.policies.settings import Configured, PolicySettings, narrow
from gravac.policies.succession import follow
from gravac.protocol import Decision, WindowReport


class DenseState(PolicyState):
    """Nothing changes but the number of the last window."""


class DenseSettings(PolicySettings):
    """Dense has nothing to set."""


class DensePolicy(Configured[DenseSettings]):
    """CF 1 for ever: bit-identical to plain data-parallel training."""

    name: ClassVar[str] = "dense"
    source: ClassVar[str] = "plain data-parallel training"
    State: ClassVar[type[PolicyState]] = DenseState
    Settings: ClassVar[type[PolicySettings]] = DenseSettings

    def largest_cf(self) -> float:
        """Dense."""
        return 1.0

    def start(self, epoch: int = 0) -> Verdict:
        """Hold at CF 1."""
        decision = Decision(
            window=-1,
            epoch=epoch,
            phase="hold",
            cf_minimum=1.0,
            cf_candidate=1.0,
            epsilon=0.0,
            rule="start",
            reason="The dense policy never compresses.",
        )
        return Verdict(decision, DenseState(decision=decision))

    def decide(self, state: PolicyState, report: WindowReport) -> Verdict:
        """Same again."""
        state = narrow(state, DenseState)
        decision = follow(state.decision, report, "fixed", "The dense policy never compresses.")
        return Verdict(decision, DenseState(decision=decision))
