"""Momentum correction: every rank applies momentum before compression (Lin et al. 2018, DGC).

u' = m u + g,  p = v + u',  v' = p - C(p).  Nesterov: u' = m (u + g),  p = v + u' + g.

What waits in v then has the momentum that its gradients would have by now; a momentum applied after averaging starts
only when they arrive.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from gravac.compressors.base import Compressor, Payload
from gravac.memories.base import Bucket, MemorySettings, overflown
from gravac.memories.bucketed import BucketedMemory, multiply_pieces
from gravac.memories.states import VELOCITY, velocities


class MomentumSettings(MemorySettings):
    """The momentum that the optimizer would have had, and what DGC does to it."""

    momentum: float = Field(0.9, ge=0, lt=1, description="m, 0 to below 1. The optimizer's own must be 0.")
    nesterov: bool = Field(False, description="Nesterov's form.")
    masking: bool = Field(
        True,
        description="Momentum factor masking: u starts again from 0 where something was sent, so that momentum of late "
        "gradients does not go on. false: for codecs that send nearly every element each step, such as int8, which "
        "would be left without momentum.",
    )
    clip: float | None = Field(
        None,
        gt=0,
        le=1e30,
        description="Largest norm a parameter's averaged gradient should have; each rank clips its own, before "
        "anything is added up, to clip / √ranks. With a loss scale: times the scale. null: no clipping.",
    )


@dataclass(slots=True)
class _Slot:
    """float32 buffers of a bucket's length, which are swapped with their drafts on commit."""

    bucket: Bucket
    residual: Tensor
    velocity: Tensor
    p: Tensor  # the draft of ``residual``
    draft: Tensor  # of ``velocity``
    has_residual: bool  # False: ``residual`` is all zero
    moving: bool  # False: there was no step yet, ``velocity`` is zero
    draft_has_residual: bool | None = None  # None: no draft in this step
    offered: bool | None = None


class MomentumMemory(BucketedMemory[_Slot]):
    """Momentum correction: every rank applies momentum before compression, as DGC does.

    Use it with an optimizer without momentum. Dense steps send the whole residual and keep u, so a run that is never
    compressed is SGD with momentum. u and v are held, each with its draft: 16 bytes per element.

    Masking sets u to 0 where sending changed the residual. Clipping is per parameter, as in the authors' code, because
    gradients arrive in buckets and the norm of the whole is not known. It needs ``world_size``.
    """

    name = "momentum"
    source = "Lin et al. 2018, Deep Gradient Compression, §3.1 to 3.3 and the authors' code"
    exact = True
    transforms = True
    Settings = MomentumSettings

    def compensate(self, bucket: Bucket, gradient: Tensor, *, dense: bool = False) -> Tensor:
        slot, settings = self._slot(bucket, gradient.device), self.settings
        g = slot.p.copy_(gradient)
        if settings.clip is not None:
            self._clip(bucket, g)
        if settings.nesterov:
            torch.add(slot.velocity, g, out=slot.draft).mul_(settings.momentum)
            p = g.add_(slot.draft)
        else:
            torch.add(g, slot.velocity, alpha=settings.momentum, out=slot.draft)
            p = g.copy_(slot.draft)
        slot.offered = True
        return p.add_(slot.residual) if slot.has_residual else p

    def update(self, bucket: Bucket, compressor: Compressor | None, payload: Payload | None) -> Tensor | None:
        slot = self._slots.get(bucket.names)
        if slot is None or slot.offered is None:
            return None
        slot.offered = None
        if payload is None:  # all was sent. No masking: momentum goes on as in SGD
            slot.draft_has_residual = False
            return None
        assert compressor is not None
        if self.settings.masking:
            _remove_and_mask(compressor, payload, slot.p, slot.draft)
        else:
            compressor.remove(payload, slot.p)
        slot.draft_has_residual = True
        return slot.p

    def amplification(self) -> float:
        return float(1.0 / (1.0 - self.settings.momentum))

    def rescale(self, factor: float, names: Collection[str] | None = None) -> None:
        self._scale(self._factor(factor), names, velocity=True)

    def change_rate(self, factor: float, names: Collection[str] | None = None) -> None:
        self._scale(self._factor(factor), names, velocity=False)

    def nbytes(self) -> int:
        return self._bytes_of(
            tensor
            for slot in self._slots.values()
            for tensor in (slot.residual, slot.velocity, slot.p, slot.draft)
        )

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        self._unassigned |= {
            VELOCITY + name: value.detach().float().clone() for name, value in velocities(state).items()
        }

    def _clip(self, bucket: Bucket, gradient: Tensor) -> None:
        limit = self.settings.clip / math.sqrt(self.world_size)
        for piece in torch.split(gradient, list(bucket.numels)):
            # In float64, because the squares of large floats leave float32.
            norm = torch.linalg.vector_norm(piece, dtype=torch.float64)
            piece.mul_((limit / norm).clamp(max=1.0))

    def _scale(self, factor: float, names: Collection[str] | None, velocity: bool) -> None:
        for key, loose in self._unassigned.items():
            if (velocity or not key.startswith(VELOCITY)) and (
                names is None or key.removeprefix(VELOCITY) in names
            ):
                loose.mul_(factor)
        for slot in self._slots.values():
            if slot.has_residual:
                multiply_pieces(slot.bucket, slot.residual, factor, names)
            if velocity and slot.moving:
                multiply_pieces(slot.bucket, slot.velocity, factor, names)

    def _open(self, bucket: Bucket, device: torch.device, residual: Tensor | None) -> _Slot:
        velocity = self._collect(bucket, device, VELOCITY)
        n = sum(bucket.numels)
        return _Slot(
            bucket,
            residual=torch.zeros(n, device=device, dtype=torch.float32) if residual is None else residual,
            velocity=torch.zeros(n, device=device, dtype=torch.float32) if velocity is None else velocity,
            p=torch.empty(n, device=device, dtype=torch.float32),
            draft=torch.empty(n, device=device, dtype=torch.float32),
            has_residual=residual is not None,
            moving=velocity is not None,
        )

    def _dense(self, slot: _Slot) -> Tensor | None:
        return slot.residual if slot.has_residual else None

    def _pieces(self, slot: _Slot) -> dict[str, Tensor]:
        pieces = super()._pieces(slot)
        if slot.moving:
            split = torch.split(slot.velocity, list(slot.bucket.numels))
            pieces |= {VELOCITY + name: u.clone() for name, u in zip(slot.bucket.names, split, strict=True)}
        return pieces

    def _overflown(self, slot: _Slot) -> bool:
        return super()._overflown(slot) or (slot.moving and overflown(slot.velocity))

    def _accept(self, slot: _Slot) -> None:
        if slot.draft_has_residual is not None:
            slot.residual, slot.p = slot.p, slot.residual
            slot.velocity, slot.draft = slot.draft, slot.velocity
            slot.has_residual, slot.moving, slot.draft_has_residual = slot.draft_has_residual, True, None

    def _discard(self, slot: _Slot) -> None:
        slot.draft_has_residual = None


def _remove_and_mask(compressor: Compressor, payload: Payload, p: Tensor, velocity: Tensor) -> None:
    """Subtract the decoded payload from p, and set ``velocity`` to 0 where that changed p."""
    support = payload.support
    before = p.clone() if support is None else p[support]
    compressor.remove(payload, p)
    if support is None:
        velocity.masked_fill_(p != before, 0.0)
    else:
        rest = torch.where(p[support] != before, 0.0, velocity[support])
        velocity.index_copy_(0, support.long(), rest)
