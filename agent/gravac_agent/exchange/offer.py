"""What one bucket has to send: gradient + what is owed, added up, measured and counted in as few passes as can be."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gravac.kernels import SelectionHint, Sifter, Tally, energy, inner, tally
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
    """Histogram of p; None: it was not made."""
    known: SelectionHint | None
    """What a codec may be told of p's sizes: the histogram, or candidates for its largest elements."""
    plain: bool
    """What is owed afterwards is p less what was sent."""
    _dot: float | None = None

    def dot(self, gradient: Tensor) -> float:
        """⟨p, g⟩; asked before p changes."""
        return inner(self.x, gradient) if self._dot is None else self._dot


def make(
    memory: Memory,
    bucket: Bucket,
    gradient: Tensor,
    *,
    whole: bool,
    count: bool,
    sifter: Sifter | None = None,
) -> Offer:
    """``gradient`` of shape ``(n,)`` is not changed. ``count``: histogram p in the same pass. ``sifter``: the largest
    elements are wanted; candidates do in place of a histogram. ``whole``: of all that is owed, for a dense step."""
    terms = memory.terms(bucket, gradient, whole=whole)
    if terms is None:
        x = memory.compensate(bucket, gradient, whole=whole)
        counted = tally(x) if count or sifter is not None else None
        sq = energy(x) if counted is None else counted.energy
        return Offer(x, energy(gradient), sq, counted, counted, False)
    owed, share, out = terms
    if sifter is not None and not count and sifter.takes(gradient):
        sifted = sifter.sift(gradient, owed, out, share)
        memory.added(bucket, whole=whole)
        dot = sifted.gradient_sq + share * sifted.residual_dot_gradient
        known: SelectionHint = sifted
        if sifted.places is None and math.isfinite(sifted.energy):  # the guess was off: count after all
            known = tally(out)
            sifter.learn(known)
        return Offer(out, sifted.gradient_sq, sifted.energy, None, known, share == 1.0, dot)
    if count or sifter is not None:
        counted = tally(gradient, owed, share=share, out=out, sums=True)
        memory.added(bucket, whole=whole)
        if sifter is not None:
            sifter.learn(counted)
        gradient_sq = _known(counted.gradient_sq)
        dot = gradient_sq + share * _known(counted.residual_dot_gradient)
        return Offer(out, gradient_sq, counted.energy, counted, counted, share == 1.0, dot)
    if owed is None:
        out.copy_(gradient)
    else:
        torch.add(gradient, owed, alpha=share, out=out)
    memory.added(bucket, whole=whole)
    gradient_sq = energy(gradient)
    sq = gradient_sq if owed is None or not math.isfinite(gradient_sq) else energy(out)
    return Offer(out, gradient_sq, sq, None, None, share == 1.0)


def _known(value: float | None) -> float:
    assert value is not None  # asked for
    return value
