"""Error feedback with a residual in bfloat16: half a copy of the gradient.

p = g + e,  e' = round(p - C(p)).  bfloat16 has 8 significant bits. If e' is rounded to the nearest, a gradient below
2^-9 of its element's residual is lost each time. If it is rounded at random, the gradient is kept on average: the error
has mean zero, and a variance of at most 2^-16 of the residual's square.

The sum is made in a work space of one bucket. If the gradient stays until ``resolve``, e does not change until then,
and e' is computed again from the gradient. So one buffer is enough, and a skipped step leaves no trace, bit for bit.
Otherwise e' is a draft of the same size.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from gravac.compressors.base import Compressor, Key, Payload
from gravac.kernels import add_finite, round_bfloat16
from gravac.memories.base import Bucket, MemorySettings, PendingSum
from gravac.memories.bucketed import BucketedMemory, multiply_pieces

_OWN_DRAWS = 0x5851F42D4C957F2D
"""Turns the wire's key into the memory's: rounding noise of the two must be independent."""


class NarrowSettings(MemorySettings):
    """How the residual is rounded."""

    rounding: Literal["stochastic", "nearest"] = Field(
        "stochastic",
        description="stochastic (unbiased) or nearest, which loses gradients far smaller than the residual.",
    )


@dataclass(slots=True)
class _Slot:
    """``residual`` is float32 if it was loaded, until it is first replaced."""

    bucket: Bucket
    residual: Tensor
    has_residual: bool
    p: Tensor | None = None  # float32, from ``compensate`` to ``update``
    offered: bool | None = None
    open: bool = False  # the step needs ``resolve``
    settled: bool = False  # the step counts, and nothing can undo it any more
    had_residual: bool | None = None  # ``has_residual`` before a step that a tensor settled; None without one
    draft: Tensor | None = None
    draft_has_residual: bool | None = None  # None: no draft in this step


class NarrowMemory(BucketedMemory[_Slot]):
    """Error feedback with a residual in bfloat16: 2 bytes per element under DDP, 4 under FSDP2 with its draft.

    The residual is rounded at random, which adds an error of mean zero to training.
    """

    name = "residual-bf16"
    source = "Seide et al. 2014; Karimireddy et al. 2019; stochastic rounding as in Gupta et al. 2015"
    exact = False
    Settings = NarrowSettings

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._draws = 0

    def compensate(self, bucket: Bucket, gradient: Tensor, *, dense: bool = False) -> Tensor:
        residual, _, out = self.pending_sum(bucket, gradient, dense=dense)
        out.copy_(gradient) if residual is None else out.add_(gradient)
        self.sum_written(bucket, dense=dense)
        return out

    def pending_sum(self, bucket: Bucket, gradient: Tensor, *, dense: bool = False) -> PendingSum:
        slot = self._slot(bucket, gradient.device)
        slot.open = slot.settled = False
        slot.p = torch.empty(gradient.shape, dtype=torch.float32, device=gradient.device)
        return PendingSum(slot.p.copy_(slot.residual) if slot.has_residual else None, 1.0, slot.p)

    def sum_written(self, bucket: Bucket, *, dense: bool = False) -> None:
        self._slots[bucket.names].offered = True

    def update(self, bucket: Bucket, compressor: Compressor | None, payload: Payload | None) -> Tensor | None:
        slot = self._slots.get(bucket.names)
        if slot is None or slot.offered is None:
            return None
        p, slot.p, slot.offered = slot.p, None, None
        if payload is None:
            slot.draft_has_residual = False
            return None
        assert compressor is not None
        assert p is not None
        compressor.remove(payload, p)
        if self.gradient_stays:
            slot.draft, slot.open = None, True
        else:
            if slot.draft is None:
                slot.draft = torch.empty(p.shape, dtype=torch.bfloat16, device=p.device)
            self._round(p, payload.key, slot.draft)
            slot.draft_has_residual = True
        return p

    def unsettled(self, bucket: Bucket) -> bool:
        slot = self._slots.get(bucket.names)
        return slot is not None and slot.open

    def resolve(
        self,
        bucket: Bucket,
        gradient: Tensor,
        counts: bool | Tensor,
        compressor: Compressor | None = None,
        payload: Payload | None = None,
    ) -> None:
        slot = self._slots.get(bucket.names)
        if slot is None or not slot.open:
            return
        slot.open = False
        if counts is False:
            return
        if compressor is None or payload is None:
            raise ValueError("resolve needs the compressor and the payload that update was given")
        # The same sum as in ``compensate``: it was not kept, because it takes twice the memory of the residual.
        p = slot.residual.float() if slot.has_residual else torch.zeros_like(gradient, dtype=torch.float32)
        p = p.clone() if p is slot.residual else p
        add_finite(p, gradient)
        compressor.remove(payload, p)
        replaced = slot.residual if slot.residual.dtype == torch.bfloat16 else p.bfloat16()
        if isinstance(counts, Tensor):
            before = slot.residual.clone() if slot.has_residual else torch.zeros_like(replaced)
            self._round(p, payload.key, replaced)
            torch.where(counts, replaced, before.to(replaced.dtype), out=replaced)
        else:
            self._round(p, payload.key, replaced)
        slot.settled = not isinstance(counts, Tensor)
        slot.had_residual = None if slot.settled else slot.has_residual
        slot.residual, slot.has_residual = replaced, True

    def rescale(self, factor: float, names: Collection[str] | None = None) -> None:
        factor = self._factor(factor)
        self._rescale_unassigned(factor, names)
        for slot in self._slots.values():
            if slot.has_residual:
                multiply_pieces(slot.bucket, slot.residual, factor, names)

    def nbytes(self) -> int:
        return self._bytes_of(
            tensor for slot in self._slots.values() for tensor in (slot.residual, slot.draft, slot.p)
        )

    def noise(self, compressor: Compressor, cf: float, numel: int) -> float | None:
        return 2.0**-16 if self.settings.rounding == "stochastic" else None

    def _round(self, x: Tensor, key: Key | None, out: Tensor) -> None:
        self._draws += 1
        own = (Key(0, self._draws, 0, 0) if key is None else key).own_seed() ^ _OWN_DRAWS
        round_bfloat16(x, out, own if self.settings.rounding == "stochastic" else None)

    def _open(self, bucket: Bucket, device: torch.device, residual: Tensor | None) -> _Slot:
        empty = torch.zeros(sum(bucket.numels), dtype=torch.bfloat16, device=device)
        return _Slot(bucket, empty if residual is None else residual, residual is not None)

    def _dense(self, slot: _Slot) -> Tensor | None:
        return slot.residual.float() if slot.has_residual else None

    def _accept(self, slot: _Slot) -> None:
        if slot.draft_has_residual:
            assert slot.draft is not None
            before = slot.residual if slot.residual.dtype == torch.bfloat16 else None
            slot.residual, slot.draft = slot.draft, before
        if slot.draft_has_residual is not None:
            slot.has_residual = slot.draft_has_residual
        self._discard(slot)

    def _discard(self, slot: _Slot) -> None:
        slot.draft_has_residual, slot.had_residual, slot.p, slot.open = None, None, None, False

    def rollback(self) -> None:
        for slot in self._slots.values():
            if slot.settled:  # the trainer has dropped the step's gradients, so nothing of them may stay
                slot.has_residual, slot.settled = False, False
            elif slot.had_residual is not None:
                slot.has_residual = slot.had_residual
        super().rollback()

    def commit(self) -> None:
        for slot in self._slots.values():
            slot.settled = False
        super().commit()
