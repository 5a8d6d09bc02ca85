"""Uniform sampling: every sample equally often, weight 1. Plain SGD, and the baseline of the others."""

from typing import ClassVar, Self

import torch
from torch import Tensor

from gravac.estimators.base import Estimator, FiniteSum, Sample


class Uniform(Estimator):
    """``P(j) = 1/m``. Its expected smoothness is max L_j, so one large sample limits the step of all."""

    name: ClassVar[str] = "uniform"
    source: ClassVar[str] = "Robbins & Monro 1951; arbitrary sampling form: Gower et al. 2019"
    exact_at_optimum: ClassVar[bool] = False

    def __init__(self, samples: int) -> None:
        """``samples``: m of this worker. Raises ValueError below 1."""
        if samples < 1:
            raise ValueError(f"samples={samples}: a worker needs at least 1 sample")
        self._set_probability(torch.full((samples,), 1.0 / samples, dtype=torch.float64))

    @classmethod
    def over(cls, scores: Tensor) -> Self:
        return cls(scores.numel())

    def gradient(self, problem: FiniteSum, x: Tensor, sample: Sample) -> Tensor:
        return problem.gradient(x, sample)
