"""Hard threshold: send every element of magnitude λ or more, however many those are."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Key, Payload, kept
from gravac.compressors.selector import PLAIN
from gravac.compressors.survivors import Passed, Survivors, Thresholded
from gravac.kernels import take_above, take_top


class HardThreshold(Thresholded):
    """``|x| >= threshold`` (in gradient units); without one, λ = 1 / (2 √k) with k = n / CF.

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

    def level(self, numel: int, cf: float) -> float:
        """λ in force."""
        return 0.5 / math.sqrt(kept(numel, cf)) if self.threshold is None else self.threshold

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


class WarmedThreshold(HardThreshold):
    """Hard threshold whose λ is learnt: the mean of the k-th largest magnitude over the first ``steps`` steps.

    Learns per bucket, size and CF, on each rank for itself, and keeps it (in ``state_dict``); while it learns, it
    sends what that step's k-th magnitude selects. Needs no knowledge of the gradient's scale.
    """

    name = "hardthreshold-warmup"
    traits = replace(HardThreshold.traits, nested=False)

    def __init__(self, *, steps: int = 10) -> None:
        if steps < 1:
            raise ValueError(f"hardthreshold-warmup: steps={steps} must be at least 1")
        super().__init__()
        self.steps = steps
        self._learnt: dict[str, tuple[int, float]] = {}  # place: steps seen, sum of their k-th magnitudes
        self._drafts: dict[str, float] = {}

    def find(self, survivors: Survivors, cf: float, key: Key) -> Passed:
        n = survivors.x.numel()
        place = f"{key.bucket}/{n}/{cf!r}"
        seen, total = self._learnt.get(place, (0, 0.0))
        if seen >= self.steps:
            return survivors.above(total / seen)
        level = float(take_top(survivors.x, kept(n, cf))[1].abs().amin())
        if math.isfinite(level):
            self._drafts[place] = level
        return survivors.above(level)

    def narrow(self, payload: Payload, cf: float) -> Payload:
        return super(HardThreshold, self).narrow(payload, cf)

    def wire_bytes(self, numel: int, cf: float, dtype: torch.dtype) -> int:
        return kept(numel, cf) * (dtype.itemsize + 4)

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound()  # λ is known only at run time

    def commit(self) -> None:
        for place, level in self._drafts.items():
            seen, total = self._learnt.get(place, (0, 0.0))
            self._learnt[place] = (seen + 1, total + level)
        self._drafts.clear()

    def rollback(self) -> None:
        self._drafts.clear()

    def state_dict(self) -> dict[str, Tensor]:
        return {
            place: torch.tensor([seen, total], dtype=torch.float64)
            for place, (seen, total) in self._learnt.items()
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for place, value in state.items():
            if not isinstance(value, Tensor) or value.numel() != 2:
                raise ValueError(f"{self.name}: state of {place!r} must be two numbers, got {value!r:.80}")
        self._learnt = {place: (int(value[0]), float(value[1])) for place, value in state.items()}
        self._drafts.clear()
