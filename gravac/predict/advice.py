"""Advice: whether to compress, with what, and what it is worth, by predicted steps and expected efficiency."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gravac.findings import Finding, severity
from gravac.policies.auto.plans import DEFAULT_COMPRESSOR, DEFAULT_MEMORY, plans, size_of
from gravac.policies.auto.table import MOST_LOST
from gravac.policies.base import Plan
from gravac.predict.exchange import UnknownSizes
from gravac.predict.predictor import Predictor, Scenario
from gravac.predict.recording import Recording
from gravac.predict.samples import tells_network
from gravac.predict.timemodel import StepTime
from gravac.protocol.job import TORCH_ADAM
from gravac.signals import efficiency
from gravac.signals.risk import accepted_loss
from gravac.wording import (
    format_fewer,
    format_number,
    format_percent,
    format_plan,
    format_seconds,
    plan_in_words,
)

WORTH = 0.02
"""Compressing must promise more than this, relative to dense."""
USUAL_BETA = 0.9
"""The least β₁ next to which a smaller one is known to help. [1; simulated]"""
AGED = "adam-aged"
"""The kind of optimizer that ``gravac.optim`` has. Where all are of it, a job may exchange with ``owners``."""
Steps = Callable[[str, float, str], tuple[StepTime, float]]
"""Predicted time of a step, and bytes that a rank hands to collectives, by codec, CF and kind of optimizer.

Raises UnknownSizes where they cannot be predicted.
"""


@dataclass(frozen=True, slots=True)
class PlanOption:
    """One plan.

    Attributes:
        codec: What it sends with; dense: nothing is compressed.
        cf: Compression factor; 1: dense.
        step: Predicted time of a step.
        wire_cf: Bytes that dense hands to collectives / bytes that it does.
        efficiency: Expected η.
        speedup: Useful throughput relative to dense: step of dense / step · η.
        keeps: Whether η keeps the bound and is reliable.
        low: Lowest credible η.
    """

    codec: str
    cf: float
    step: StepTime
    wire_cf: float
    efficiency: float
    speedup: float
    keeps: bool
    low: float

    @property
    def reliable(self) -> bool:
        """Whether η is at least ``efficiency.LEAST_KEPT`` in every task that was simulated."""
        return self.low >= efficiency.LEAST_KEPT - efficiency.ROUNDING

    @property
    def label(self) -> str:
        """The plan as messages name it."""
        if self.cf == 1.0:
            return "dense"
        return self.codec if size_of(self.codec) is not None else f"{self.codec} at CF {self.cf:g}"

    def record(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "plan": self.label,
            "codec": self.codec,
            "cf": self.cf,
            "wire_cf": self.wire_cf,
            "step_seconds": self.step.seconds,
            "exposed_seconds": self.step.exposed,
            "efficiency": self.efficiency,
            "speedup": self.speedup,
            "keeps_bound": self.keeps,
        }

    @property
    def named(self) -> str:
        """The label, and in brackets the words of tables."""
        words = plan_in_words(self.codec, self.cf)
        return (
            self.label
            if words in (self.label, format_plan(self.codec, self.cf))
            else f"{self.label} ({words})"
        )


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do.

    Attributes:
        options: Every plan that can be predicted, dense first.
        chosen: The best that keeps the bound; dense where nothing else is worth it.
        finding: Whether to compress, why, and with what.
        others: What another optimizer would bring; empty: nothing, or not known.
    """

    options: tuple[PlanOption, ...]
    chosen: PlanOption
    finding: Finding
    others: str


def usual_plans(compressor: str = DEFAULT_COMPRESSOR, kind: str = "unknown") -> tuple[Plan, ...]:
    """Return the plans that the auto policy chooses from by default, and the strengths of a job's compressor."""
    found = (
        Plan(codec or each, cf)
        for each in (DEFAULT_COMPRESSOR, compressor)
        for codec, cf in plans((), each, kind)
    )
    return tuple(dict.fromkeys(plan for plan in found if plan.cf > 1.0))


def advise(
    options: Sequence[Plan],
    steps: Steps,
    kind: str,
    bound: float,
    margin: float = WORTH,
    *,
    ranks: int,
    confirmed: float | None = None,
    optimizer: str = "",
    beta: float | None = None,
) -> Advice:
    """Choose among plans as the auto policy would if every step took what is predicted.

    For torch's Adam and AdamW it says what a smaller β₁ and ``gravac.optim`` would bring, by the same choice.

    Args:
        options: Codec and CF of each plan. Those of which no efficiency or no size is known are left out.
        steps: Predicts the steps.
        kind: Kind of the optimizer, as in ``gravac.protocol.OptimizerSpec``.
        bound: Largest loss of η that is accepted, 0 to 1. Plans whose η is not ``reliable`` are never chosen.
        margin: What a plan must promise more than dense, relative.
        ranks: Ranks whose payloads meet.
        confirmed: ρ of the job, the part of the mean gradient that is not noise; None: not known.
        optimizer: Name of its class; empty: not known.
        beta: Its β₁; None: not known.
    """
    found, best, chosen = _chosen(options, steps, kind, bound, margin, ranks, confirmed)
    others = ""
    if optimizer in TORCH_ADAM and kind == "adam":
        others = _other_optimizers(
            lambda rule, accepted: _chosen(
                options if rule == kind else usual_plans(kind=rule),
                steps,
                rule,
                accepted,
                margin,
                ranks,
                confirmed,
            )[2],
            optimizer,
            bound,
            margin,
            lower_beta=beta is None or beta >= USUAL_BETA,
        )
    return Advice(tuple(found), chosen, _finding(found, best, chosen, kind, bound, margin), others)


def advise_job(
    predictor: Predictor, scenario: Scenario, kind: str, bound: float, optimizer: str, beta: float | None
) -> Advice:
    """Choose among the usual plans of a job that was recorded.

    Args:
        predictor: Predictor of its steps.
        scenario: Scenario to train in; its compressor does not count.
        kind: See ``advise``.
        bound: See ``advise``.
        optimizer: See ``advise``.
        beta: See ``advise``.
    """
    own, confirmed = predictor.recording.spec.compressor, predictor.recording.confirmed

    def steps(codec: str, cf: float, rule: str) -> tuple[StepTime, float]:
        aged = scenario.aged if rule == kind else rule == AGED
        predicted = predictor.predict(
            replace(scenario, compressor=own if cf == 1.0 else codec, aged=aged), cf
        )
        return predicted.step, predicted.volume.payload_bytes

    return advise(
        usual_plans(own, kind),
        steps,
        kind,
        bound,
        max(WORTH, predictor.error),
        ranks=predictor.recording.levels.hosts(scenario.ranks),
        confirmed=confirmed,
        optimizer=optimizer,
        beta=beta,
    )


def other_optimizers(recording: Recording) -> str:
    """Return what another optimizer would bring to a job as it was recorded; empty: nothing, or not known."""
    spec = recording.spec
    optimizer, remembers = spec.optimizer, spec.memory.partition(":")[0] == DEFAULT_MEMORY
    known = recording.enough and tells_network(recording)
    if optimizer is None or not (spec.torch_adam and remembers and known):
        return ""
    predictor = Predictor([(recording, None)])
    bound = accepted_loss(spec.policy)
    return advise_job(
        predictor, predictor.scenario(), optimizer.kind, bound, optimizer.name, optimizer.momentum
    ).others


def _chosen(
    options: Sequence[Plan],
    steps: Steps,
    kind: str,
    bound: float,
    margin: float,
    ranks: int,
    confirmed: float | None,
) -> tuple[list[PlanOption], PlanOption, PlanOption]:
    """Return every plan, the best that keeps the bound, and the one to send. Arguments as in ``advise``."""
    base, dense_bytes = steps("dense", 1.0, kind)
    found = [PlanOption("dense", 1.0, base, 1.0, 1.0, 1.0, True, 1.0)]
    for codec, cf in options:
        expected = None if codec is None else efficiency.of_job(codec, cf, kind, ranks, confirmed)
        if codec is None or expected is None:
            continue
        try:
            step, payload_bytes = steps(codec, cf, kind)
        except UnknownSizes:
            continue
        likely = expected.likely
        keeps = likely >= 1.0 - bound and expected.reliable
        speedup = base.seconds / step.seconds * likely
        wire_cf = dense_bytes / max(1.0, payload_bytes)
        found.append(PlanOption(codec, cf, step, wire_cf, likely, speedup, keeps, expected.low))
    best = max((option for option in found if option.keeps), key=lambda option: option.speedup)
    return found, best, best if best.speedup > 1.0 + margin else found[0]


def _other_optimizers(
    choose: Callable[[str, float], PlanOption], optimizer: str, bound: float, margin: float, lower_beta: bool
) -> str:
    """Return what other kinds of Adam would bring, within the bound or else within what ``auto`` holds at most.

    Args:
        choose: Function from the kind of optimizer and the loss that is accepted to the plan.
        optimizer: See ``advise``.
        bound: See ``advise``.
        margin: See ``advise``.
        lower_beta: Whether a smaller β₁ is one of them.
    """
    kinds = {f"gravac.optim.{optimizer}": AGED}
    if lower_beta:
        kinds[f"betas=(0.5, …) in {optimizer}"] = "adam-low-beta"
    for accepted in dict.fromkeys((bound, max(bound, MOST_LOST))):
        now = choose("adam", accepted).speedup
        found = {way: choose(kind, accepted) for way, kind in kinds.items()}
        worth = {way: option for way, option in found.items() if option.speedup > (1.0 + margin) * now}
        if worth:
            lost = format_percent(accepted)
            unless = (
                f"If you accept to lose {lost} of the progress of a step: with "
                if accepted > bound
                else "With "
            )
            ways = " ".join(
                f"{unless}{way}, training is predicted to be {format_number(option.speedup / now)} times as fast as "
                f"with the best plan for torch's {optimizer}. It then sends {option.label}, which is expected to keep "
                f"{format_percent(option.efficiency)} of the progress."
                for way, option in worth.items()
            )
            changes = " A smaller β₁ changes dense training, too: compare held-out losses (docs/adam.md)."
            return f"{ways}{changes * any('betas' in way for way in worth)}"
    return ""


def _finding(
    options: Sequence[PlanOption],
    best: PlanOption,
    chosen: PlanOption,
    kind: str,
    bound: float,
    margin: float,
) -> Finding:
    dense = options[0]
    waits = (
        f"a dense step takes {format_seconds(dense.step.seconds)}, {format_seconds(dense.step.exposed)} of it waiting "
        "for the network"
    )
    strongest = max((option for option in options if option.reliable), key=lambda option: option.speedup)
    fastest = max(options, key=lambda option: option.speedup)
    evidence, actions = [waits], []
    if chosen.cf > 1.0:
        actions.append(
            f"send {format_fewer(chosen.wire_cf)} with {chosen.named}: steps of about "
            f"{format_seconds(chosen.step.seconds)}, each of which is expected to keep "
            f"{format_percent(chosen.efficiency)} of the progress, so training is predicted to be "
            f"{format_number(chosen.speedup)} times as fast"
        )
    else:
        why = "no plan is expected to keep the bound"
        if kind in efficiency.UNSIMULATED:
            why = "no optimizer of this kind was simulated, so nobody knows what a plan would keep of the progress"
        elif best.cf > 1.0:
            gain = format_percent(best.speedup - 1.0)
            why = f"the best other plan, {best.named}, is predicted to gain {gain}, too little to count"
        elif any(option.keeps for option in options[1:]):
            why = "every plan is predicted to be slower"
        evidence = [f"{waits}, and {why}"]
    if not fastest.reliable and fastest.speedup > (1.0 + margin) * chosen.speedup:
        evidence.append(
            f"{fastest.named} would be the fastest, {format_number(fastest.speedup)} times as fast as dense, but is "
            f"not advised at any bound: it may lose {format_percent(1.0 - fastest.low)} of the progress of a step, as "
            "in a simulated training"
        )
    if strongest.speedup > (1.0 + margin) * chosen.speedup and not strongest.keeps:
        lost = format_percent(1.0 - strongest.efficiency)
        actions.append(
            f"if you accept to lose {lost} of the progress of a step instead of {format_percent(bound)}, "
            f"{strongest.named} is predicted to be {format_number(strongest.speedup)} times as fast as dense"
        )
    return Finding(
        kind="stay dense" if chosen.cf == 1.0 else "compress",
        severity=severity(dense.step.exposed / dense.step.seconds),
        evidence=tuple(evidence),
        action="; ".join(actions),
    )
