"""Accordion (Agarwal et al. 2021, MLSys, arXiv 2010.16248): each layer is sent mildly or strongly compressed.

At the end of each interval of steps a layer's gradients, summed, are compared with those of the interval before. Where
the norm changed much, the layer is in a critical regime and is compressed mildly in the next interval, else strongly.
When the learning rate drops, all layers are compressed mildly. Biases and the weights of norms (1-D parameters) are
always sent dense.

The paper's intervals are 10 epochs, of which the gradients of one are summed. Here both are given in steps, as short
runs have few epochs.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gravac.memories import Bucket
from gravac.wording import did_you_mean
from gravac_agent.exchange.plan import StepPlan
from gravac_lab.simulate.plans import PlanError, StaticPlan, parse
from gravac_lab.simulate.ranks import is_layer
from gravac_lab.tournament.rows import ACCORDION

EXAMPLE = f"{ACCORDION}:mild=topk+bf16@2,strong=topk+bf16@100,interval=30"
DENSE = parse("dense")
NEEDED = ("mild", "strong", "interval")
SETTINGS = (*NEEDED, "summed", "change", "drop")


@dataclass(frozen=True, slots=True)
class Interval:
    """What is known at the end of an interval.

    Attributes:
        norms: L2 norm of the summed gradients of each layer.
        rate: Learning rate of the next step.
    """

    norms: Mapping[str, float]
    rate: float


@dataclass(frozen=True, slots=True)
class Rule:
    """Which layers are compressed mildly in the next interval. Pure.

    Attributes:
        change: η of the paper: a layer is critical if its norm changed by this share of the last one, or more.
        drop: Share by which the learning rate must fall from one interval to the next for all layers to be critical;
            0: any fall. The paper's schedules fall tenfold at a time, so that it makes no difference there. Under a
            cosine, 0 means that no layer is ever compressed strongly.
    """

    change: float = 0.5
    drop: float = 0.5

    def critical(self, before: Interval | None, now: Interval) -> frozenset[str]:
        """Return the layers to compress mildly.

        Args:
            before: The interval before; None: there was none, so that nothing can be compared and all are critical.
            now: The interval that ends.
        """
        if before is None or (now.rate < before.rate and now.rate <= (1.0 - self.drop) * before.rate):
            return frozenset(now.norms)
        return frozenset(
            name for name, norm in now.norms.items() if not self._calm(before.norms.get(name, 0.0), norm)
        )

    def _calm(self, before: float, now: float) -> bool:
        """Whether a norm changed little. Not where there is nothing to divide by, or a gradient was not finite."""
        return 0.0 < before < math.inf and abs(before - now) / before < self.change


@dataclass(frozen=True, slots=True)
class AccordionPlan:
    """Accordion's settings.

    Attributes:
        text: Text as it was written.
        mild: Plan of critical layers; may be dense.
        strong: Plan of the others, with the same codec and memory.
        interval: Steps between decisions.
        summed: Steps at the end of each interval whose gradients are summed.
        rule: Decides.
    """

    text: str
    mild: StaticPlan
    strong: StaticPlan
    interval: int
    summed: int
    rule: Rule


class Accordion:
    """Chooses the level of each layer during one run. A layer is a parameter with two dimensions or more.

    Args:
        plan: The settings.
        buckets: One for each parameter, as ``ranks.layers_of`` groups them.
    """

    def __init__(self, plan: AccordionPlan, buckets: Sequence[Bucket]) -> None:
        self.plan, self._buckets = plan, buckets
        self._sums = {
            bucket.names[0]: torch.zeros(sum(bucket.numels), dtype=torch.float32)
            for bucket in buckets
            if is_layer(bucket)
        }
        self._critical = frozenset(self._sums)
        self._before: Interval | None = None
        self._steps = self._in_interval = 0
        self._strong = 0.0
        self._levels = self._choose()

    def plans(self, rate: float) -> Sequence[StepPlan]:
        """Return what to send of each bucket in the next step. Decides first if an interval is over.

        Args:
            rate: Learning rate of the next step, in any unit.
        """
        if self._in_interval == self.plan.interval:
            now = Interval({name: float(total.norm()) for name, total in self._sums.items()}, rate)
            self._critical = self.plan.rule.critical(self._before, now)
            self._before, self._in_interval = now, 0
            self._levels = self._choose()
            for total in self._sums.values():
                total.zero_()
        return self._levels

    def observe(self, gradients: Sequence[Sequence[Tensor]]) -> None:
        """Take in the raw gradients of a step, by rank and bucket. What is summed is their mean over ranks."""
        self._steps += 1
        self._in_interval += 1
        self._strong += self._strong_now()
        if self._in_interval > self.plan.interval - self.plan.summed:
            for of_rank in gradients:
                for bucket, gradient in zip(self._buckets, of_rank, strict=True):
                    if is_layer(bucket):
                        self._sums[bucket.names[0]].add_(gradient, alpha=1.0 / len(gradients))

    def figures(self) -> dict[str, float]:
        """Return what a row says besides the curve."""
        return {"strong_share": round(self.strong_share, 4)}

    @property
    def strong_share(self) -> float:
        """Share of the layers' elements that were compressed strongly, over all steps so far."""
        return self._strong / self._steps if self._steps else 0.0

    def _strong_now(self) -> float:
        every = sum(total.numel() for total in self._sums.values())
        strong = sum(total.numel() for name, total in self._sums.items() if name not in self._critical)
        return strong / every if every else 0.0

    def _choose(self) -> list[StepPlan]:
        mild, strong, dense = self.plan.mild.plan(), self.plan.strong.plan(), DENSE.plan()
        return [
            dense if not is_layer(bucket) else mild if bucket.names[0] in self._critical else strong
            for bucket in self._buckets
        ]


def parse_accordion(text: str) -> AccordionPlan:
    """Parse a plan such as ``accordion:mild=topk+bf16@2,strong=topk+bf16@100,interval=30``.

    ``mild`` may be ``dense``. Optional settings are ``summed`` (the whole interval where it is not given), ``change``
    and ``drop``, see ``AccordionPlan`` and ``Rule``. An error memory follows at the end, as ``/MEMORY``.

    Raises:
        PlanError: A part is not valid; names it.
    """
    try:
        return _parsed(text)
    except PlanError as error:
        raise PlanError(f"plan {text!r}: {error}; for example {EXAMPLE}") from None


def _parsed(text: str) -> AccordionPlan:
    body, slash, memory = text.partition("/")
    given = _settings(body.partition(":")[2].split(","))
    missing = [name for name in NEEDED if name not in given]
    if missing:
        raise PlanError(
            f"it has no {' and no '.join(missing)}; a codec's own settings end with its strength, as in @10"
        )
    strong = parse(given["strong"] + slash + memory)
    mild = DENSE if given["mild"] == "dense" else parse(given["mild"] + slash + memory)
    for name, level in (("mild", mild), ("strong", strong)):
        if level.text in ("dense", "alone") and (name, level.text) != ("mild", "dense"):
            raise PlanError(
                f"{name}={level.text} is no strength: write {name}=topk@{10 if name == 'mild' else 100}"
            )
    if mild.compressor not in ("", strong.compressor):
        raise PlanError(
            f"mild={mild.compressor} and strong={strong.compressor} are different codecs: choose one and two strengths"
        )
    if mild.cf > strong.cf:
        raise PlanError(f"mild=…@{mild.cf:g} is stronger than strong=…@{strong.cf:g}: swap them")
    interval = _count("interval", given["interval"])
    summed = _count("summed", given.get("summed", given["interval"]))
    if summed > interval:
        raise PlanError(f"summed={summed} is longer than interval={interval}: give at most the interval")
    rule = Rule(
        _share("change", given.get("change", "0.5"), 1e9), _share("drop", given.get("drop", "0.5"), 1.0)
    )
    return AccordionPlan(text, mild, strong, interval, summed, rule)


def _settings(parts: Iterable[str]) -> dict[str, str]:
    """Return values by setting. A codec may have settings of its own, with commas, before its ``@``."""
    found: dict[str, str] = {}
    last = ""
    for part in parts:
        if last and ":" in found[last] and "@" not in found[last]:
            found[last] += f",{part}"
            continue
        last, equals, value = part.partition("=")
        if not equals or last not in SETTINGS:
            raise PlanError(
                f"{part!r} is no setting{did_you_mean(last, SETTINGS)}: write NAME=VALUE with a name of "
                f"{', '.join(SETTINGS)}"
            )
        if last in found:
            raise PlanError(f"{last} is there twice: remove one")
        found[last] = value
    return found


def _count(name: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise PlanError(f"{name}={text} must be a number of steps, at least 1")
    return number


def _share(name: str, text: str, most: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 <= number <= most:
        raise PlanError(f"{name}={text} must be a number from 0 to {most:g}")
    return number
