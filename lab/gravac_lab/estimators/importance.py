"""Uniform and importance sampling."""

from typing import ClassVar, Self

import torch
from torch import Tensor

from gravac_lab.estimators.base import Estimator, EstimatorSample, FiniteSum


class Uniform(Estimator):
    """Draws every sample equally often, with weight 1: plain SGD, and the baseline of the others.

    ``P(j) = 1/m``. Its expected smoothness is max L_j, so one large sample limits the step of all.
    """

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

    def gradient(self, problem: FiniteSum, x: Tensor, sample: EstimatorSample) -> Tensor:
        return problem.gradient(x, sample)


class Importance(Estimator):
    """Draws samples in proportion to their scores: ``P(j) = L_j / sum L``, with weight ``mean L / L_j``.

    Expected smoothness falls from max L_j to mean L_j. Right scores make it fast; wrong ones only make it slow, because
    the weights undo any score. ``floor`` mixes in a share of uniform draws, which bounds every weight by ``1 / floor``:
    for scores that are guesses.
    """

    name: ClassVar[str] = "importance"
    source: ClassVar[str] = (
        "Zhao & Zhang 2015; with error compensation: Danilova & Gorbunov 2022 (arXiv 2203.02383)"
    )
    exact_at_optimum: ClassVar[bool] = False

    def __init__(self, scores: Tensor, floor: float = 0.0) -> None:
        """``scores``: shape ``(m,)``, smoothness L_j (or any guess of gradient size), in any unit.

        Raises ValueError for an empty, negative or non-finite score, and for a zero one without a floor.
        """
        if scores.dim() != 1 or scores.numel() == 0:
            raise ValueError(
                f"scores has shape {tuple(scores.shape)}; give one number per sample, shape (m,)"
            )
        if not 0.0 <= floor <= 1.0:
            raise ValueError(f"floor={floor} is not in [0, 1]")
        scores = scores.detach().double().cpu()
        bad = ~(torch.isfinite(scores) & ((scores >= 0.0) if floor > 0.0 else (scores > 0.0)))
        if bad.any():
            where = int(bad.nonzero()[0])
            fix = "be finite and at least 0" if floor > 0.0 else "be finite and above 0 (or set floor > 0)"
            raise ValueError(f"scores[{where}]={float(scores[where])}: every score must {fix}")
        if not scores.sum() > 0.0:
            raise ValueError("scores are all 0; at least one must be above 0")
        share = scores / scores.max()  # first, so that huge scores cannot overflow their sum
        share = share / share.sum()
        self._set_probability((1.0 - floor) * share + floor / scores.numel())
        if not torch.isfinite(self.weight).all():
            raise ValueError("scores differ by more than floats can hold; set floor > 0")

    @classmethod
    def over(cls, scores: Tensor, *, floor: float = 0.0) -> Self:
        return cls(scores, floor)

    def gradient(self, problem: FiniteSum, x: Tensor, sample: EstimatorSample) -> Tensor:
        return problem.gradient(x, sample)
