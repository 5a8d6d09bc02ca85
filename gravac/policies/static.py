"""Fixed compression: one CF for the whole run, or none at all. What people do without a controller."""

from typing import ClassVar, Self

from pydantic import Field

from gravac.policies.base import ConfiguredPolicy, PolicySettings, PolicyState, Verdict, narrow
from gravac.policies.windows import first_decision, gain_of, levels_under, next_decision, unusable
from gravac.protocol import CompressionFactor, JobSpec, Ratio, WindowReport


class StaticState(PolicyState):
    """``warmup_left``: dense windows still to come."""

    warmup_left: int = Field(ge=0)


class StaticSettings(PolicySettings):
    """The CF to send, and when to begin."""

    cf: CompressionFactor = Field(
        description="Compression factor to hold: elements in / elements kept, 1 to 1e9."
    )
    warmup_windows: int = Field(
        default=0, ge=0, le=1_000_000, description="Dense windows before the CF, to have a baseline."
    )
    epsilon: Ratio = Field(
        default=0.0,
        description="Least gain, 0 to 1, at which a step is sent compressed; below it, dense. 0: always compressed.",
    )

    def fitted(self, spec: JobSpec) -> Self:
        return self.model_copy(update={"cf": spec.reached(None, self.cf)})


class StaticPolicy(ConfiguredPolicy[StaticSettings]):
    """Hold one CF, whatever it costs; if ``warmup_windows`` is set, after a dense baseline."""

    name: ClassVar[str] = "static"
    source: ClassVar[str] = "one CF for the whole run, the baseline of most papers on compression"
    State: ClassVar[type[PolicyState]] = StaticState
    Settings: ClassVar[type[PolicySettings]] = StaticSettings
    examples: ClassVar[tuple[str, ...]] = ("cf=40,warmup_windows=2", "cf=1,epsilon=1")

    def ladder(self) -> tuple[float, ...]:
        return tuple(sorted({1.0, self.settings.cf}))

    def start(self, epoch: int = 0) -> Verdict:
        """Return dense while the baseline is measured, else the CF at once."""
        settings = self.settings
        warming = settings.warmup_windows > 0
        cf = 1.0 if warming else settings.cf
        decision = first_decision(
            epoch,
            "warmup" if warming else "hold",
            cf,
            f"Dense for {settings.warmup_windows} windows, then the static policy holds CF {settings.cf:g}."
            if warming
            else f"The static policy holds CF {settings.cf:g}.",
            epsilon=settings.epsilon,
        )
        return Verdict(decision, StaticState(decision=decision, warmup_left=settings.warmup_windows))

    def decide(self, state: PolicyState, report: WindowReport) -> Verdict:
        """Count down the dense windows, then hold."""
        state = narrow(state, StaticState)
        previous, left, cf = state.decision, state.warmup_left, self.settings.cf
        if left == 0:
            # The CF again, as a state may come from a policy with another one.
            reason = self._holding(report)
            decision = next_decision(previous, report, "fixed", reason, minimum=cf, candidate=cf)
        elif not levels_under(report, previous):
            decision = unusable(previous, report)
        elif left > 1:
            left -= 1
            decision = next_decision(previous, report, "warmup", f"Dense baseline: {left} more windows.")
        else:
            left = 0
            reason = f"The dense baseline is measured: from here the static policy holds CF {cf:g}."
            decision = next_decision(
                previous, report, "fixed", reason, phase="hold", minimum=cf, candidate=cf
            )
        return Verdict(decision, StaticState(decision=decision, warmup_left=left))

    def _holding(self, report: WindowReport) -> str:
        gain = gain_of(report, self.settings.cf)
        keeps = "" if gain is None else f", which keeps {gain:.2f} of the gradient"
        return f"The static policy holds CF {self.settings.cf:g}{keeps}."


class DenseState(PolicyState):
    """Nothing changes but the number of the last window."""


class DenseSettings(PolicySettings):
    """The dense policy has no settings."""


class DensePolicy(ConfiguredPolicy[DenseSettings]):
    """Never compress: bit-identical to plain data-parallel training, and the baseline of every other policy."""

    name: ClassVar[str] = "dense"
    source: ClassVar[str] = "plain data-parallel training"
    State: ClassVar[type[PolicyState]] = DenseState
    Settings: ClassVar[type[PolicySettings]] = DenseSettings

    def ladder(self) -> tuple[float, ...]:
        return (1.0,)

    def start(self, epoch: int = 0) -> Verdict:
        """Return CF 1."""
        decision = first_decision(epoch, "hold", 1.0, "The dense policy never compresses.")
        return Verdict(decision, DenseState(decision=decision))

    def decide(self, state: PolicyState, report: WindowReport) -> Verdict:
        """Return CF 1 again."""
        state = narrow(state, DenseState)
        decision = next_decision(state.decision, report, "fixed", "The dense policy never compresses.")
        return Verdict(decision, DenseState(decision=decision))
