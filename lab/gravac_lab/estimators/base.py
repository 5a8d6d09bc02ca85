"""The base class of gradient estimators: an estimator chooses samples and turns them into an unbiased gradient.

One worker holds ``f = (1/m) sum_j f_j``. Estimators come before compression and do not depend on it.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, Protocol, Self

import torch
from torch import Tensor


class EstimatorSample(NamedTuple):
    """The samples of one draw, for a batch of b."""

    indices: Tensor
    """int64 ``(b,)``, with replacement."""
    weights: Tensor
    """float64 ``(b,)``: factors of the losses."""


class FiniteSum(Protocol):
    """The m losses of one worker, as functions of flat parameters ``x`` of shape ``(d,)``."""

    @property
    def samples(self) -> int:
        """m, the number of losses."""

    def gradient(self, x: Tensor, sample: EstimatorSample) -> Tensor:
        """Returns ``mean_b weights_b * grad f_{indices_b}(x)``, shape ``(d,)``."""

    def full_gradient(self, x: Tensor) -> Tensor:
        """Returns ``grad f(x) = mean_j grad f_j(x)``, shape ``(d,)``."""


class Estimator(ABC):
    """Arbitrary sampling with replacement: j is drawn with ``probability[j]`` and has weight ``1 / (m
    probability[j])``.

    So ``E[gradient] = grad f(x)`` exactly, whatever the probabilities are (Gower et al. 2019, arbitrary sampling). A
    subclass sets them, adds terms of mean zero, or both. The state belongs to one worker; do not share an estimator
    between workers.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    """Where it was published."""
    exact_at_optimum: ClassVar[bool]
    """Whether its variance goes to zero as x converges, which removes the 1/K noise term from the rate."""

    probability: Tensor
    """float64 ``(m,)``, positive, sum 1."""
    weight: Tensor
    """float64 ``(m,)``: multiply the loss of sample j by ``weight[j]``."""

    def _set_probability(self, probability: Tensor) -> None:
        self.probability = probability
        self.weight = 1.0 / (probability.numel() * probability)
        self._cumulative = probability.cumsum(0)

    @property
    def samples(self) -> int:
        """m, the number of samples."""
        return self.probability.numel()

    def draw(self, generator: torch.Generator, batch: int = 1) -> EstimatorSample:
        """Draws independent samples.

        Args:
            generator: On the CPU, of this worker alone; the only state used.
            batch: How many to draw, b.

        Returns:
            Indices and weights, both of shape ``(b,)``.
        """
        uniform = torch.rand(batch, generator=generator, dtype=torch.float64)
        # The last cumulative value may be a rounding error below 1.
        index = torch.searchsorted(self._cumulative, uniform, right=True).clamp_(max=self.samples - 1)
        return EstimatorSample(index, self.weight[index])

    def smoothness(self, smoothness: Tensor) -> float:
        """Returns the expected-smoothness constant of this sampling, ``max_j weight_j L_j``.

        Smaller allows a larger step: max L_j when uniform, mean L_j when importance follows L_j.

        Args:
            smoothness: L_j, shape ``(m,)``.
        """
        return float((self.weight * smoothness.double()).max())

    @classmethod
    @abstractmethod
    def over(cls, scores: Tensor) -> Self:
        """Makes an estimator for samples of these scores. Subclasses add their settings as keywords, all with defaults.

        Args:
            scores: Smoothness L_j of each loss or a guess of it, shape ``(m,)``.
        """

    @abstractmethod
    def gradient(self, problem: FiniteSum, x: Tensor, sample: EstimatorSample) -> Tensor:
        """Returns an unbiased estimate of ``grad f(x)``, shape ``(d,)``.

        Args:
            problem: The losses of this worker.
            x: Parameters, shape ``(d,)``.
            sample: What ``draw`` returned.
        """

    def after_step(self, problem: FiniteSum, x_old: Tensor, generator: torch.Generator) -> None:  # noqa: B027
        """Ends a step. Does nothing unless the estimator holds something.

        Args:
            problem: The losses of this worker.
            x_old: Parameters *before* the step, shape ``(d,)``.
            generator: The worker's generator.
        """

    def nbytes(self) -> int:
        """Returns the bytes of vectors of length d that are held."""
        return 0

    def state_dict(self) -> dict[str, Tensor]:
        """Returns what a resumed run needs besides the settings and the generator: plain tensors, copies."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restores what ``state_dict`` returned.

        Raises:
            ValueError: The state is not one of this estimator.
        """
        if state:
            raise ValueError(f"estimator={self.name!r} keeps nothing, but its state has {sorted(state)}")
