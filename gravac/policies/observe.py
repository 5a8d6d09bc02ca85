"""Observe: dense steps, and what compressing them would be worth, by the rule of policy auto."""

from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import Field

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

COUNTS = 0.05
"""Loss of time that is worth a word. [share of a step; chosen]"""
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
            "".join(_verdict(search, known))[:1000],
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


def _verdict(search: Search, state: ObserveState) -> Iterator[str]:
    """Yield verdict, why and next."""
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
        following = _advice(search)
    parts = ", ".join(
        f"{WORDS[name]} {format_percent(each / total)}"
        for name, each in phases.items()
        if each >= 0.001 * total
    )
    yield (
        f"{WHY}{search.table.ranks} ranks exchange {format_bytes(search.table.dense.payload_bytes)} of gradients a "
        f"step; of a step, {parts}"
    )
    if state.noise_scale is not None:
        yield f"; the noise scale of the gradient is {format_number(state.noise_scale)} samples"
    yield f".{NEXT}{following}."


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
