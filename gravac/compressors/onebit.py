"""1-bit SGD: one bit an element and two scales, the means of both signs."""

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Key, Part, Payload
from gravac.compressors.quantiser import Quantiser
from gravac.compressors.scaledsign import ScaledSign
from gravac.kernels import pack, packed_bytes, unpack


class OneBit(Quantiser):
    """Elements >= 0 become their mean, the others theirs: ceil(n/8) + 8 bytes.

    A projection that never loses more than the scaled sign does, ``‖x - C(x)‖² <= (1 - 1/n) ‖x‖²``.
    """

    name = "onebit"
    source = "Seide et al. 2014, 1-bit SGD, two reconstruction values"
    traits = ScaledSign.traits

    def layout(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[Part, ...]:
        return Part(torch.float32, 2), Part(torch.uint8, packed_bytes(numel, 1))

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        positive = x >= 0
        count = torch.stack(((~positive).sum(), positive.sum()))
        wide = x.double()
        sums = torch.stack((torch.where(positive, 0.0, wide).sum(), torch.where(positive, wide, 0.0).sum()))
        means = (sums / count.clamp_min(1)).float()  # a NaN is not >= 0 and makes the lower mean NaN
        return Payload((means, pack(positive, 1)), None, x.numel(), cf, key)

    def decode(self, payload: Payload) -> Tensor:
        means, signs = payload.parts
        return means[unpack(signs, payload.numel, 1).long()]

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(delta=1.0 / numel)
