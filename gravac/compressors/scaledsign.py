"""One bit an element and one scale: the mean magnitude."""

from dataclasses import replace

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Key, Part, Payload
from gravac.compressors.quantiser import ROUNDED, Quantiser
from gravac.kernels import pack, packed_bytes, unpack


class ScaledSign(Quantiser):
    """``C(x) = (‖x‖₁ / n) · sign(x)``, sign(0) = +1: ceil(n/8) + 4 bytes, a CF of nearly 32 whatever is asked.

    A projection on the sign vector, so ``‖x - C(x)‖² = ‖x‖² - ‖x‖₁²/n``, at most ``(1 - 1/n) ‖x‖²``.
    """

    name = "scaledsign"
    source = "Karimireddy et al. 2019, Error feedback fixes SignSGD, algorithm 1"
    traits = replace(ROUNDED, unbiased=False, projection=True)

    def layout(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[Part, ...]:
        return Part(torch.float32, 1), Part(torch.uint8, packed_bytes(numel, 1))

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        scale = x.abs().mean(dtype=torch.float64).float().view(1)
        return Payload((scale, pack(x >= 0, 1)), None, x.numel(), cf, key)

    def decode(self, payload: Payload) -> Tensor:
        scale, signs = payload.parts
        return torch.where(unpack(signs, payload.numel, 1).bool(), scale, -scale)

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(delta=1.0 / numel)
