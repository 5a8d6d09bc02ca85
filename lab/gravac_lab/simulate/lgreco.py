"""L-GreCo (Markov et al. 2024, MLSys, arXiv 2210.17357): a strength for each layer, within an error budget.

At the end of each interval the error of each layer's gradient is computed at every strength that is offered, and
``allocation`` chooses the strengths with the fewest bytes whose errors add up to no more than those of one strength for
all layers. Biases and the weights of norms (1-D parameters) are always sent dense.

Gradients are summed over an interval, as in the paper. Only Top-k: its error follows from the gradient by sorting.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gravac.memories import Bucket
from gravac_agent.exchange.plan import StepPlan
from gravac_lab.simulate.allocation import LayerOption, allocate
from gravac_lab.simulate.plans import PlanError, StaticPlan, parse
from gravac_lab.simulate.ranks import is_layer
from gravac_lab.tournament.rows import LGRECO

EXAMPLE = f"{LGRECO}:topk+bf16@10,interval=30"
TIMES = tuple(2.0 ** (step / 2) for step in range(-6, 7))
"""Strengths that a layer may have, as multiples of the uniform one: from an eighth of it to eight times it."""
SELECTORS = ("topk", "topk+bf16")


@dataclass(frozen=True, slots=True)
class LgrecoPlan:
    """L-GreCo's settings.

    Attributes:
        text: Text as it was written.
        uniform: The plan whose error is the budget.
        interval: Steps between decisions; in the first interval every layer has the uniform strength.
    """

    text: str
    uniform: StaticPlan
    interval: int


class Lgreco:
    """Chooses the strength of each layer during one run. A layer is a parameter with two dimensions or more.

    Args:
        plan: The settings.
        buckets: One for each parameter, as ``ranks.layers_of`` groups them.
    """

    def __init__(self, plan: LgrecoPlan, buckets: Sequence[Bucket]) -> None:
        self.plan, self._buckets = plan, buckets
        self._sums = [
            torch.zeros(sum(bucket.numels), dtype=torch.float32) if is_layer(bucket) else None
            for bucket in buckets
        ]
        self._in_interval = 0
        self._cfs = [plan.uniform.cf if is_layer(bucket) else 1.0 for bucket in buckets]
        self._levels = self._plans()

    def plans(self, rate: float) -> Sequence[StepPlan]:
        """Return what to send of each bucket in the next step. Decides first if an interval is over.

        Args:
            rate: Learning rate of the next step, which this rule does not use; Accordion's does.
        """
        if self._in_interval == self.plan.interval:
            self._choose()
            self._in_interval = 0
        return self._levels

    def observe(self, gradients: Sequence[Sequence[Tensor]]) -> None:
        """Take in the raw gradients of a step, by rank and bucket. What is summed is their mean over ranks."""
        self._in_interval += 1
        for of_rank in gradients:
            for total, gradient in zip(self._sums, of_rank, strict=True):
                if total is not None:
                    total.add_(gradient, alpha=1.0 / len(gradients))

    def figures(self) -> dict[str, float]:
        """Return what a row says besides the curve: the largest strength in force / the smallest, of all layers."""
        layers = [cf for cf, total in zip(self._cfs, self._sums, strict=True) if total is not None]
        return {"spread": round(max(layers) / min(layers), 3)} if layers else {}

    def _choose(self) -> None:
        uniform, layers = self.plan.uniform.cf, [total for total in self._sums if total is not None]
        if layers and all(bool(total.isfinite().all()) for total in layers):
            options = [errors(total, [max(1.01, uniform * times) for times in TIMES]) for total in layers]
            budget = math.fsum(row[TIMES.index(1.0)].error for row in options)
            found = allocate(options, budget)
            assert found is not None, "the uniform strength keeps its own budget"
            chosen = iter(found.chosen)
            self._cfs = [1.0 if total is None else next(chosen).cf for total in self._sums]
            self._levels = self._plans()
        for total in layers:
            total.zero_()

    def _plans(self) -> list[StepPlan]:
        return [replace(self.plan.uniform, cf=cf).plan() for cf in self._cfs]


def errors(gradient: Tensor, cfs: Sequence[float]) -> list[LayerOption]:
    """Return what Top-k loses of a gradient at each CF, and the elements that it keeps as bytes.

    Args:
        gradient: Of one layer, flat, shape ``(n,)``.
        cfs: Compression factors.
    """
    n = gradient.numel()
    energies = gradient.double().square().sort().values.cumsum(0)
    found = []
    for cf in cfs:
        kept = min(n, max(1, round(n / cf)))
        lost = 0.0 if kept == n else float(energies[n - kept - 1])
        found.append(LayerOption(cf, math.sqrt(lost), kept))
    return found


def parse_lgreco(text: str) -> LgrecoPlan:
    """Parse a plan such as ``lgreco:topk+bf16@10,interval=30``.

    Raises:
        PlanError: A part is not valid; names it.
    """
    body, slash, memory = text.partition("/")
    sent, comma, setting = body.partition(":")[2].rpartition(",")
    name, _, interval = setting.partition("=")
    if not comma or name != "interval" or not interval.isdecimal() or int(interval) < 1:
        raise PlanError(
            f"plan {text!r} needs a strength and an interval in steps, at least 1; for example {EXAMPLE}"
        )
    uniform = parse(sent + slash + memory)
    if uniform.compressor not in SELECTORS:
        raise PlanError(
            f"plan {text!r}: the errors of {uniform.compressor or uniform.text} are not known without sending; choose "
            f"{' or '.join(SELECTORS)}"
        )
    return LgrecoPlan(text, uniform, int(interval))
