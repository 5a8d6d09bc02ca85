"""Error feedback with a residual in bfloat16: half a copy of the gradient.

p = g + e,  e' = round(p - C(p)).  bfloat16 has 8 significant bits. If e' is rounded to the nearest, a gradient below
2^-9 of its element's residual is lost each time. If it is rounded at random, the gradient is kept on average: the error
has mean zero, and a variance of at most 2^-16 of the residual's square.

The sum is made in a work space of one bucket. If the gradient stays until ``resolve``, e does not change until then,
and e' is computed again from the gradient. So one buffer is enough, and a skipped step leaves no trace, bit for bit.
Otherwise e' is a draft of the same size.
"""

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from gravac.compressors.base import Compressor, Key, Payload
from gravac.compressors.rows import places
from gravac.kernels import add_finite, round_bfloat16
from gravac.memories.base import Memory, MemorySettings, PendingSum
from gravac.memories.bucketed import FlatMemory

_OWN_DRAWS = 0x5851F42D4C957F2D
"""Turns the wire's key into the memory's: rounding noise of the two must be independent."""


class NarrowSettings(MemorySettings):
    """How the residual is rounded."""

    rounding: Literal["stochastic", "nearest"] = Field(
        "stochastic",
        description="stochastic (unbiased) or nearest, which loses gradients far smaller than the residual.",
    )


class NarrowPart(FlatMemory):
    """The part of one bucket. ``residual`` is float32 if it was loaded, until it is first replaced."""

    memory: "NarrowMemory"
    p: Tensor | None
    """float32, from ``compensate`` to ``update``."""
    resolved: bool
    """The step counts, and nothing can undo it any more."""
    had_residual: bool | None
    """``has_residual`` before a step that a tensor resolved; None without one."""

    def load(self, pieces: dict[str, Tensor]) -> None:
        super().load(pieces)
        self.p, self.resolved, self.had_residual = None, False, None

    def begin(self, device: torch.device) -> Tensor:
        residual = super().begin(device)
        self.residual = residual if self.has_residual else residual.bfloat16()
        return self.residual

    def pending_sum(self, gradient: Tensor, *, dense: bool = False) -> PendingSum | None:
        residual = self.begin(gradient.device) if self.residual is None else self.residual
        self.unresolved, self.sent, self.resolved, self.draft_has_residual = False, None, False, None
        self.sent_places = None
        self.p = torch.empty(gradient.shape, dtype=torch.float32, device=gradient.device)
        return PendingSum(self.p.copy_(residual) if self.has_residual else None, 1.0, self.p)

    def update(self, compressor: Compressor | None, payload: Payload | None) -> Tensor | None:
        if self.offered is None:
            return None
        p, self.p, self.offered = self.p, None, None
        if payload is None:
            self.draft_has_residual = False
            return None
        assert compressor is not None
        assert p is not None
        compressor.remove(payload, p)
        if self.gradient_stays:
            self.draft, self.unresolved, self.sent = None, True, (compressor, payload)
        else:
            self.sent_places = places(payload) if self.keeps_before else None
            if self.draft is None:
                self.draft = torch.empty(p.shape, dtype=torch.bfloat16, device=p.device)
            self.memory.round(p, payload.key, self.draft)
            self.draft_has_residual = True
        return p

    def resolve(self, gradient: Tensor, counts: bool | Tensor) -> None:
        sent, self.sent, self.unresolved = self.sent, None, False
        if sent is None or counts is False:
            return
        compressor, payload = sent
        # The same sum as in ``compensate``: it was not kept, because it takes twice the memory of the residual.
        residual = self.residual
        assert residual is not None
        p = torch.zeros_like(residual, dtype=torch.float32)
        if self.has_residual:
            p.copy_(residual)
        add_finite(p, gradient)
        compressor.remove(payload, p)
        self.residual = residual if residual.dtype == torch.bfloat16 else p.bfloat16()
        if isinstance(counts, Tensor):
            before = residual.bfloat16().clone() if self.has_residual else torch.zeros_like(self.residual)
            self.memory.round(p, payload.key, self.residual)
            torch.where(counts, self.residual, before, out=self.residual)
            self.had_residual = self.has_residual
        else:
            self.memory.round(p, payload.key, self.residual)
            self.resolved = True
        self.has_residual = True

    def commit(self) -> None:
        self.resolved, self.had_residual, self.p = False, None, None
        if self.draft_has_residual and self.residual is not None and self.residual.dtype != torch.bfloat16:
            self.residual = self.sent_places = None  # it does not become the next draft
        super().commit()

    def rollback(self) -> None:
        if self.resolved:  # the trainer has dropped the step's gradients, so nothing of them may stay
            self.has_residual = False
        elif self.had_residual is not None:
            self.has_residual = self.had_residual
        self.resolved, self.had_residual, self.p = False, None, None
        super().rollback()

    def mix(self, residual: Tensor, before: Tensor | None, share: float) -> None:
        wide = residual.float()
        super().mix(wide, None if before is None else before.float(), share)
        self.memory.round(wide, None, residual)


class NarrowMemory(Memory):
    """Error feedback with a residual in bfloat16: 2 bytes per element under DDP, 4 under FSDP2 with its draft.

    The residual is rounded at random, which adds an error of mean zero to training.
    """

    name = "residual-bf16"
    source = "Seide et al. 2014; Karimireddy et al. 2019; stochastic rounding as in Gupta et al. 2015"
    exact = False
    part = NarrowPart
    Settings = NarrowSettings
    examples = ("rounding=nearest",)

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._draws = 0

    def noise(self, compressor: Compressor, cf: float, numel: int) -> float | None:
        return 2.0**-16 if self.settings.rounding == "stochastic" else None

    def round(self, x: Tensor, key: Key | None, out: Tensor) -> None:
        """Write ``x`` to ``out`` in bfloat16."""
        self._draws += 1
        own = (Key(0, self._draws, 0, 0) if key is None else key).own_seed() ^ _OWN_DRAWS
        round_bfloat16(x, out, own if self.settings.rounding == "stochastic" else None)
