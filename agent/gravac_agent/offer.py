"""What one bucket has to send: gradient + what is owed, added up, measured and counted in as few passes as can be."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gravac.kernels import Tally, energy, inner, tally
from gravac.memories import Bucket, Memory


@dataclass(slots=True)
class Offer:
    """p = gradient + what is offered of what is owed. Norms are infinite or NaN where an element is."""

    x: Tensor
    """p, shape ``(n,)``."""
    gradient_sq: float
    sq: float
    """‖p‖²."""
    counted: Tally | None
    """Histogram of p; None: nobody asked."""
    plain: bool
    """What is owed afterwards is p less what was sent."""
    _dot: float | None = None

    def dot(self, gradient: Tensor) -> float:
        """⟨p, g⟩; asked before p changes."""
        return inner(self.x, gradient) if self._dot is None else self._dot


def make(memory: Memory, bucket: Bucket, gradient: Tensor, *, whole: bool, count: bool) -> Offer:
    """``gradient`` of shape ``(n,)`` is not changed. ``count``: histogram p in the same pass. ``whole``: of all that is
    owed, for a dense step."""
    terms = memory.terms(bucket, gradient, whole=whole)
    if terms is None:
        x = memory.compensate(bucket, gradient, whole=whole)
        counted = tally(x) if count else None
        return Offer(x, energy(gradient), energy(x) if counted is None else counted.energy, counted, False)
    owed, share, out = terms
    if count:
        counted = tally(gradient, owed, share=share, out=out, sums=True)
        memory.added(bucket, whole=whole)
        gradient_sq = _known(counted.gradient_sq)
        dot = gradient_sq + share * _known(counted.residual_dot_gradient)
        return Offer(out, gradient_sq, counted.energy, counted, share == 1.0, dot)
    if owed is None:
        out.copy_(gradient)
    else:
        torch.add(gradient, owed, alpha=share, out=out)
    memory.added(bucket, whole=whole)
    gradient_sq = energy(gradient)
    sq = gradient_sq if owed is None or not math.isfinite(gradient_sq) else energy(out)
    return Offer(out, gradient_sq, sq, None, share == 1.0)


def _known(value: float | None) -> float:
    assert value is not None  # asked for
    return value
