"""Sign codecs: one bit per element, and one or two scales per tensor or block."""

from dataclasses import replace

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Key, Payload, TensorSpec
from gravac.compressors.quantize.nearest import Nearest
from gravac.compressors.quantize.quantizer import ROUNDED, PerTensor, summed
from gravac.kernels import pack, packed_bytes, unpack


class ScaledSign(PerTensor):
    """Sends the sign of every element, and the mean magnitude of each tensor.

    ``C(x) = (‖x‖₁ / n) · sign(x)`` for each tensor, with sign(0) = +1. A payload takes ceil(n/8) bytes and 4 per
    tensor, a CF of nearly 32, whatever CF is asked for. It is a projection on the sign vectors, so ``‖x - C(x)‖² = ‖x‖²
    - ‖x‖₁²/n`` for a tensor, at most ``(1 - 1/n) ‖x‖²`` with n the largest tensor.
    """

    name = "scaledsign"
    source = "Karimireddy et al. 2019, Error feedback fixes SignSGD, algorithm 1, for each tensor"
    traits = replace(ROUNDED, unbiased=False, projection=True)

    def specs(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        return TensorSpec(torch.float32, len(self.numels(numel))), TensorSpec(
            torch.uint8, packed_bytes(numel, 1)
        )

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        return Payload((self.scales(x), pack(x >= 0, 1)), None, x.numel(), cf, key)

    def decode(self, payload: Payload) -> Tensor:
        scales, signs = payload.parts
        return self.choose(unpack(signs, payload.numel, 1).bool(), scales, -scales)

    def scales(self, x: Tensor) -> Tensor:
        """Return the mean magnitude of each tensor, float32."""
        return torch.stack([(summed(piece, torch.abs) / piece.numel()).float() for piece in self.pieces(x)])

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(delta=1.0 / max(self.numels(numel)))


class OneBit(PerTensor):
    """1-bit SGD: the elements >= 0 of each tensor become their mean, and so do the others.

    A payload takes ceil(n/8) bytes and 8 per tensor. It is a projection and never loses more than the scaled sign does:
    ``‖x - C(x)‖² <= (1 - 1/n) ‖x‖²`` with n the largest tensor.
    """

    name = "onebit"
    source = "Seide et al. 2014, 1-bit SGD, two reconstruction values"
    traits = ScaledSign.traits

    def specs(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        return TensorSpec(torch.float32, 2 * len(self.numels(numel))), TensorSpec(
            torch.uint8, packed_bytes(numel, 1)
        )

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        positive = x >= 0
        pairs = zip(self.pieces(x), self.pieces(positive), strict=True)
        means = torch.stack([mean for piece, above in pairs for mean in _means(piece, above)])
        return Payload((means, pack(positive, 1)), None, x.numel(), cf, key)

    def decode(self, payload: Payload) -> Tensor:
        means, signs = payload.parts
        return self.choose(unpack(signs, payload.numel, 1).bool(), means[1::2], means[::2])

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(delta=1.0 / max(self.numels(numel)))


def _means(x: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means of the elements below zero and of the others, float32. NaN makes both NaN."""
    above = positive.count_nonzero()
    low = summed(x, lambda part: part.clamp_max(0)) / (x.numel() - above).clamp_min(1)
    high = summed(x, lambda part: part.clamp_min(0)) / above.clamp_min(1)
    return low.float(), high.float()


class BlockSign(Nearest):
    """Sends the sign of every element, and the mean magnitude of each block of 64 as bfloat16. For error feedback.

    A payload takes one bit per element and 16 per block, a wire CF of 25.6, whatever CF is asked for. The scaled sign
    has one scale per tensor, which fits less well if magnitudes differ within the tensor. This codec is the same as
    ``nearest:levels=2``.
    """

    name = "blocksign"
    source = "Karimireddy et al. 2019, Error feedback fixes SignSGD, algorithm 1, for each block"
    examples: tuple[str, ...] = ("block=16",)

    def __init__(self, *, block: int = 64) -> None:
        super().__init__(levels=2, block=block)
