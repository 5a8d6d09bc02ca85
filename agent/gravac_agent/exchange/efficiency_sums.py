"""Sums from which statistical efficiency is predicted, measured in surveyed steps only: the update, and Adam's view.

The update u is the mean over ranks that comes out of the exchange. How much of the gradients it carries, and how large
it is, differs between codecs that keep the same energy. Adam divides each coordinate by √v + eps; what the residual
amounts to in those units is what it will do to the parameters.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, fields

import torch
from torch import Tensor

from gravac.kernels import energy, inner
from gravac.memories import Bucket

log = logging.getLogger("gravac.agent")

MOST_SCALED = 1 << 18
"""Elements of a bucket that the scaled sums look at; of a larger bucket evenly spread ones stand for all."""

Divisor = Callable[[Bucket, int], Tensor | None]
"""Returns √v + eps of every n-th element of a bucket, float32; None where the optimizer keeps no second moment."""


@dataclass(slots=True)
class EfficiencySums:
    """One rank's sums over the buckets of a step, or over the steps of a level. NaN: a bucket was not measured."""

    update_steps: float = 0.0
    update_sq: float = 0.0
    """‖u‖², the same on all ranks."""
    update_dot_gradient: float = 0.0
    scaled_steps: float = 0.0
    scaled_gradient_sq: float = 0.0
    scaled_residual_sq: float = 0.0
    scaled_residual_dot_gradient: float = 0.0

    def values(self) -> list[float]:
        """Return all of them, in order."""
        return list(astuple(self))

    def __add__(self, other: "EfficiencySums") -> "EfficiencySums":
        pairs = zip(self.values(), other.values(), strict=True)
        return EfficiencySums(*(one + another for one, another in pairs))

    def complete(self) -> "EfficiencySums":
        """Return the sums of a whole step, without those that lack a bucket."""
        update, scaled = self.values()[:_UPDATE], self.values()[_UPDATE:]
        return EfficiencySums(
            *(update if all(map(math.isfinite, update)) else [0.0] * len(update)),
            *(scaled if all(map(math.isfinite, scaled)) else [0.0] * len(scaled)),
        )

    @classmethod
    def over_ranks(cls, ranks: list[list[float]]) -> "EfficiencySums":
        """Return the sums over ranks of their ``values``, without those that not all ranks have of the same steps."""
        first = cls(*ranks[0])
        total = cls(*(sum(column) for column in zip(*ranks, strict=True)))
        total.update_steps, total.scaled_steps = first.update_steps, first.scaled_steps
        total.update_sq = first.update_sq
        if any(one[0] != first.update_steps for one in ranks):
            total.update_steps = total.update_sq = total.update_dot_gradient = 0.0
        if any(one[_UPDATE] != first.scaled_steps for one in ranks):
            total.scaled_steps = total.scaled_gradient_sq = 0.0
            total.scaled_residual_sq = total.scaled_residual_dot_gradient = 0.0
        return total


SIZE = len(fields(EfficiencySums))
_UPDATE = 3
"""The first sums are of the update, the others are scaled."""


@dataclass(slots=True)
class EfficiencyMeter:
    """Measures the buckets of surveyed steps. It never raises: a missing sum must not stop the training."""

    divisor: Divisor | None = None
    """Set by who knows the optimizer; None: scaled sums are not measured."""
    _space: Tensor = field(default_factory=lambda: torch.empty(0), init=False)

    def keep(self, gradient: Tensor) -> Tensor:
        """Return a float32 copy of a bucket's gradient, valid until the next call."""
        if self._space.numel() < gradient.numel() or self._space.device != gradient.device:
            self._space = torch.empty(gradient.numel(), device=gradient.device)
        return self._space[: gradient.numel()].copy_(gradient)

    def add_update(
        self, sums: EfficiencySums, update: Tensor, gradient: Tensor | None, raw_sq: float
    ) -> None:
        """Add a bucket's update.

        Args:
            sums: Added to.
            update: The mean that came out, shape ``(n,)``.
            gradient: This rank's raw gradient; None where it is not known any more.
            raw_sq: ‖u‖² where u is the mean of the raw gradients, so that the mean over ranks of ⟨u, g⟩ is ‖u‖²; else
                NaN.
        """
        try:
            sums.update_steps = 1.0
            sums.update_sq += raw_sq if gradient is None else energy(update)
            sums.update_dot_gradient += raw_sq if gradient is None else inner(update, gradient)
        except Exception:
            log.exception("the update of this step is not measured")
            sums.update_sq = math.nan

    def add_scaled(
        self, sums: EfficiencySums, bucket: Bucket, gradient: Tensor, residual: Tensor | None, share: float
    ) -> None:
        """Add a bucket's gradient and residual, in the optimizer's units.

        Args:
            sums: Added to.
            bucket: Which parameters they are of.
            gradient: This rank's raw gradient, shape ``(n,)``.
            residual: What the memory holds after sending; None: nothing.
            share: Factor that brings the residual to units of gradients.
        """
        if self.divisor is None:
            return
        try:
            every = -(-gradient.numel() // MOST_SCALED) | 1  # odd, so that it meets all columns of a matrix
            divisor = self.divisor(bucket, every)
            if divisor is None:
                sums.scaled_gradient_sq = math.nan
                return
            sums.scaled_steps = 1.0
            scaled = gradient[::every].float() / divisor
            sums.scaled_gradient_sq += every * energy(scaled)
            if residual is not None:
                held = residual[::every].float() / divisor
                sums.scaled_residual_sq += every * energy(held) * share**2
                sums.scaled_residual_dot_gradient += every * inner(held, scaled) * share
        except Exception:
            log.exception("the gradient of this step is not measured in the optimizer's units")
            sums.scaled_gradient_sq = math.nan
