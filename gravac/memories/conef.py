"""ConEF and iConEF: the residual itself is stored compressed, by an unbiased codec (Li et al. 2023).

p = g + (1-β) e,  e' = C(e + g - sent) = C(β e + p - sent)

C must be unbiased, so that the virtual iterate follows SGD with a little more noise. (1+θ)(1-δ) must stay below 1, with
θ the noise of C and 1-δ the share of p that the wire's codec leaves out.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from gravac.compressors import build
from gravac.compressors.base import Compressor, Key, Payload
from gravac.memories.base import Memory, MemorySettings, PendingSum
from gravac.memories.bucket import Bucket
from gravac.memories.bucketed import FlatMemory
from gravac.memories.induced import Induced
from gravac.protocol import CompressionFactor

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
    cf: CompressionFactor = Field(1.0, description="Compression factor that codec is asked for, 1 to 1e9.")


class CompressedResidual(NamedTuple):
    """A compressed residual: the parts from which it can be decoded, and factors.

    Factors are multiplied one after the other, so that one that was saved between two of them goes on with the same
    bits.
    """

    codec: Compressor
    parts: tuple[Tensor, ...]
    numel: int
    cf: float
    key: Key
    factors: tuple[float, ...] = ()

    def dense(self) -> Tensor:
        """Return the decoded residual, float32 of shape ``(n,)``."""
        decoded = self.codec.decode(self.codec.rebuild(self.parts, self.numel, self.cf, self.key))
        for factor in self.factors:
            decoded = decoded * factor
        return decoded


class ConEFPart(FlatMemory):
    """The part of one bucket. ``residual`` is one that was loaded, exact until it is first replaced."""

    memory: "ConEFMemory"
    compressed: CompressedResidual | None
    compressed_draft: CompressedResidual | None

    def load(self, pieces: dict[str, Tensor]) -> None:
        super().load(pieces)
        self.compressed = self.compressed_draft = None

    def compensate(self, gradient: Tensor, *, dense: bool = False) -> Tensor:
        if self.loaded:
            self.begin(gradient.device)
        share = 1.0 if dense else self._share
        p = torch.empty(gradient.shape, dtype=torch.float32, device=gradient.device).copy_(gradient)
        self._add_to(p, share)
        self.offered = p, share
        return p

    def pending_sum(self, gradient: Tensor, *, dense: bool = False) -> PendingSum | None:
        return None

    def update(self, compressor: Compressor | None, payload: Payload | None) -> Tensor | None:
        if self.offered is None:
            return None
        p: Tensor = self.offered[0]
        share, self.offered = self.offered[1], None
        if payload is None and (share == 1.0 or not self.has_residual):
            self.draft_has_residual = False
            return None
        if payload is None:
            p.zero_()  # the share offered is sent, the share held back stays
        else:
            assert compressor is not None
            compressor.remove(payload, p)
        if share < 1.0:
            self._add_to(p, 1.0 - share)
        self.compressed_draft = self.memory.compressed(self.bucket, compressor, payload, p)
        self.draft_has_residual = True
        return p

    def commit(self) -> None:
        self.note_bytes()
        if self.draft_has_residual is not None:
            self.compressed, self.compressed_draft, self.residual = self.compressed_draft, None, None
        super().commit()

    def rollback(self) -> None:
        self.compressed_draft = None
        super().rollback()

    def state(self) -> dict[str, Tensor]:
        if self.compressed is not None:
            return dict(self.bucket.split(self.compressed.dense()))
        return super().state()

    def rescale(self, factor: float, chosen: Callable[[str], bool]) -> None:
        wanted = [chosen(name) for name in self.bucket.names]
        if self.compressed is not None and all(wanted):
            self.compressed = self.compressed._replace(factors=(*self.compressed.factors, factor))
        elif any(wanted):
            if self.compressed is not None:
                # Only some of its parameters, and one factor is stored for all: decode it. The next step compresses it
                # again.
                self.load(self.state())
            super().rescale(factor, chosen)

    def _add_to(self, out: Tensor, share: float) -> None:
        if self.compressed is not None:  # decoded first, so that a state loaded again offers the same bits
            out.add_(self.compressed.dense(), alpha=share)
        elif self.has_residual:
            assert self.residual is not None
            out.add_(self.residual, alpha=share)


class ConEFMemory(Memory):
    """Contractive error feedback: the residual itself is stored compressed, by an unbiased codec.

    Each step decodes, adds and encodes, as in the paper. This suits quantizers, whose θ is small. Sketches need
    ``conef-sketch``. States are decoded residuals, so they fit any other memory; a loaded one stays float32 until its
    first step.
    """

    name = "conef"
    source = "Li et al. 2023, Contractive error feedback for gradient compression"
    exact = False
    part = ConEFPart
    Settings = ConEFSettings
    examples: ClassVar[tuple[str, ...]] = ("bits=4", "beta=0.5", "codec=natural")

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
        self._draws = 0

    def error_codec(self, compressor: Compressor | None, cf: float) -> tuple[Compressor, float]:
        """Return the codec that stores a residual, and its CF. The step sent with ``compressor`` at ``cf``."""
        return self._codec, self.settings.cf

    def noise(self, compressor: Compressor, cf: float, numel: int) -> float | None:
        codec, own_cf = self.error_codec(compressor, cf)
        return codec.bound(numel, own_cf).omega

    def compressed(
        self, bucket: Bucket, compressor: Compressor | None, payload: Payload | None, y: Tensor
    ) -> CompressedResidual:
        """Return what is stored of the residual ``y`` of a step that sent ``payload``."""
        self._draws += 1
        codec, cf = self.error_codec(compressor, 1.0 if payload is None else payload.cf)
        key = None if payload is None else payload.key
        base = Key(0, self._draws, bucket.number, 0) if key is None else key
        # From the rank's own seed, so that even codecs whose draws ranks share err independently here.
        own = base._replace(seed=base.own_seed() ^ _OWN_DRAWS)
        return CompressedResidual(codec, codec.compress(y, cf, own, torch.float32).parts, y.numel(), cf, own)


class IConEF1Memory(ConEFMemory):
    """Improved ConEF, version 1: the residual is compressed twice by its own codec, Q(y) + Q(y - Q(y)).

    The draws are independent, so the noise is θ² instead of θ, for twice the bytes. It helps only if θ < 1.
    """

    name = "iconef-v1"
    source = "Li et al. 2023, Contractive error feedback, iConEF-v1"
    examples = ()

    def error_codec(self, compressor: Compressor | None, cf: float) -> tuple[Compressor, float]:
        return Induced(self._codec, self._codec, self.settings.cf), self.settings.cf


class IConEF2Memory(ConEFMemory):
    """Improved ConEF, version 2: the residual is compressed by the wire's codec and then its own, C(y) + Q(y - C(y)).

    The noise is θ·ρ instead of θ, for the bytes of C's payload. Codecs that learn from what they see cannot be used
    twice per step; the memory is then plain ConEF.
    """

    name = "iconef-v2"
    source = "Li et al. 2023, Contractive error feedback, iConEF-v2"
    examples = ("bits=4",)

    def error_codec(self, compressor: Compressor | None, cf: float) -> tuple[Compressor, float]:
        if compressor is None or type(compressor).commit is not Compressor.commit:
            return super().error_codec(compressor, cf)
        return Induced(compressor, self._codec, self.settings.cf), cf
