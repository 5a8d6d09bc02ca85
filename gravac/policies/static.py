"""One CF for the whole run, optionally after a dense baseline: what people do without a controller."""

from typing import ClassVar

from pydantic import Field

from gravac.policies.base import PolicyState, Verdict
from gravac.policies.measure import gain_of
from gravac.policies.settings import Configured, PolicySettings, narrow
from gravac.policies.succession import counting_levels, follow, unusable
from gravac.protocol import CompressionFactor, Decision, Ratio, WindowReport


class StaticState(PolicyState):
    """``warmup_left``: dense windows still to come."""

    warmup_left: int = Field(ge=0)


class StaticSettings(PolicySettings):
    """What to send, and from when."""

    cf: CompressionFactor = Field(
        description="Compression factor to hold: elements in / elements kept, 1 to 1e9."
    )
    warmup_windows: int = Field(
        default=0, ge=0, le=1_000_000, description="Dense windows before it, to have a baseline."
    )
    epsilon: Ratio = Field(
        default=0.0,
        description="Least gain, 0 to 1, at which a step is sent compressed; below it, dense. 0: always.",
    )


class StaticPolicy(Configured[StaticSettings]):
    """Hold at one CF, whatever it costs."""

    name: ClassVar[str] = "static"
    source: ClassVar[str] = "one CF for the whole run, the baseline of most papers on compression"
    State: ClassVar[type[PolicyState]] = StaticState
    Settings: ClassVar[type[PolicySettings]] = StaticSettings

    def largest_cf(self) -> float:
        """The CF to hold."""
        return self.settings.cf

    def start(self, epoch: int = 0) -> Verdict:
        """Dense while the baseline is measured, else the CF at once."""
        settings = self.settings
        warming = settings.warmup_windows > 0
        cf = 1.0 if warming else settings.cf
        decision = Decision(
            window=-1,
            epoch=epoch,
            phase="warmup" if warming else "hold",
            cf_minimum=cf,
            cf_candidate=cf,
            epsilon=settings.epsilon,
            rule="start",
            reason=(
                f"Dense for {settings.warmup_windows} windows, then the static policy holds CF {settings.cf:g}."
                if warming
                else f"The static policy holds CF {settings.cf:g}."
            ),
        )
        return Verdict(decision, StaticState(decision=decision, warmup_left=settings.warmup_windows))

    def decide(self, state: PolicyState, report: WindowReport) -> Verdict:
        """Count down the dense windows, then hold."""
        state = narrow(state, StaticState)
        previous, left = state.decision, state.warmup_left
        if left == 0:
            decision = follow(previous, report, "fixed", self._holding(report))
        elif not counting_levels(report, previous):
            decision = unusable(previous, report)
        elif left > 1:
            left -= 1
            decision = follow(previous, report, "warmup", f"Dense baseline: {left} more windows.")
        else:
            left, cf = 0, self.settings.cf
            reason = f"The dense baseline is measured: from here the static policy holds CF {cf:g}."
            decision = follow(previous, report, "fixed", reason, phase="hold", minimum=cf, candidate=cf)
        return Verdict(decision, StaticState(decision=decision, warmup_left=left))

    def _holding(self, report: WindowReport) -> str:
        gain = gain_of(report, self.settings.cf)
        kept = "" if gain is None else f", which keeps {gain:.2f} of the gradient"
        return f"The static policy holds CF {self.settings.cf:g}{kept}."
