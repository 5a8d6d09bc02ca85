"""What an estimator is: it says which samples to look at, and turns them into an unbiased gradient.

One worker holds ``f = (1/m) sum_j f_j``. Estimators come before compression and know nothing of it.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, Protocol, Self

import torch
from torch import Tensor


class Sample(NamedTuple):
    """What one draw says, for a batch of b."""

    indices: Tensor
    """int64 ``(b,)``, with replacement."""
    weights: Tensor
    """float64 ``(b,)``: factors of the losses."""


class FiniteSum(Protocol):
    """The m losses of one worker, as functions of flat parameters ``x`` of shape ``(d,)``."""

    @property
    def samples(self) -> int:
        """m."""

    def gradient(self, x: Tensor, sample: Sample) -> Tensor:
        """``mean_b weights_b * grad f_{indices_b}(x)``, shape ``(d,)``."""

    def full_gradient(self, x: Tensor) -> Tensor:
        """``grad f(x) = mean_j grad f_j(x)``, shape ``(d,)``."""


class Estimator(ABC):
    """Arbitrary sampling with replacement: j is drawn with ``probability[j]`` and weighs ``1 / (m probability[j])``.

    So ``E[gradient] = grad f(x)`` exactly, whatever the probabilities. A subclass sets them, adds terms of mean
    zero, or both. State belongs to one worker; wrap nothing shared between workers that must not be shared.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    """Where it was published."""
    exact_at_optimum: ClassVar[bool]
    """Its variance goes to zero as x converges, so that the 1/K noise term of the rate is gone."""

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
        """m."""
        return self.probability.numel()

    def draw(self, generator: torch.Generator, batch: int = 1) -> Sample:
        """``batch`` independent samples. The generator (CPU, of this worker alone) is the only state used."""
        uniform = torch.rand(batch, generator=generator, dtype=torch.float64)
        # The last cumulative value may be a rounding error below 1.
        index = torch.searchsorted(self._cumulative, uniform, right=True).clamp_(max=self.samples - 1)
        return Sample(index, self.weight[index])

    def smoothness(self, smoothness: Tensor) -> float:
        """``max_j weight_j L_j``: this sampling's expected-smoothness constant, given L_j of shape ``(m,)``.

        Smaller admits a larger step. max L_j when uniform, mean L_j when importance follows L_j.
        """
        return float((self.weight * smoothness.double()).max())

    @classmethod
    @abstractmethod
    def over(cls, scores: Tensor) -> Self:
        """One for samples of these scores, shape ``(m,)``: smoothness L_j of each loss, or a guess of it.

        Subclasses add their settings as keywords, all with defaults.
        """

    @abstractmethod
    def gradient(self, problem: FiniteSum, x: Tensor, sample: Sample) -> Tensor:
        """Unbiased estimate of ``grad f(x)``, shape ``(d,)``."""

    def after_step(self, problem: FiniteSum, x_old: Tensor, generator: torch.Generator) -> None:  # noqa: B027
        """Call once a step with the point *before* it. Does nothing unless the estimator keeps something."""

    def nbytes(self) -> int:
        """Bytes of vectors of length d really held."""
        return 0

    def state_dict(self) -> dict[str, Tensor]:
        """What a resumed run needs besides the settings and the generator: plain tensors, copies."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of ``state_dict``. Raises ValueError for a state this estimator does not have."""
        if state:
            raise ValueError(f"estimator={self.name!r} keeps nothing, but its state has {sorted(state)}")
