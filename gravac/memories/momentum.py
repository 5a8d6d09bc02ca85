"""Momentum correction: every rank applies momentum before compression (Lin et al. 2018, DGC).

u' = m u + g,  p = v + u',  v' = p - C(p).  Nesterov: u' = m (u + g),  p = v + u' + g.

What waits in v then has the momentum that its gradients would have by now; a momentum applied after averaging starts
only when they arrive.
"""

import math
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from gravac.compressors.base import Compressor, Payload
from gravac.memories.base import BucketMemory, Memory, MemorySettings, PendingSum
from gravac.memories.bucketed import FlatMemory
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


class MomentumPart(FlatMemory):
    """The part of one bucket: residual and velocity, each with its draft."""

    velocity: Tensor | None
    """u, float32 of shape ``(n,)``. None before the first step."""
    velocity_draft: Tensor | None
    moving: bool
    """False: there was no step yet, and ``velocity`` is zero."""

    def load(self, pieces: dict[str, Tensor]) -> None:
        super().load(pieces)
        self.velocity = self.velocity_draft = None
        self.moving = any(key.startswith(VELOCITY) for key in pieces)

    def begin(self, device: torch.device) -> Tensor:
        self.velocity = self.gathered(device, VELOCITY)
        self.velocity_draft = torch.empty_like(self.velocity)
        return super().begin(device)

    def pending_sum(self, gradient: Tensor, *, dense: bool = False) -> PendingSum | None:
        return None

    def compensate(self, gradient: Tensor, *, dense: bool = False) -> Tensor:
        terms, settings = super().pending_sum(gradient, dense=dense), self.memory.settings
        assert terms is not None
        assert self.velocity is not None
        p = terms.out.copy_(gradient)
        if settings.clip is not None:
            self._clip(p)
        if settings.nesterov:
            u = torch.add(self.velocity, p, out=self.velocity_draft).mul_(settings.momentum)
            p.add_(u)
        else:
            u = torch.add(p, self.velocity, alpha=settings.momentum, out=self.velocity_draft)
            p.copy_(u)
        self.sum_written()
        return p if terms.residual is None else p.add_(terms.residual)

    def update(self, compressor: Compressor | None, payload: Payload | None) -> Tensor | None:
        p, u, masking = self.draft, self.velocity_draft, self.memory.settings.masking
        if self.offered is None or payload is None or p is None or u is None or not masking:
            return super().update(compressor, payload)  # all was sent: momentum goes on as in SGD
        support = payload.support
        before = p.clone() if support is None else p[support]
        super().update(compressor, payload)
        if support is None:
            u.masked_fill_(p != before, 0.0)
        else:
            u.index_copy_(0, support.long(), torch.where(p[support] != before, 0.0, u[support]))
        return p

    def commit(self) -> None:
        if self.draft_has_residual is not None:
            self.velocity, self.velocity_draft, self.moving = self.velocity_draft, self.velocity, True
        super().commit()

    def state(self) -> dict[str, Tensor]:
        state = super().state()
        if self.moving and self.velocity is not None:
            state |= {VELOCITY + name: piece for name, piece in self.bucket.split(self.velocity)}
        return state

    def cut(self, share: float, rest: float) -> None:
        BucketMemory.cut(self, share, rest)  # what came is no gradient

    def _clip(self, gradient: Tensor) -> None:
        limit = self.memory.settings.clip / math.sqrt(self.memory.world_size)
        for _, piece in self.bucket.split(gradient):
            # In float64, because the squares of large floats leave float32.
            norm = torch.linalg.vector_norm(piece, dtype=torch.float64)
            piece.mul_((limit / norm).clamp(max=1.0))


class MomentumMemory(Memory):
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
    part = MomentumPart
    Settings = MomentumSettings
    examples = ("masking=false", "momentum=0.5,nesterov=true", "clip=300.0")

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.amplification = 1.0 / (1.0 - self.settings.momentum)

    def pieces_of(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        return super().pieces_of(state) | {VELOCITY + name: u for name, u in velocities(state).items()}
