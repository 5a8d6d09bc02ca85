"""Hard threshold whose λ is learnt in the first steps: the k-th largest magnitude of the model, over all ranks."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Key, Payload, kept
from gravac.compressors.sparse import tail
from gravac.compressors.sparse.hardthreshold import HardThreshold
from gravac.compressors.sparse.survivors import Passed, Survivors
from gravac.kernels import take_top

log = logging.getLogger("gravac.compressors")

_AT_ONCE = 2
"""CFs that learn in one step: an exploring step measures two."""
_EACH = 2 + 2 * tail.REACH
"""Figures of each: the k-th largest magnitude of this rank, and a window of its histogram."""


class _Known(NamedTuple):
    """What was learnt of one CF; equal on all ranks."""

    seen: int
    """Steps in which the k-th largest magnitude over all ranks was found."""
    total: float
    """Sum of those magnitudes."""
    last: float
    """The last one; before the first, the mean of the ranks' own."""


class WarmedThreshold(HardThreshold):
    """λ is the mean over ``steps`` steps of the magnitude that, on average over ranks, d / CF elements of a rank reach;
    d is the size of the whole model.

    All buckets and ranks use the same λ, one for each CF, kept in ``state_dict``. It needs no knowledge of the
    gradient's scale. Each rank counts its elements by magnitude over all buckets of a step; at the end of the step the
    counts are averaged over ranks and give λ for the next one. Only counts near the λ of the step before are exchanged.
    So one more step comes first, whose λ is the mean of the ranks' own. During that step nothing is known, and a bucket
    sends its own n / CF largest elements; the agent only measures then, as its first step at a CF is dense.

    Under an error memory the residual goes on growing after a short warm-up, and more than d / CF elements are sent.
    A longer one (``steps``, in the order of the CF) comes closer.
    """

    name = "hardthreshold-warmup"
    traits = replace(HardThreshold.traits, nested=False)

    def __init__(self, *, steps: int = 10) -> None:
        if steps < 1:
            raise ValueError(f"hardthreshold-warmup: steps={steps} must be at least 1")
        super().__init__()
        self.steps = steps
        self._learnt: dict[float, _Known] = {}  # by CF
        self._drafts: dict[float, _Known] = {}
        self._counts: Tensor | None = None
        self._asked: tuple[float, ...] = ()

    def find(self, survivors: Survivors, cf: float, key: Key) -> Passed:
        known = self._learnt.get(cf)
        if known is not None:
            return survivors.above(known.last if known.seen < self.steps else known.total / known.seen)
        count = kept(survivors.x.numel(), cf)
        return survivors.above(float(take_top(survivors.x, count)[1].abs().amin()))

    def narrow(self, payload: Payload, cf: float) -> Payload:
        return super(HardThreshold, self).narrow(payload, cf)

    def wire_bytes(self, numel: int, cf: float, dtype: torch.dtype) -> int:
        return kept(numel, cf) * (dtype.itemsize + 4)

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound()  # λ is known only at run time

    def observe(self, x: Tensor, cfs: Sequence[float]) -> None:
        learning = [cf for cf in cfs if cf not in self._learnt or self._learnt[cf].seen < self.steps]
        if learning:
            self._asked = tuple(learning[:_AT_ONCE])
            counts = tail.histogram(x)
            self._counts = counts if self._counts is None else self._counts + counts

    def figures(self) -> list[float]:
        found: list[float] = []
        if self._counts is not None:
            for cf in self._asked:
                found.append(tail.level_of(self._counts, self._count(self._counts, cf)))
                known = self._learnt.get(cf)
                found += tail.window(self._counts, known.last) if known else [0.0] * (_EACH - 1)
        return found + [0.0] * (_AT_ONCE * _EACH - len(found))

    def learn(self, means: Sequence[float]) -> None:
        if self._counts is None:
            return
        for number, cf in enumerate(self._asked):
            own, *window = means[number * _EACH : (number + 1) * _EACH]
            seen, total, last = self._learnt.get(cf, _Known(0, 0.0, 0.0))
            level = tail.level_in(window, last, self._count(self._counts, cf)) if last > 0.0 else own
            if own > 0.0 and level > 0.0:  # of zeros there is nothing to learn
                self._drafts[cf] = _Known(seen + 1, total + level, level) if last else _Known(0, 0.0, level)

    def commit(self) -> None:
        self._learnt |= self._drafts
        self.rollback()

    def rollback(self) -> None:
        self._drafts.clear()
        self._counts, self._asked = None, ()

    def state_dict(self) -> dict[str, Tensor]:
        return {repr(cf): torch.tensor(known, dtype=torch.float64) for cf, known in self._learnt.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        learnt = {}
        for cf, value in state.items():
            if cf.count("/") == 2:
                log.warning("%s: λ of bucket %s is of an older version and is learnt anew", self.name, cf)
                continue
            try:
                seen, total, last = value.tolist()
                learnt[float(cf)] = _Known(int(seen), total, last)
            except (AttributeError, TypeError, ValueError):
                raise ValueError(
                    f"{self.name}: state of {cf!r} must be three numbers of a CF, got {value!r:.80}"
                ) from None
        self._learnt = learnt
        self.rollback()

    @staticmethod
    def _count(counts: Tensor, cf: float) -> int:
        """Elements a rank should send of the whole model."""
        return kept(int(counts.sum()), cf)
