"""A warm-up of the compression factor: early gradients change fast, so more of them is sent at first."""

from itertools import pairwise
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from gravac.policies.base import ConfiguredPolicy, PolicySettings, PolicyState, Verdict, narrow
from gravac.policies.windows import first_decision, gain_of, levels_under, next_decision, unusable
from gravac.protocol import CompressionFactor, Count, JobSpec, Phase, Ratio, WindowReport
from gravac.wording import format_cf, format_gain

Windows = Annotated[int, Field(ge=0, le=1_000_000)]


class WarmupState(PolicyState):
    """``passed``: windows of the schedule that are over. Those in fallback do not count."""

    passed: Count


class WarmupSettings(PolicySettings):
    """The ramp and the CF after it. Defaults are those of DGC: a sparsity of 75, 93.75, 98.4, 99.6, then 99.9 %."""

    cf: CompressionFactor = Field(
        default=1000.0, description="Compression factor to hold after the ramp: elements in / elements kept."
    )
    ramp: Annotated[tuple[CompressionFactor, ...], Field(min_length=1, max_length=60)] = Field(
        default=(4.0, 16.0, 64.0, 250.0),
        description="CFs of the ramp, ascending, above 1. CFs that are not below cf are left out.",
    )
    windows: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=10,
        description="Windows at each CF of the ramp. In the paper, each CF lasts for one pass over the data.",
    )
    dense_windows: Windows = Field(
        default=0, description="Dense windows before the ramp, to have a baseline."
    )
    epsilon: Ratio = Field(
        default=0.0,
        description="Least gain, 0 to 1, at which a step is sent compressed; below it, dense. 0: always compressed.",
    )

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if any(lower >= upper for lower, upper in pairwise((1.0, *self.ramp))):
            raise ValueError(f"ramp must ascend strictly from above 1, got {self.ramp}")
        return self

    def fitted(self, spec: JobSpec) -> Self:
        ramp = tuple(sorted({spec.reached(None, cf) for cf in self.ramp}))
        return self.model_copy(update={"cf": spec.reached(None, self.cf), "ramp": ramp})

    @property
    def rungs(self) -> tuple[float, ...]:
        """The CFs of the schedule, the one to hold last."""
        return (*(cf for cf in self.ramp if cf < self.cf), self.cf)


class WarmupPolicy(ConfiguredPolicy[WarmupSettings]):
    """Climb a fixed ramp of CFs, with some windows at each, then hold the last. Measurements do not change it."""

    name: ClassVar[str] = "warmup"
    source: ClassVar[str] = "Lin et al. 2018, Deep Gradient Compression, §3.3, warm-up training"
    State: ClassVar[type[PolicyState]] = WarmupState
    Settings: ClassVar[type[PolicySettings]] = WarmupSettings

    examples: ClassVar[tuple[str, ...]] = (
        "windows=2",
        "cf=40,ramp=3/9/27,windows=1,dense_windows=2,epsilon=0.5",
    )

    def ladder(self) -> tuple[float, ...]:
        return tuple(sorted({1.0, *self.settings.rungs}))

    def start(self, epoch: int = 0) -> Verdict:
        """Return the first CF of the ramp, or dense while the baseline is measured."""
        cf, phase, left = self._at(0)
        decision = first_decision(epoch, phase, cf, self._begins(cf, left), epsilon=self.settings.epsilon)
        return Verdict(decision, WarmupState(decision=decision, passed=0))

    def decide(self, state: PolicyState, report: WindowReport) -> Verdict:
        """Count the window and return what the schedule says for the next one."""
        state = narrow(state, WarmupState)
        previous, passed = state.decision, min(state.passed, self._length)
        counts = bool(levels_under(report, previous))
        if counts:
            passed = min(passed + 1, self._length)
        cf, phase, left = self._at(passed)
        same = (cf, phase) == (previous.cf_candidate, previous.phase)
        if same and not counts:
            decision = unusable(previous, report)
        else:
            decision = next_decision(
                previous,
                report,
                "warmup" if phase == "warmup" else "fixed",
                self._goes_on(report, cf, left) if same else self._begins(cf, left),
                phase=phase,
                minimum=cf,
                candidate=cf,
                epsilon=self.settings.epsilon,
            )
        return Verdict(decision, WarmupState(decision=decision, passed=passed))

    @property
    def _length(self) -> int:
        """Windows until the CF to hold begins."""
        return self.settings.dense_windows + (len(self.settings.rungs) - 1) * self.settings.windows

    def _at(self, passed: int) -> tuple[float, Phase, int]:
        """Return CF and phase of the window after ``passed`` others, and how many windows more send that CF; 0: all."""
        settings, climbed = self.settings, passed - self.settings.dense_windows
        if climbed < 0:
            return 1.0, "warmup", -climbed
        if passed >= self._length:
            return settings.cf, "hold", 0
        return (
            settings.rungs[climbed // settings.windows],
            "explore",
            settings.windows - climbed % settings.windows,
        )

    def _begins(self, cf: float, left: int) -> str:
        if not left:
            return f"From here on the warmup policy holds {format_cf(cf)}."
        later = [rung for rung in self.settings.rungs if rung > cf]
        end = "and holds that" if len(later) == 1 else f"and so on up to {format_cf(later[-1])}"
        sends = "is" if cf == 1.0 else "sends"
        return f"The warmup policy {sends} {format_cf(cf)} for {_windows(left)}, then {format_cf(later[0])}, {end}."

    def _goes_on(self, report: WindowReport, cf: float, left: int) -> str:
        gain = gain_of(report, cf)
        keeps = "" if gain is None or cf == 1.0 else f", which keeps {format_gain(gain)} of the gradient"
        if not left:
            return f"The warmup policy holds {format_cf(cf)}{keeps}."
        if cf == 1.0:
            return f"The dense baseline goes on for {_windows(left)} more."
        return f"The ramp stays at {format_cf(cf)} for {_windows(left)} more{keeps}."


def _windows(count: int) -> str:
    return "1 window" if count == 1 else f"{count} windows"
