"""Hard threshold: send every element of magnitude λ or more, however many those are."""

import math
from copy import copy
from dataclasses import replace
from typing import Self

import torch

from gravac.compressors.base import Bound, Key, Payload, kept
from gravac.compressors.sparse.selector import PLAIN
from gravac.compressors.sparse.survivors import Passed, Survivors, Thresholded
from gravac.kernels import take_above


class HardThreshold(Thresholded):
    """``|x| >= threshold`` (in gradient units); without one, λ = 1 / (2 √k) with k = d / CF.

    d is the size of the whole model, so that λ is the same in all buckets and on all ranks; a codec that was not fitted
    to a model takes the tensor for all of it.

    An *absolute* compressor, ``||x - C(x)||² <= n λ²`` whatever x is: over a whole run it has the smallest total
    error of all sparsifiers with the same number of elements (Sahu et al.). Its price: the CF is an outcome,
    not a knob, and λ depends on the gradient's scale. The rule presumes gradients averaged over ranks and unscaled.
    """

    name = "hardthreshold"
    source = "Sahu et al. 2021, Rethinking gradient sparsification as total error minimization; λ rule from their code"
    traits = replace(PLAIN, homogeneous=False, fixed_size=False)

    def __init__(self, *, threshold: float | None = None) -> None:
        if threshold is not None and not 0 < threshold < math.inf:
            raise ValueError(f"hardthreshold: threshold={threshold} must be positive and finite")
        self.threshold = threshold
        self._model: int | None = None

    def for_model(self, elements: int) -> Self:
        other = copy(self)
        other._model = elements
        return other

    def level(self, numel: int, cf: float) -> float:
        """λ in force."""
        if self.threshold is not None:
            return self.threshold
        return 0.5 / math.sqrt(kept(self._model or numel, cf))

    def find(self, survivors: Survivors, cf: float, key: Key) -> Passed:
        return survivors.above(self.level(survivors.x.numel(), cf))

    def narrow(self, payload: Payload, cf: float) -> Payload:
        assert payload.support is not None
        chosen = take_above(payload.values.float(), self.level(payload.numel, cf))[0]
        parts = tuple(part.index_select(0, chosen) for part in payload.parts)
        support = payload.support.index_select(0, chosen)
        return Payload(parts, support, payload.numel, cf, payload.key)

    def wire_bytes(self, numel: int, cf: float, dtype: torch.dtype) -> int:
        # The rule read backwards gives the count a fixed λ stands for.
        count = kept(numel, cf) if self.threshold is None else min(numel, round(0.25 / self.threshold**2))
        return count * (dtype.itemsize + 4)

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(absolute=numel * self.level(numel, cf) ** 2)
