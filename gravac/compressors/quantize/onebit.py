"""1-bit SGD: one bit an element and two scales a tensor, the means of both signs."""

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Key, Part, Payload
from gravac.compressors.quantize.pertensor import PerTensor, summed
from gravac.compressors.quantize.scaledsign import ScaledSign
from gravac.kernels import pack, packed_bytes, unpack


class OneBit(PerTensor):
    """A tensor's elements >= 0 become their mean, the others theirs: ceil(n/8) bytes and 8 a tensor.

    A projection that never loses more than the scaled sign does, ``‖x - C(x)‖² <= (1 - 1/n) ‖x‖²`` with n the largest
    tensor.
    """

    name = "onebit"
    source = "Seide et al. 2014, 1-bit SGD, two reconstruction values"
    traits = ScaledSign.traits

    def layout(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[Part, ...]:
        return Part(torch.float32, 2 * len(self.numels(numel))), Part(torch.uint8, packed_bytes(numel, 1))

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
    """Mean of the elements below zero and of the others, float32; a NaN makes both NaN."""
    above = positive.count_nonzero()
    low = summed(x, lambda part: part.clamp_max(0)) / (x.numel() - above).clamp_min(1)
    high = summed(x, lambda part: part.clamp_min(0)) / above.clamp_min(1)
    return low.float(), high.float()
