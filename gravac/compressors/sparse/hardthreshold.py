"""Hard threshold: sends every element of magnitude λ or more. λ is fixed, or learned in the first steps."""

import math
import struct
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import NamedTuple, Self

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Key, Payload, kept_count
from gravac.compressors.sparse.selector import PLAIN
from gravac.compressors.sparse.thresholds import Passed, Survivors, Thresholded
from gravac.kernels import take_above, take_top
from gravac.kernels.histogram import count


class HardThreshold(Thresholded):
    """Sends every element of magnitude λ or more, however many those are.

    ``threshold``: λ in gradient units. Without one, λ = 1 / (2 √k) with k = d / CF. d is the size of the whole model,
    so that λ is the same in all buckets and on all ranks; a codec that was not given a model treats the tensor as the
    model.

    This compressor is *absolute*: ``||x - C(x)||² <= n λ²`` for every x. Over a whole run it has the smallest total
    error of all sparsifiers with the same number of elements (Sahu et al.). In return, the CF is a result and not a
    setting, and λ depends on the scale of the gradient. The rule assumes gradients that are averaged over ranks and not
    scaled.
    """

    name = "hardthreshold"
    source = "Sahu et al. 2021, Rethinking gradient sparsification as total error minimization; λ rule from their code"
    traits = replace(PLAIN, homogeneous=False, fixed_size=False, sync_free=False)

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
        """Return the λ in force."""
        if self.threshold is not None:
            return self.threshold
        return 0.5 / math.sqrt(kept_count(self._model or numel, cf))

    def find(self, survivors: Survivors, cf: float, key: Key) -> Passed:
        return survivors.above(self.level(survivors.x.numel(), cf))

    def narrow(self, payload: Payload, cf: float) -> Payload:
        assert payload.support is not None
        chosen = take_above(payload.values.float(), self.level(payload.numel, cf))[0]
        parts = tuple(part.index_select(0, chosen) for part in payload.parts)
        support = payload.support.index_select(0, chosen)
        return Payload(parts, support, payload.numel, cf, payload.key)

    def wire_bytes(self, numel: int, cf: float, dtype: torch.dtype) -> int:
        # Inverting the rule gives the count that a fixed λ corresponds to.
        count = (
            kept_count(numel, cf) if self.threshold is None else min(numel, round(0.25 / self.threshold**2))
        )
        return count * (dtype.itemsize + 4)

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(absolute=numel * self.level(numel, cf) ** 2)


_SHIFT = 20
"""Bits of a float32 below those that number its bin: 8 bins per octave."""
_FINITE = 0x7F800000 >> _SHIFT
"""Bins of finite magnitudes."""
REACH = 8
"""Bins on each side of a level that a window covers: an octave."""


def magnitude_histogram(x: Tensor) -> Tensor:
    """Return how many elements of ``x`` (finite, shape ``(n,)``) each magnitude bin has, int64 of shape ``(2048,)``."""
    return count(x.detach().float().contiguous()).view(-1, 2).sum(1)


def histogram_window(counts: Tensor, about: float) -> list[float]:
    """Return the part of a histogram near the level ``about``, as 1 + 2 · REACH numbers.

    The first is the count above the window, then the counts of its bins, ascending.
    """
    first = first_bin(about)
    near = counts[first : first + 2 * REACH]
    return [float(counts[first + 2 * REACH :].sum()), *map(float, near.tolist())]


def kth_magnitude(counts: Sequence[float], k: int, first: int = 0, above: float = 0.0) -> float:
    """Return about the ``k``-th largest of the counted magnitudes.

    Args:
        counts: Elements of neighboring bins, ascending; for ``histogram_window``, also sums or means of several ones.
        k: 1 or more.
        first: Number of the lowest bin. The result lies inside these bins.
        above: Elements above them.
    """
    if above >= k:
        return _edge(first + len(counts))
    for number in range(len(counts) - 1, -1 if first else 0, -1):  # the lowest bin of all is taken for zeros
        if above + counts[number] >= k:
            low, high = _edge(first + number), _edge(first + number + 1)
            share = (k - above) / counts[number]
            if above > 0.0:  # a tail falls about exponentially, and so inside a bin
                share = math.log(k / above) / math.log1p(counts[number] / above)
            return high - (high - low) * share
        above += counts[number]
    return _edge(first)  # 0 if that is the lowest of all


def first_bin(about: float) -> int:
    """Return the lowest bin of the window near a level."""
    bits: int = struct.unpack("<I", struct.pack("<f", about))[0]
    return min(max(0, (bits >> _SHIFT) - REACH), _FINITE - 2 * REACH)


def _edge(number: int) -> float:
    """Return the lowest magnitude of a bin; for the first bin that is not finite, the largest finite number."""
    bits = min(number << _SHIFT, (_FINITE << _SHIFT) - 1)
    (value,) = struct.unpack("<f", struct.pack("<I", bits))
    return float(value)


_AT_ONCE = 2
"""CFs that are learned in one step: an exploring step measures two."""
_EACH = 2 + 2 * REACH
"""Figures per CF: the k-th largest magnitude of this rank, and a window of its histogram."""


class _LearnedLevel(NamedTuple):
    """The level that was learned for one CF, equal on all ranks."""

    seen: int
    """Steps in which the k-th largest magnitude over all ranks was found."""
    total: float
    """Sum of those magnitudes."""
    last: float
    """The last one; before the first, the mean of the ranks' own."""


class WarmedThreshold(HardThreshold):
    """A hard threshold whose λ is learned in the first steps: the mean magnitude that d / CF elements of a rank reach.

    λ is the mean over ``steps`` steps, and over ranks; d is the size of the whole model. All buckets and ranks use the
    same λ, one per CF, stored in ``state_dict``. It needs no knowledge of the gradient's scale.

    Each rank counts its elements by magnitude over all buckets of a step. At the end of the step the counts are
    averaged over ranks and give λ for the next step. Only counts near the λ of the previous step are exchanged. So
    there is one more step at the beginning, which ends with the mean of the λ that the ranks find by themselves. During
    that step no λ is known, and a bucket sends its own n / CF largest elements. The agent only measures then, because
    its first step at a CF is dense.

    With an error memory the residual keeps growing after a short warm-up, and more than d / CF elements are sent. A
    longer warm-up (``steps``, about as many as the CF) comes closer to d / CF.
    """

    name = "hardthreshold-warmup"
    traits = replace(HardThreshold.traits, nested=False)

    def __init__(self, *, steps: int = 10) -> None:
        if steps < 1:
            raise ValueError(f"hardthreshold-warmup: steps={steps} must be at least 1")
        super().__init__()
        self.steps = steps
        self._learned: dict[float, _LearnedLevel] = {}  # by CF
        self._drafts: dict[float, _LearnedLevel] = {}
        self._counts: Tensor | None = None
        self._asked: tuple[float, ...] = ()

    def find(self, survivors: Survivors, cf: float, key: Key) -> Passed:
        known = self._learned.get(cf)
        if known is not None:
            return survivors.above(known.last if known.seen < self.steps else known.total / known.seen)
        count = kept_count(survivors.x.numel(), cf)
        return survivors.above(float(take_top(survivors.x, count)[1].abs().amin()))

    def narrow(self, payload: Payload, cf: float) -> Payload:
        return super(HardThreshold, self).narrow(payload, cf)

    def wire_bytes(self, numel: int, cf: float, dtype: torch.dtype) -> int:
        return kept_count(numel, cf) * (dtype.itemsize + 4)

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound()  # λ is known only at run time

    def observe(self, x: Tensor, cfs: Sequence[float]) -> None:
        learning = [cf for cf in cfs if cf not in self._learned or self._learned[cf].seen < self.steps]
        if learning:
            self._asked = tuple(learning[:_AT_ONCE])
            counts = magnitude_histogram(x)
            self._counts = counts if self._counts is None else self._counts + counts

    def local_statistics(self) -> list[float]:
        found: list[float] = []
        if self._counts is not None:
            for cf in self._asked:
                found.append(kth_magnitude(self._counts.tolist(), self._count(self._counts, cf)))
                known = self._learned.get(cf)
                found += histogram_window(self._counts, known.last) if known else [0.0] * (_EACH - 1)
        return found + [0.0] * (_AT_ONCE * _EACH - len(found))

    def apply_mean_statistics(self, means: Sequence[float]) -> None:
        if self._counts is None:
            return
        for number, cf in enumerate(self._asked):
            own, above, *near = means[number * _EACH : (number + 1) * _EACH]
            seen, total, last = self._learned.get(cf, _LearnedLevel(0, 0.0, 0.0))
            level, count = own, self._count(self._counts, cf)
            if last > 0.0:
                level = kth_magnitude(near, count, first_bin(last), above)
            if own > 0.0 and level > 0.0:  # zeros teach nothing
                self._drafts[cf] = (
                    _LearnedLevel(seen + 1, total + level, level) if last else _LearnedLevel(0, 0.0, level)
                )

    def commit(self) -> None:
        self._learned |= self._drafts
        self.rollback()

    def rollback(self) -> None:
        self._drafts.clear()
        self._counts, self._asked = None, ()

    def state_dict(self) -> dict[str, Tensor]:
        return {
            repr(cf): torch.tensor(known, dtype=torch.float64, device="cpu")
            for cf, known in self._learned.items()
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        learned = {}
        for cf, value in state.items():
            try:
                seen, total, last = value.tolist()
                learned[float(cf)] = _LearnedLevel(int(seen), total, last)
            except (AttributeError, TypeError, ValueError):
                raise ValueError(
                    f"{self.name}: state of {cf!r} must be three numbers of a CF, got {value!r:.80}"
                ) from None
        self._learned = learned
        self.rollback()

    @staticmethod
    def _count(counts: Tensor, cf: float) -> int:
        """Return how many elements of the whole model a rank should send."""
        return kept_count(int(counts.sum()), cf)
