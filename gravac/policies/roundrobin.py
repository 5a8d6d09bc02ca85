"""A measuring tour: every CF of a ladder in turn, one window each, again and again."""

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from gravac.policies.base import ConfiguredPolicy, PolicySettings, PolicyState, Verdict, narrow
from gravac.policies.candidates import Candidates, untried, update
from gravac.policies.windows import (
    WindowMeasurement,
    first_decision,
    levels_under,
    measure,
    next_decision,
    unusable,
)
from gravac.protocol import CompressionFactor, Count, Decision, JobSpec, WindowReport
from gravac.wording import format_cf, format_gain, format_number


class RoundRobinState(PolicyState):
    """``turn``: place of the present CF on the ladder, from 0. The decision's ``candidates`` hold the measurements."""

    turn: Count


class RoundRobinSettings(PolicySettings):
    """The CFs to measure, and for how long."""

    cfs: Annotated[tuple[CompressionFactor, ...], Field(min_length=1, max_length=60)] = Field(
        default=(1.0, 10.0, 20.0, 40.0, 160.0, 1000.0),
        description="CFs to measure in turn, ascending. 1 is dense and gives the baseline.",
    )
    min_settled: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        default=3,
        description="Settled steps that a CF needs in its window. With fewer it gets another window.",
    )

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if list(self.cfs) != sorted(set(self.cfs)):
            raise ValueError(f"cfs must ascend strictly, got {self.cfs}")
        return self

    def fitted(self, spec: JobSpec) -> Self:
        return self.model_copy(update={"cfs": tuple(sorted({spec.reached(None, cf) for cf in self.cfs}))})


class RoundRobinPolicy(ConfiguredPolicy[RoundRobinSettings]):
    """Send each CF of ``cfs`` for one window, whatever its gain, then the next, and after the last the first again.

    It measures and does not choose. Step time, gain and T_comp of every CF come from one run, in turns, so that a slow
    change of the network or of the gradients affects all CFs alike. Its trace is the best input for ``gravac whatif``.
    A CF gets another window if its first had too few settled steps.
    """

    name: ClassVar[str] = "roundrobin"
    source: ClassVar[str] = "interleaved measurement, as A/B tests do it"
    State: ClassVar[type[PolicyState]] = RoundRobinState
    Settings: ClassVar[type[PolicySettings]] = RoundRobinSettings
    examples: ClassVar[tuple[str, ...]] = ("cfs=1/10,min_settled=1", "cfs=40/160")

    def ladder(self) -> tuple[float, ...]:
        return self.settings.cfs

    def least_window(self) -> int:
        return self.settings.min_settled

    def start(self, epoch: int = 0) -> Verdict:
        """Return the first CF."""
        cf = self.settings.cfs[0]
        reason = f"Measuring every CF in turn, from {format_cf(cf)} on."
        decision = first_decision(epoch, "explore", cf, reason, candidates=untried(self.settings.cfs))
        return Verdict(decision, RoundRobinState(decision=decision, turn=0))

    def decide(self, state: PolicyState, report: WindowReport) -> Verdict:
        """Note what the window measured and take the next CF."""
        state = narrow(state, RoundRobinState)
        previous, cfs = state.decision, self.settings.cfs
        if tuple(row.cf for row in previous.candidates) != cfs:  # the state is from other settings
            fresh = self.start()
            return self._send(
                previous, report, 0, "reexplore", fresh.decision.reason, fresh.decision.candidates
            )
        if not levels_under(report, previous):
            decision = unusable(previous, report)
            return Verdict(decision, state.model_copy(update={"decision": decision}))
        cf = previous.cf_candidate
        measured = measure(report, previous, self.settings.min_settled).get(cf)
        if measured is None:
            reason = f"Window {report.window} has too few settled steps of {format_cf(cf)}: one more window."
            return self._send(previous, report, state.turn, "extend", reason, previous.candidates)
        rows = update(previous.candidates, {cf: measured})
        turn = (state.turn + 1) % len(cfs)
        reason = f"{_found(measured)}. Next in turn: {format_cf(cfs[turn])}."
        return self._send(previous, report, turn, "fixed", reason, rows)

    def _send(
        self,
        previous: Decision,
        report: WindowReport,
        turn: int,
        rule: str,
        reason: str,
        rows: Candidates,
    ) -> Verdict:
        cf = self.settings.cfs[turn]
        decision = next_decision(
            previous,
            report,
            rule,
            reason,
            phase="explore",
            minimum=cf,
            candidate=cf,
            candidates=rows,
            epsilon=0.0,
        )
        return Verdict(decision, RoundRobinState(decision=decision, turn=turn))


def _found(measured: WindowMeasurement) -> str:
    rate = f"{format_cf(measured.cf)}: {format_number(measured.samples_per_second)} samples/s"
    if measured.cf == 1.0 or measured.gain is None:
        return rate
    useful = format_number(measured.samples_per_second * measured.gain)
    return f"{rate} at gain {format_gain(measured.gain)}, {useful} useful"
