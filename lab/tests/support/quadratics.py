"""Sums of quadratics, of which every gradient is known, and every estimator there is."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gravac_lab.estimators import ESTIMATORS, Estimator, EstimatorSample, build

KINDS: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in sorted(ESTIMATORS)},
    "lsvrg-importance": {"name": "lsvrg", "base": "importance"},
}
NAMES = list(KINDS)


def made(kind: str, scores: Tensor) -> Estimator:
    return build(scores=scores, **KINDS[kind])


class Quadratics(NamedTuple):
    """f_j(x) = (L_j / 2) ||x - c_j||², ``curvature`` ``(m,)``, ``centres`` ``(m, d)``."""

    curvature: Tensor
    centres: Tensor

    @property
    def samples(self) -> int:
        return len(self.centres)

    def gradient(self, x: Tensor, sample: EstimatorSample) -> Tensor:
        pulls = self.curvature[sample.indices, None] * (x - self.centres[sample.indices])
        return sample.weights @ pulls / len(sample.weights)

    def full_gradient(self, x: Tensor) -> Tensor:
        return (self.curvature[:, None] * (x - self.centres)).mean(0)


def quadratics(seed: int, samples: int = 9, size: int = 4) -> Quadratics:
    generator = torch.Generator().manual_seed(seed)
    curvature = torch.rand(samples, generator=generator, dtype=torch.float64) * 5 + 0.01
    return Quadratics(curvature, torch.randn(samples, size, generator=generator, dtype=torch.float64))


def every_draw(estimator: Estimator) -> list[EstimatorSample]:
    return [EstimatorSample(torch.tensor([j]), estimator.weight[j : j + 1]) for j in range(estimator.samples)]


def expectation(estimator: Estimator, problem: Quadratics, x: Tensor) -> tuple[Tensor, float]:
    """Exact mean and variance of the estimate at ``x``."""
    outcomes = torch.stack([estimator.gradient(problem, x, sample) for sample in every_draw(estimator)])
    mean = estimator.probability @ outcomes
    return mean, float(estimator.probability @ (outcomes - mean).square().sum(1))
