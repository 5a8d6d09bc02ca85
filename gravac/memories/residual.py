"""Error feedback: what was not sent is added to the next gradient, all of it or a share.

Learning rate outside: p = g + (1-β) e,  e' = e + g - C(p), in gradient units. β changes what is added, not the
residual: nothing is lost. Exact for selectors: every element is either sent or in the residual.
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from gravac.compressors.base import Compressor, Payload
from gravac.memories.base import Bucket, MemorySettings, Terms
from gravac.memories.bucketed import BucketedMemory


@dataclass(slots=True)
class _Slot:
    """Two float32 buffers of a bucket's length that are swapped on commit; ``has_residual`` False means "all zero"."""

    bucket: Bucket
    residual: Tensor
    draft: Tensor
    has_residual: bool = False
    draft_has_residual: bool | None = None  # None: no draft in this step
    offered: float | None = None  # the share of the residual in p


class ResidualMemory(BucketedMemory[_Slot]):
    """Error feedback: what was not sent is added to the next gradient.

    The whole residual is added each step: p = g + e, e' = p - C(p).
    """

    name = "residual"
    source = "Seide et al. 2014, 1-bit SGD; Karimireddy et al. 2019, Error feedback fixes SignSGD"
    exact = True

    def compensate(self, bucket: Bucket, gradient: Tensor, *, whole: bool = False) -> Tensor:
        residual, share, out = self.terms(bucket, gradient, whole=whole)
        p = out.copy_(gradient) if residual is None else torch.add(gradient, residual, alpha=share, out=out)
        self.added(bucket, whole=whole)
        return p

    def terms(self, bucket: Bucket, gradient: Tensor, *, whole: bool = False) -> Terms:
        slot = self._slot(bucket, gradient.device)
        return Terms(slot.residual if slot.has_residual else None, self._share(whole), slot.draft)

    def added(self, bucket: Bucket, *, whole: bool = False) -> None:
        self._slots[bucket.names].offered = self._share(whole)

    def _share(self, whole: bool) -> float:
        return 1.0 if whole else self.offered_share()

    def update(self, bucket: Bucket, compressor: Compressor | None, payload: Payload | None) -> Tensor | None:
        slot = self._slots.get(bucket.names)
        if slot is None or slot.offered is None:
            return None
        held_back, slot.offered = 1.0 - slot.offered, None
        if payload is None:
            slot.draft_has_residual = slot.has_residual and held_back > 0.0
            if slot.draft_has_residual:
                torch.mul(slot.residual, held_back, out=slot.draft)
        else:
            assert compressor is not None
            compressor.remove(payload, slot.draft)
            if slot.has_residual and held_back > 0.0:
                slot.draft.add_(slot.residual, alpha=held_back)
            slot.draft_has_residual = True
        return slot.draft if slot.draft_has_residual else None

    def rescale(self, factor: float, names: Collection[str] | None = None) -> None:
        factor = self._factor(factor)
        self._rescale_unassigned(factor, names)
        for slot in self._slots.values():
            if slot.has_residual:
                pieces = torch.split(slot.residual, list(slot.bucket.numels))
                for name, piece in zip(slot.bucket.names, pieces, strict=True):
                    if names is None or name in names:
                        piece.mul_(factor)

    def nbytes(self) -> int:
        flat = sum(slot.residual.nbytes + slot.draft.nbytes for slot in self._slots.values())
        return flat + sum(residual.nbytes for residual in self._unassigned.values())

    def _open(self, bucket: Bucket, device: torch.device, residual: Tensor | None) -> _Slot:
        n = sum(bucket.numels)
        flat = torch.zeros(n, device=device) if residual is None else residual
        return _Slot(bucket, flat, torch.empty(n, device=device), residual is not None)

    def _dense(self, slot: _Slot) -> Tensor | None:
        return slot.residual if slot.has_residual else None

    def _accept(self, slot: _Slot) -> None:
        if slot.draft_has_residual is not None:
            slot.residual, slot.draft = slot.draft, slot.residual
            slot.has_residual, slot.draft_has_residual = slot.draft_has_residual, None

    def _discard(self, slot: _Slot) -> None:
        slot.draft_has_residual = None


class PartialSettings(MemorySettings):
    """How much to hold back."""

    beta: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="β, share of the residual that is held back each step, 0 (plain error feedback) to below 1.",
    )


class PartialMemory(ResidualMemory):
    """Partial error feedback: only a share of the residual is added each step, which smooths bursts.

    p = g + (1-β) e, e' = e + g - C(p). A dense step sends everything.
    """

    name = "partial"
    source = (
        "Abdi & Fekri 2020, Quantized compressive sampling of stochastic gradients; Li et al. 2021, ConEF"
    )
    Settings = PartialSettings

    def offered_share(self) -> float:
        return float(1.0 - self.settings.beta)
