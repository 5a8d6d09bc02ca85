"""Observe: dense steps, and what compressing them would be worth, by the rule of policy auto."""

from typing import Annotated, ClassVar

from pydantic import Field

from gravac.findings import NEXT, WHY, Finding, StepParts, diagnose
from gravac.policies.auto.beliefs import learn, nothing
from gravac.policies.auto.choose import Search
from gravac.policies.auto.policy import AutoPolicy, candidates
from gravac.policies.auto.say import keeps
from gravac.policies.auto.settings import AutoState
from gravac.policies.base import DENSE, PolicyState, Verdict, narrow
from gravac.policies.windows import first_decision, levels_under, next_decision
from gravac.protocol import Count, PhaseSeconds, Seconds, WindowReport
from gravac.signals import figures
from gravac.wording import format_bytes, format_fewer, format_number, format_percent, format_seconds

LOSSES = {
    "data loader": "data_wait",
    "computation": "compute",
    "encoding": "compress",
    "decoding": "decompress",
}
"""Phases of a step that are no communication, by the names that findings have for them."""


class ObserveState(AutoState):
    """``phases``: of all windows, the mean over ranks; ``steps``: their number. ``compared``: seconds of communication
    in the windows that report each rank's; ``late``: of that, waiting for slower ranks. ``noise_scale``: of the
    gradient, in samples, as last measured; null: not known.
    """

    phases: PhaseSeconds = PhaseSeconds(
        data_wait=0.0, compute=0.0, compress=0.0, communicate=0.0, decompress=0.0
    )
    compared: Seconds = 0.0
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
        table, known = self.table, _added(narrow(state, ObserveState), report, self.table.ranks)
        if levels_under(report, known.decision):
            lesson = learn(table, known.beliefs, report, known.decision, 0.0)
            search = Search(table, known, lesson, report)
        else:
            search = Search(table, known, nothing(known.beliefs), report)
        decision = next_decision(
            known.decision,
            report,
            "fixed",
            " ".join(_verdict(search, known).lines)[:1000],
            phase="hold",
            minimum=1.0,
            candidate=1.0,
            candidates=candidates(search.rows, DENSE, False, report, DENSE),
            codec=None,
        )
        return Verdict(decision, search.state.model_copy(update={"decision": decision}))


def lines(reason: str) -> list[str]:
    """Return the verdict in a reason as lines: verdict, why, next."""
    for begin in (WHY, NEXT):
        reason = reason.replace(f" {begin}", f"\n{begin}", 1)
    return reason.splitlines()


def _added(state: ObserveState, report: WindowReport, ranks: int) -> ObserveState:
    """Return the state with the times of a window."""
    before, window, steps = state.phases, report.phases, figures.steps(report)
    if report.phase == "fallback" or steps <= 0:
        return state
    total = {name: getattr(before, name) + getattr(window, name) for name in PhaseSeconds.model_fields}
    compared, late = state.compared, state.late
    if report.spread is not None:  # the rank that waits least is the one that the others wait for
        compared += window.communicate
        late += max(0.0, window.communicate - report.spread.communicate[0])
    noise = figures.noise_scale_samples(report, ranks)
    if max(*total.values(), compared) > 1e9:
        return state
    return state.model_copy(
        update={
            "phases": PhaseSeconds(**total),
            "compared": compared,
            "late": late,
            "steps": min(2**53, state.steps + steps),
            "noise_scale": state.noise_scale if noise is None else min(1e300, noise),
        }
    )


def _verdict(search: Search, state: ObserveState) -> Finding:
    """Return the verdict on all windows so far."""
    phases, steps = state.phases, state.steps
    total = sum(getattr(phases, name) for name in PhaseSeconds.model_fields)
    if not steps or total <= 0.0:
        return Finding(kind="not measured", severity="unknown", evidence=("no step was measured yet",))
    sent = f"{search.table.ranks} ranks exchange {format_bytes(search.table.dense.payload_bytes)} of gradients a step"
    noise = (
        ()
        if state.noise_scale is None
        else (f"the noise scale of the gradient is {format_number(state.noise_scale)} samples",)
    )
    waiting = None
    if state.compared > 0.0:  # as in the windows that compared ranks
        waiting = min(1.0, state.late / state.compared) * phases.communicate / steps
    parts = StepParts(
        step=total / steps,
        exposed=phases.communicate / steps,
        waiting=waiting,
        losses={name: getattr(phases, phase) / steps for name, phase in LOSSES.items()},
        evidence=(sent, *noise),
    )
    return diagnose(
        parts,
        lambda: _advice(search),
        lambda: "find what delays the slowest rank, for which the others wait",
    )


def _advice(search: Search) -> str:
    """Return what policy auto would do about a slow network."""
    table, dense = search.table, search.row(DENSE)
    if not dense.fresh:
        return "go on: too few steps are settled to say what a plan would be worth"
    chosen = search.option(search.rows, dense)
    if chosen is None:
        kept = format_percent(1.0 - table.accepted)
        return f"stay dense: no plan that is expected to keep {kept} of the progress is predicted to win"
    steps = figures.steps(search.report)
    rate = (search.report.samples or steps) / max(1, steps) * chosen.score
    kept, times = keeps(chosen, "of the progress"), format_number(chosen.score / dense.score)
    return (
        f"send {format_fewer(table.wire_cf(chosen.facts))} with {chosen.facts.label}: steps of about "
        f"{format_seconds(chosen.seconds)}, each of which {kept}, so {format_number(rate)} useful samples/s, "
        f'{times} times those of dense, by policy="auto"'
    )
