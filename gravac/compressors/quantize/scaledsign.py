"""One bit an element and one scale a tensor: its mean magnitude."""

from dataclasses import replace

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Key, Part, Payload
from gravac.compressors.quantize.pertensor import PerTensor, summed
from gravac.compressors.quantize.quantizer import ROUNDED
from gravac.kernels import pack, packed_bytes, unpack


class ScaledSign(PerTensor):
    """``C(x) = (‖x‖₁ / n) · sign(x)`` of each tensor, sign(0) = +1: ceil(n/8) bytes and 4 a tensor, a CF of nearly 32
    whatever is asked.

    A projection on the sign vectors, so ``‖x - C(x)‖² = ‖x‖² - ‖x‖₁²/n`` for a tensor, at most ``(1 - 1/n) ‖x‖²`` with
    n the largest tensor.
    """

    name = "scaledsign"
    source = "Karimireddy et al. 2019, Error feedback fixes SignSGD, algorithm 1, for each tensor"
    traits = replace(ROUNDED, unbiased=False, projection=True)

    def layout(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[Part, ...]:
        return Part(torch.float32, len(self.numels(numel))), Part(torch.uint8, packed_bytes(numel, 1))

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        return Payload((self.scales(x), pack(x >= 0, 1)), None, x.numel(), cf, key)

    def decode(self, payload: Payload) -> Tensor:
        scales, signs = payload.parts
        return self.choose(unpack(signs, payload.numel, 1).bool(), scales, -scales)

    def scales(self, x: Tensor) -> Tensor:
        """Mean magnitude of each tensor, float32."""
        return torch.stack([(summed(piece, torch.abs) / piece.numel()).float() for piece in self.pieces(x)])

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(delta=1.0 / max(self.numels(numel)))
