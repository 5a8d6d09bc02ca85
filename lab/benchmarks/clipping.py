"""Where to clip exchanged gradients: learning of simulated ranks under several recipes.

``python -m lab.benchmarks.clipping TASK PLAN MAX_NORM STEPS RECIPE [--spike]`` prints the held-out loss. Recipes:

- ``agent``: as ``Agent.clip_grad_norm_``; ``arrived``: the same, and what waits in the error memory stays as it is;
  ``absolute``: what was not sent of a gradient waits as the share c of it to which the mean was cut, and not as c
  relative to what is usual;
- ``torch``: by the norm of what was exchanged; ``true``: by the norm of the mean raw gradient;
- ``back``: as torch, with what was cut put back into the error memory; ``surplus``: the same for what a dense gradient
  would have kept;
- ``dgc``: each rank's own gradient, before the memory.
"""

import argparse
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gravac.memories import Bucket
from gravac_agent.exchange.plan import StepPlan
from gravac_agent.windows.clipping import Clipped, Clipper
from gravac_lab.simulate.learning import Learner
from gravac_lab.simulate.plans import parse
from gravac_lab.simulate.ranks import Exchanged, SimulatedRanks
from gravac_lab.tasks import make

RECIPES = ("agent", "arrived", "absolute", "torch", "true", "back", "surplus", "dgc")
SPIKE_AT, SPIKE_SIZE = 80, 100.0


class Ranks(SimulatedRanks):
    """Ranks that know the norm of the mean raw gradient, and whose gradients can be changed before the exchange."""

    limit: float | None = None
    """Norm to which each rank's own gradient is clipped; None: not."""
    spike = False
    true_norm = 0.0

    def exchange(
        self,
        buckets: Sequence[Bucket],
        gradients: Sequence[Sequence[Tensor]],
        plan: StepPlan | Sequence[StepPlan],
        step: int,
        surveyed: bool = False,
    ) -> Exchanged:
        for gradient in gradients:
            factor = SPIKE_SIZE if self.spike and step == SPIKE_AT else 1.0
            if self.limit is not None:
                factor *= min(1.0, self.limit / (factor * _norm(gradient)))
            for flat in gradient:
                flat.mul_(factor)
        self.true_norm = _norm([torch.stack(flats).mean(0) for flats in zip(*gradients, strict=True)])
        return super().exchange(buckets, gradients, plan, step, surveyed)


class Other(Clipper):
    """Another recipe in the place of the agent's."""

    def __init__(
        self, ranks: Ranks, buckets: Sequence[Bucket], named: dict[str, nn.Parameter], recipe: str
    ) -> None:
        super().__init__(ranks.size)
        self._all, self._buckets, self._named, self._recipe = ranks, buckets, named, recipe

    def clip(self, parameters: Iterable[nn.Parameter], max_norm: float, *_: Any, **__: Any) -> Clipped:
        """Clip by the recipe."""
        parameters = list(parameters)
        if self._recipe == "arrived":
            return Clipped(super().clip(parameters, max_norm).norm)
        if self._recipe == "absolute":
            before = [param.grad.clone() for param in parameters if param.grad is not None]
            norm = super().clip(parameters, max_norm).norm
            after = [param.grad for param in parameters if param.grad is not None]
            return Clipped(norm, _norm(after) / _norm(before))
        norm = nn.utils.get_total_norm([param.grad for param in parameters if param.grad is not None])
        own, dense = (min(1.0, max_norm / one) for one in (float(norm), self._all.true_norm))
        factor = {"true": dense, "dgc": 1.0}.get(self._recipe, own)
        back = {"back": 1.0 - own, "surplus": max(0.0, dense - own)}.get(self._recipe, 0.0)
        for channels in self._all.channels if back else ():
            for bucket in self._buckets:
                grads = [self._named[name].grad for name in bucket.names]
                flat = torch.cat([grad.flatten() for grad in grads if grad is not None])
                channels.memory.open(bucket).hold_back(flat * back)
            channels.memory.commit()
        for one in parameters:
            if one.grad is not None:
                one.grad.mul_(factor)
        return Clipped(norm)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task")
    parser.add_argument("plan")
    parser.add_argument("max_norm", type=float)
    parser.add_argument("steps", type=int)
    parser.add_argument("recipe", choices=RECIPES)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spike", action="store_true", help="one gradient is 100 times as large")
    parser.add_argument(
        "--rescale",
        choices=("nothing", "residual", "both"),
        default="both",
        help="what follows the learning rate: neither, the residual, or its ages too",
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    task, chosen = replace(make(given.task), clip_norm=given.max_norm), parse(given.plan)
    ranks = Ranks(given.ranks, chosen.compressor or "topk", chosen.memory, seed=given.seed)
    ranks.spike = given.spike
    ranks.limit = given.max_norm / math.sqrt(given.ranks) if given.recipe == "dgc" else None
    learner = Learner(task, given.ranks, given.seed, given.steps, ranks)
    if given.rescale == "nothing":
        vars(learner._followed)["_optimizers"] = []
    elif given.rescale == "residual":
        vars(learner.optimizer)["scaled"] = lambda *_: None
    if given.recipe != "agent":
        named = dict(learner.model.named_parameters())
        learner.clipper = Other(ranks, learner.buckets, named, given.recipe)
    for _ in range(given.steps):
        learner.train(chosen.plan())
    what = f"{given.task} {given.plan} {given.recipe} {given.rescale} seed {given.seed}"
    print(f"{what}: held-out loss {learner.evaluate().loss:.4f}")


def _norm(flats: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float(flat.double().square().sum()) for flat in flats))


if __name__ == "__main__":
    main()
