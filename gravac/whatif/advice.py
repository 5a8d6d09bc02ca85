"""Advice: whether to compress, with what, and what it is worth, by predicted steps and expected efficiency."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gravac.policies.auto.outlook import MOST_LOST
from gravac.policies.auto.space import DEFAULT_COMPRESSOR, plans, size_of
from gravac.policies.base import Plan
from gravac.protocol.job import TORCH_ADAM
from gravac.signals import efficiency
from gravac.whatif.exchange import UnknownSizes
from gravac.whatif.timemodel import StepTime
from gravac.wording import format_number, format_percent, format_plan, format_seconds, plan_in_words

WORTH = 0.02
"""Compressing must promise more than this, relative to dense."""
LOWER_BETA = (
    " A β₁ of 0.5 changes dense training, too: with it a GPT and an LSTM ended 2 to 5 % lower in simulated trainings, "
    "and a ResNet 25 % higher (docs/adam.md)."
)
"""What is known of the first of the two (``lab/benchmarks/adam.md``)."""
Steps = Callable[[str, float], StepTime]
"""From codec and CF to the predicted time of a step. Raises UnknownSizes where it cannot be predicted."""


@dataclass(frozen=True, slots=True)
class PlanOption:
    """One plan.

    Attributes:
        codec: What it sends with; dense: nothing is compressed.
        cf: Compression factor; 1: dense.
        step: Predicted time of a step.
        efficiency: Expected η.
        speedup: Useful throughput relative to dense: step of dense / step · η.
        keeps: Whether η keeps the bound and is reliable.
        low: Lowest credible η.
    """

    codec: str
    cf: float
    step: StepTime
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
        sentence: The advice in words.
    """

    options: tuple[PlanOption, ...]
    chosen: PlanOption
    sentence: str


def usual_plans(compressor: str = DEFAULT_COMPRESSOR, kind: str = "other") -> tuple[Plan, ...]:
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
) -> Advice:
    """Choose among plans as the auto policy would if every step took what is predicted.

    For torch's Adam and AdamW the sentence says what a smaller β₁ and ``gravac.optim`` would bring, by the same choice.

    Args:
        options: Codec and CF of each plan. Those of which no efficiency or no size is known are left out.
        steps: Predicts the steps.
        kind: Of the optimizer, as in ``gravac.protocol.OptimizerSpec``.
        bound: Largest loss of η that is accepted, 0 to 1. Plans whose η is not ``reliable`` are never chosen.
        margin: What a plan must promise more than dense, relative.
        ranks: World size.
        confirmed: ρ of the job, the part of the mean gradient that is not noise; None: not known.
        optimizer: Name of its class; empty: not known.
    """
    found, best, chosen = _chosen(options, steps, kind, bound, margin, ranks, confirmed)
    sentence = _sentence(found, best, chosen, bound, margin)
    if optimizer in TORCH_ADAM and kind == "adam":
        sentence += _other_rules(
            lambda rule, accepted: _chosen(
                usual_plans(kind=rule), steps, rule, accepted, margin, ranks, confirmed
            )[2],
            chosen,
            optimizer,
            bound,
            margin,
        )
    return Advice(tuple(found), chosen, sentence)


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
    base = steps("dense", 1.0)
    found = [PlanOption("dense", 1.0, base, 1.0, 1.0, True, 1.0)]
    for codec, cf in options:
        expected = None if codec is None else efficiency.of_job(codec, cf, kind, ranks, confirmed)
        if codec is None or expected is None:
            continue
        try:
            step = steps(codec, cf)
        except UnknownSizes:
            continue
        likely = expected.likely
        keeps = likely >= 1.0 - bound and expected.reliable
        speedup = base.seconds / step.seconds * likely
        found.append(PlanOption(codec, cf, step, likely, speedup, keeps, expected.low))
    best = max((option for option in found if option.keeps), key=lambda option: option.speedup)
    return found, best, best if best.speedup > 1.0 + margin else found[0]


def _other_rules(
    choose: Callable[[str, float], PlanOption],
    chosen: PlanOption,
    optimizer: str,
    bound: float,
    margin: float,
) -> str:
    """Return what other kinds of Adam would bring, within the bound or else within what ``auto`` holds at most."""
    for accepted in (bound, MOST_LOST):
        if accepted < bound:
            break
        ways = {
            f"betas=(0.5, …) in {optimizer}": choose("adam-low-beta", accepted),
            f"gravac.optim.{optimizer}": choose("adam-aged", accepted),
        }
        worth = {way: other for way, other in ways.items() if other.speedup > (1.0 + margin) * chosen.speedup}
        if worth:
            found = " and ".join(
                f"with {way} {format_number(other.speedup / chosen.speedup)} times the useful throughput, by "
                f"{other.named} at {format_percent(other.efficiency)} of the progress"
                for way, other in worth.items()
            )
            wider = f", if you accept to lose {format_percent(accepted)}" if accepted > bound else ""
            return f" This link would carry {found}{wider}.{LOWER_BETA * any(way.startswith('betas') for way in worth)}"
    return ""


def _sentence(
    options: Sequence[PlanOption], best: PlanOption, chosen: PlanOption, bound: float, margin: float
) -> str:
    dense = options[0]
    waits = (
        f"a dense step takes {format_seconds(dense.step.seconds)}, {format_seconds(dense.step.exposed)} of it waiting "
        "for the network"
    )
    strongest = max(
        (option for option in options if option.reliable),
        key=lambda option: option.speedup,
    )
    if chosen.cf > 1.0:
        found = (
            f"Compress with {chosen.named}: {waits}; with it {format_seconds(chosen.step.seconds)}, and each is "
            f"expected to keep {format_percent(chosen.efficiency)} of the progress, so training is predicted to be "
            f"{format_number(chosen.speedup)} times as fast."
        )
    else:
        why = "no plan is expected to keep the bound"
        if best.cf > 1.0:
            gain = format_percent(best.speedup - 1.0)
            why = f"the best other plan, {best.named}, is predicted to gain {gain}, too little to count"
        elif any(option.keeps for option in options[1:]):
            why = "every plan is predicted to be slower"
        found = f"Do not compress: {waits}, and {why}."
    fastest = max(options, key=lambda option: option.speedup)
    if not fastest.reliable and fastest.speedup > (1.0 + margin) * chosen.speedup:
        found += (
            f" {fastest.named} is predicted to be {format_number(fastest.speedup)} times as fast as dense, the most of "
            f"all, and is not advised at any bound: it may lose {format_percent(1.0 - fastest.low)} of the progress of "
            "a step, as it did in a simulated training."
        )
    if strongest.speedup > (1.0 + margin) * chosen.speedup and not strongest.keeps:
        lost = format_percent(1.0 - strongest.efficiency)
        found += (
            f" If you accept to lose {lost} of the progress of a step instead of {format_percent(bound)}, "
            f"{strongest.named} is predicted to be {format_number(strongest.speedup)} times as fast as dense."
        )
    return found
