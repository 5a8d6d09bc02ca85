"""Observe: dense steps, and what compressing them would be worth, by the rule of policy auto."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from gravac.policies.auto.outlook import Outlook
from gravac.policies.auto.policy import AutoPolicy
from gravac.policies.auto.rule import AutoEvaluation
from gravac.policies.auto.settings import AutoState
from gravac.policies.base import DENSE, Plan, PolicyState, Verdict, narrow
from gravac.policies.windows import first_decision, next_decision
from gravac.protocol import Count, PhaseSeconds, Seconds, WindowReport
from gravac.signals import figures
from gravac.wording import format_bytes, format_number, format_percent, format_seconds

COUNTS = 0.05
"""From which a loss of time is worth a word. [share of a step; chosen]"""
WHY, NEXT = " Why: ", " Next: "
"""What the second and the third sentence of a verdict begin with."""
WORDS = {
    "data_wait": "data loader",
    "compute": "computation",
    "compress": "encoding",
    "communicate": "waiting for the network",
    "decompress": "decoding",
}
FASTER = {
    "data_wait": "load data faster, for which a step waits {} of its time: give the loader more workers",
    "compute": "speed up computation, {} of a step: lower precision, torch.compile, larger batches",
}
"""What to do about the largest loss where it is not communication."""


class ObserveState(AutoState):
    """``phases``: of all windows, the mean over ranks; ``late``: of that, waiting for slower ranks; ``steps``: their
    number. ``noise_scale``: of the gradient, in samples, as last measured; null: not known.
    """

    phases: PhaseSeconds = PhaseSeconds(
        data_wait=0.0, compute=0.0, compress=0.0, communicate=0.0, decompress=0.0
    )
    late: Seconds = 0.0
    steps: Count = 0
    noise_scale: Annotated[float, Field(ge=0, le=1e300)] | None = None


class ObservePolicy(AutoPolicy):
    """Never compress, and say whether steps wait for the network and what policy auto would do about it."""

    name: ClassVar[str] = "observe"
    source: ClassVar[str] = "gravac's own: dense steps, judged by the rule of policy auto"
    State: ClassVar[type[PolicyState]] = ObserveState
    examples: ClassVar[tuple[str, ...]] = ("bound=0.2",)

    def ladder(self) -> tuple[float, ...]:
        return (1.0,)

    def start(self, epoch: int = 0) -> Verdict:
        """Return dense."""
        decision = first_decision(epoch, "hold", 1.0, "Observing dense steps: nothing is compressed.")
        return Verdict(decision, ObserveState(decision=decision))

    def decide(self, state: PolicyState, report: WindowReport) -> Verdict:
        """Return dense again, with the verdict on all windows so far as the reason."""
        known = _added(narrow(state, ObserveState), report, self._space.ranks)
        return _Observed(self.settings, self._space, known, report).decide()


def lines(reason: str) -> list[str]:
    """Return the verdict in a reason as lines: verdict, why, next."""
    for begin in (WHY, NEXT):
        reason = reason.replace(begin, f"\n{begin.strip()} ", 1)
    return reason.splitlines()


def _added(state: ObserveState, report: WindowReport, ranks: int) -> ObserveState:
    """Return the state with the times of a window."""
    before, window, steps = state.phases, report.phases, figures.steps(report)
    if report.phase == "fallback" or steps <= 0:
        return state
    total = {name: getattr(before, name) + getattr(window, name) for name in PhaseSeconds.model_fields}
    # The rank that waits least is the one that the others wait for.
    least = window.communicate if report.spread is None else report.spread.communicate[0]
    late = state.late + max(0.0, window.communicate - least)
    noise = figures.noise_scale_samples(report, ranks)
    if max(*total.values(), late) > 1e9:
        return state
    return state.model_copy(
        update={
            "phases": PhaseSeconds(**total),
            "late": late,
            "steps": min(2**53, state.steps + steps),
            "noise_scale": state.noise_scale if noise is None else min(1e300, noise),
        }
    )


@dataclass(slots=True)
class _Observed(AutoEvaluation):
    """One window of dense steps, as policy auto sees it."""

    def decide(self) -> Verdict:
        row = self.row(DENSE) if self.measured is None else self.note(self.measured, weight=0.3)
        view = self.view(row)
        option = None if row is None else self._option(view)
        chosen = option if option is not None and self._wins(view, option, DENSE) else DENSE
        decision = next_decision(
            self.state.decision,
            self.report,
            "fixed",
            "".join(self._verdict(view, chosen))[:1000],
            phase="hold",
            minimum=1.0,
            candidate=1.0,
            candidates=view.candidates(DENSE, False, self.samples, {}),
            codec=None,
        )
        return Verdict(decision, self.state.model_copy(update={"decision": decision}))

    def _verdict(self, view: Outlook, chosen: Plan) -> Iterator[str]:
        """Yield verdict, why and next."""
        state = narrow(self.state, ObserveState)
        phases = {name: getattr(state.phases, name) for name in PhaseSeconds.model_fields}
        total, exposed = sum(phases.values()), phases["communicate"]
        if not state.steps or total <= 0.0:
            yield "Observing dense steps: no step was measured yet."
            return
        share, step = exposed / total, total / state.steps
        said = (
            f"{format_percent(share)} of a step is exposed communication ({format_seconds(exposed / state.steps)} of "
            f"{format_seconds(step)})"
        )
        if share < COUNTS:
            yield f"Not the network: {said}; compression can save at most that."
            loss = "data_wait" if phases["data_wait"] >= COUNTS * total else "compute"
            following = FASTER[loss].format(format_percent(phases[loss] / total))
        elif state.late > exposed / 2:
            late = format_seconds(state.late / state.steps)
            yield f"Late ranks, not the network: {said}, {late} of it waiting for slower ranks."
            following = "find what keeps the slowest rank, on which the others wait"
        else:
            yield f"Network: {said}."
            following = self._advice(view, chosen)
        dense = self.space.costs[DENSE]
        parts = ", ".join(
            f"{WORDS[name]} {format_percent(each / total)}"
            for name, each in phases.items()
            if each >= 0.001 * total
        )
        yield (
            f"{WHY}{self.space.ranks} ranks exchange {format_bytes(dense.payload_bytes)} of gradients a step; of a "
            f"step, {parts}"
        )
        if state.noise_scale is not None:
            yield f"; the noise scale of the gradient is {format_number(state.noise_scale)} samples"
        yield f".{NEXT}{following}."

    def _advice(self, view: Outlook, chosen: Plan) -> str:
        """Return what policy auto would do about a slow network."""
        if chosen == DENSE:
            if self.row(DENSE) is None:
                return "go on: too few steps are settled to say what a plan would be worth"
            kept = format_percent(1.0 - self.accepted)
            return f"stay dense: no plan that is expected to keep {kept} of the progress is predicted to win"
        rate = self.samples * view.score(chosen)
        times = view.score(chosen) / max(1e-30, view.score(DENSE))
        return (
            f"compress gradients {format_number(self.space.fewer(chosen))}x with {self.space.label(chosen)}: steps of "
            f"about {format_seconds(view.seconds(chosen))}, expected to keep "
            f"{format_percent(view.efficiency(chosen) or 0.0)} of the progress of each, so {format_number(rate)} "
            f'useful samples/s, {format_number(times)} times those of dense, by policy="auto"'
        )
