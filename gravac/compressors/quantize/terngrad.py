"""TernGrad: every element becomes -s, 0 or +s, at random and unbiased."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Key, Payload, TensorSpec
from gravac.compressors.quantize.quantizer import ROUNDED, PerTensor
from gravac.kernels import noise, pack, pack_trits, packed_bytes, trit_bytes, unpack, unpack_trits


class TernGrad(PerTensor):
    """Rounds every element at random to -s, 0 or +s, with s the largest magnitude of its tensor.

    ``C(x) = s · sign(x) · b`` with P(b = 1) = |x| / s. ``E‖C(x) - x‖² = s‖x‖₁ - ‖x‖²``, at most ``(√n - 1)/2 · ‖x‖²``.
    ceil(n/4) bytes and 4 per tensor. ``base3``: five digits per byte instead of four, so ceil(n/5) bytes.
    """

    name = "terngrad"
    source = "Wen et al. 2017, TernGrad, ternary gradients, one scale a layer"
    traits = ROUNDED
    examples: tuple[str, ...] = ("base3=true",)

    def __init__(self, *, base3: bool = False) -> None:
        if not isinstance(base3, bool):
            raise ValueError(f"{self.name}: base3={base3!r} must be true or false")
        self.base3 = base3
        self.clip: float | None = None

    def specs(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        size = trit_bytes(numel) if self.base3 else packed_bytes(numel, 2)
        return TensorSpec(torch.float32, len(self.numels(numel))), TensorSpec(torch.uint8, size)

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        x = self.clipped(x)
        scales = self.scales(x)
        codes = self.ternary(x, scales, key) + 1
        return Payload(
            (scales, pack_trits(codes) if self.base3 else pack(codes, 2)), None, x.numel(), cf, key
        )

    def decode(self, payload: Payload) -> Tensor:
        scales, packed = payload.parts
        n = payload.numel
        codes = unpack_trits(packed, n) if self.base3 else unpack(packed, n, 2)
        return (codes.float() - 1) * self.spread(scales, n)

    def clipped(self, x: Tensor) -> Tensor:
        """Return ``x`` as float32, clipped to ``clip`` standard deviations of its tensor if that is set."""
        x = x.float()
        if self.clip is None:
            return x
        limits = [self.clip * piece.std(correction=0) for piece in self.pieces(x)]
        limit = self.spread(torch.stack(limits), x.numel())
        # A constant has no spread; clipping it to zero would lose it.
        return torch.where(limit > 0, x.clamp(-limit, limit), x)

    def scales(self, x: Tensor) -> Tensor:
        """Return the largest magnitude of each tensor, float32."""
        return torch.stack([piece.abs().amax() for piece in self.pieces(x)])

    def ternary(self, x: Tensor, scales: Tensor, key: Key) -> Tensor:
        """Return -1, 0 or 1 for each element, int8. ``scales`` must be at least the largest magnitudes."""
        spread = self.spread(scales, x.numel())
        chance = torch.where(spread > 0, x.abs() / spread, 0.0)
        # A rank's own noise: with the same draws on all ranks, their errors would not average out.
        on = noise(x.numel(), key.own_seed(), x.device) < chance
        return torch.where(x < 0, -1, 1).to(torch.int8) * on

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(omega=(math.sqrt(max(self.numels(numel))) - 1.0) / 2.0)


class ClippedTernGrad(TernGrad):
    """TernGrad of gradients clipped to a few standard deviations: far less variance, but biased.

    ``clip``: standard deviations of each tensor, 2.5 by default.
    """

    name = "terngrad-clipped"
    source = "Wen et al. 2017, TernGrad, gradient clipping"
    traits = replace(ROUNDED, unbiased=False)
    examples: tuple[str, ...] = ()

    def __init__(self, *, base3: bool = False, clip: float = 2.5) -> None:
        if not 0 < clip < math.inf:
            raise ValueError(
                f"terngrad-clipped: clip={clip} must be a positive number of standard deviations"
            )
        super().__init__(base3=base3)
        self.clip = clip

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound()
