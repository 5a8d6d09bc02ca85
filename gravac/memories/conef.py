"""ConEF and iConEF: the residual itself is stored compressed, by an unbiased codec (Li et al. 2023).

p = g + (1-β) e,  e' = C(e + g - sent) = C(β e + p - sent)

C must be unbiased, so that the virtual iterate follows SGD with a little more noise. (1+θ)(1-δ) must stay below 1, with
θ the noise of C and 1-δ the share of p that the wire's codec leaves out.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from gravac.compressors import build
from gravac.compressors.base import Compressor, Key, Payload
from gravac.memories.base import Bucket, MemorySettings
from gravac.memories.bucketed import BucketedMemory
from gravac.memories.induced import Induced

_OWN_DRAWS = 0x2545F4914F6CDD1D
"""Turns the wire's key into the memory's: rounding noise of the two must be independent."""


class ConEFSettings(MemorySettings):
    """How the residual is stored."""

    bits: int = Field(
        8,
        json_schema_extra={"enum": [4, 8]},
        description="Bits an element of the residual: 8 (int8, blocks of 256) or 4 (int4, blocks of 32).",
    )
    beta: float = Field(
        0.0, ge=0, lt=1, description="β, share of the residual that is held back each step, 0 to below 1."
    )
    codec: str = Field(
        "",
        description="Another unbiased codec instead of bits, by name, such as natural or randomk-unbiased.",
    )
    cf: float = Field(1.0, ge=1, le=1e9, description="Compression factor that codec is asked for, 1 to 1e9.")


@dataclass(frozen=True, slots=True)
class CompressedResidual:
    """A compressed residual: the parts from which it can be decoded, and a factor."""

    codec: Compressor
    parts: tuple[Tensor, ...]
    numel: int
    cf: float
    key: Key
    scale: float = 1.0

    @property
    def nbytes(self) -> int:
        """Bytes of the parts."""
        return sum(part.nbytes for part in self.parts)

    def dense(self) -> Tensor:
        """Return the decoded residual, float32 of shape ``(n,)``."""
        decoded = self.codec.decode(self.codec.rebuild(self.parts, self.numel, self.cf, self.key))
        return decoded if self.scale == 1.0 else decoded * self.scale


@dataclass(slots=True)
class _Slot:
    bucket: Bucket
    compressed: CompressedResidual | None = None
    carried: Tensor | None = None  # residual that came from elsewhere, exact until it is first replaced
    draft: CompressedResidual | None = None
    drafted: bool = False
    offered: tuple[Tensor, float] | None = None  # p, and the share of the residual in it

    @property
    def has_residual(self) -> bool:
        return self.compressed is not None or self.carried is not None

    def add_to(self, out: Tensor, share: float) -> None:
        if self.carried is not None:
            out.add_(self.carried, alpha=share)
        elif self.compressed is not None:  # decoded first, so that a state loaded again offers the same bits
            out.add_(self.compressed.dense(), alpha=share)


class ConEFMemory(BucketedMemory[_Slot]):
    """Contractive error feedback: the residual itself is stored compressed, by an unbiased codec.

    Each step decodes, adds and encodes, as in the paper. This suits quantizers, whose θ is small. Sketches need
    ``conef-sketch``. States are decoded residuals, so they fit any other memory; a loaded one stays float32 until its
    first step.
    """

    name = "conef"
    source = "Li et al. 2023, Contractive error feedback for gradient compression"
    exact = False
    Settings = ConEFSettings

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        settings = self.settings
        if settings.bits not in (4, 8):
            raise ValueError(f"memory={self.name!r}, setting bits: must be 4 or 8 (got {settings.bits})")
        try:
            self._codec = build(settings.codec or f"int{settings.bits}")
        except ValueError as error:
            raise ValueError(f"memory={self.name!r}, setting codec: {error}") from None
        if not (self._codec.traits.unbiased and self._codec.traits.fixed_size):
            raise ValueError(
                f"memory={self.name!r}, setting codec: {settings.codec!r} is biased or of varying size; a residual "
                "needs an unbiased codec of fixed size, such as int8, int4, natural or randomk-unbiased"
            )
        self._most = self._draws = 0

    def offered_share(self) -> float:
        return float(1.0 - self.settings.beta)

    def error_codec(self, compressor: Compressor | None, cf: float) -> tuple[Compressor, float]:
        """Return the codec that stores the residual of a step, and the CF it is asked for.

        Args:
            compressor: The codec that the step sends with; None when it sends everything.
            cf: The CF it sends at.
        """
        return self._codec, self.settings.cf

    def noise(self, compressor: Compressor, cf: float, numel: int) -> float | None:
        codec, own_cf = self.error_codec(compressor, cf)
        return codec.bound(numel, own_cf).omega

    def compensate(self, bucket: Bucket, gradient: Tensor, *, dense: bool = False) -> Tensor:
        slot = self._slot(bucket, gradient.device)
        share = 1.0 if dense else self.offered_share()
        p = torch.empty(gradient.shape, dtype=torch.float32, device=gradient.device).copy_(gradient)
        slot.add_to(p, share)
        slot.offered = p, share
        return p

    def update(self, bucket: Bucket, compressor: Compressor | None, payload: Payload | None) -> Tensor | None:
        slot = self._slots.get(bucket.names)
        if slot is None or slot.offered is None:
            return None
        (p, share), slot.offered = slot.offered, None
        if payload is None and (share == 1.0 or not slot.has_residual):
            slot.draft, slot.drafted = None, True
            return None
        if payload is None:
            p.zero_()  # the share offered is sent, the share held back stays
        else:
            assert compressor is not None
            compressor.remove(payload, p)
        if share < 1.0:
            slot.add_to(p, 1.0 - share)
        codec, cf = self.error_codec(compressor, 1.0 if payload is None else payload.cf)
        slot.draft = self._compress(codec, cf, p, None if payload is None else payload.key, bucket)
        slot.drafted = True
        return p

    def rescale(self, factor: float, names: Collection[str] | None = None) -> None:
        factor = self._factor(factor)
        for slot in list(self._slots.values()):
            if names is not None and not set(slot.bucket.names).issubset(names):
                if not set(names).isdisjoint(slot.bucket.names):
                    # Only some of its parameters, and one factor is stored for all: decode it. The next step compresses
                    # it again.
                    self._unassign(slot)
                continue
            if slot.compressed is not None:
                slot.compressed = replace(slot.compressed, scale=slot.compressed.scale * factor)
            if slot.carried is not None:
                slot.carried.mul_(factor)
        self._rescale_unassigned(factor, names)

    def commit(self) -> None:
        self._most = self._bytes()
        super().commit()

    def nbytes(self) -> int:
        return max(self._most, self._bytes())

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict(state)
        self._most = 0

    def _compress(
        self, codec: Compressor, cf: float, y: Tensor, key: Key | None, bucket: Bucket
    ) -> CompressedResidual:
        self._draws += 1
        base = Key(0, self._draws, bucket.number, 0) if key is None else key
        # From the rank's own seed, so that even codecs whose draws ranks share err independently here.
        own = base._replace(seed=base.own_seed() ^ _OWN_DRAWS)
        payload = codec.compress(y, cf, own, torch.float32)
        return CompressedResidual(codec, payload.parts, y.numel(), cf, own)

    def _open(self, bucket: Bucket, device: torch.device, residual: Tensor | None) -> _Slot:
        return _Slot(bucket, carried=residual)

    def _dense(self, slot: _Slot) -> Tensor | None:
        return slot.carried if slot.compressed is None else slot.compressed.dense()

    def _accept(self, slot: _Slot) -> None:
        if slot.drafted:
            slot.compressed, slot.carried = slot.draft, None
        self._discard(slot)

    def _discard(self, slot: _Slot) -> None:
        slot.draft, slot.drafted = None, False

    def _bytes(self) -> int:
        return self._bytes_of(
            part for slot in self._slots.values() for part in (slot.compressed, slot.carried, slot.draft)
        )


class IConEF1Memory(ConEFMemory):
    """Improved ConEF, version 1: the residual is compressed twice by its own codec, Q(y) + Q(y - Q(y)).

    The draws are independent, so the noise is θ² instead of θ, for twice the bytes. It helps only if θ < 1.
    """

    name = "iconef-v1"
    source = "Li et al. 2023, Contractive error feedback, iConEF-v1"

    def error_codec(self, compressor: Compressor | None, cf: float) -> tuple[Compressor, float]:
        return Induced(self._codec, self._codec, self.settings.cf), self.settings.cf


class IConEF2Memory(ConEFMemory):
    """Improved ConEF, version 2: the residual is compressed by the wire's codec and then its own, C(y) + Q(y - C(y)).

    The noise is θ·ρ instead of θ, for the bytes of C's payload. Codecs that learn from what they see cannot be used
    twice per step; the memory is then plain ConEF.
    """

    name = "iconef-v2"
    source = "Li et al. 2023, Contractive error feedback, iConEF-v2"

    def error_codec(self, compressor: Compressor | None, cf: float) -> tuple[Compressor, float]:
        if compressor is None or type(compressor).commit is not Compressor.commit:
            return super().error_codec(compressor, cf)
        return Induced(compressor, self._codec, self.settings.cf), cf
