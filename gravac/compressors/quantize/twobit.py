"""Two bits: every element becomes its sign times one of two magnitudes of its block."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Key, Payload, TensorSpec
from gravac.compressors.quantize.quantizer import ROUNDED, Quantizer, chosen_block
from gravac.kernels import dequantize_two_bits, packed_bytes, quantize_two_bits
from gravac.kernels.device.tiled import BLOCK
from gravac.kernels.device.tiled import Values as TiledValues


class TwoBit(Quantizer):
    """Sends the sign of every element, and which of its block's two magnitudes it has. For values of a Top-k.

    A block's magnitudes are split at a threshold, and each part becomes its mean: bfloat16, 2 bits per element and 32
    per block. The threshold is the mean magnitude, then midway between the two means. There is no level for zero, which
    the elements that a Top-k selects do not need. For whole gradients ``nearest:levels=5`` is far more exact.

    ``block``: how many elements share the two magnitudes. Biased, contractive: ``‖C(x) - x‖² <= (1 - 0.99/B) ‖x‖²``
    with B the block.
    """

    name = "twobit"
    source = "Sarfi et al. 2025, Communication efficient LLM pre-training with SparseLoCo, 2-bit values"
    traits = replace(ROUNDED, unbiased=False)
    examples: tuple[str, ...] = ("block=16",)

    def __init__(self, *, block: int = 128) -> None:
        self.block = chosen_block(self.name, block)

    def kept_values(self) -> TiledValues | None:
        return "twobit" if self.block == BLOCK else None

    def specs(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        blocks = -(-numel // self.block)
        return TensorSpec(torch.bfloat16, 2 * blocks), TensorSpec(torch.uint8, packed_bytes(numel, 2))

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        return Payload(quantize_two_bits(x, self.block), None, x.numel(), cf, key)

    def decode(self, payload: Payload) -> Tensor:
        means, packed = payload.parts
        return dequantize_two_bits(means, packed, payload.numel, self.block)

    def block_of(self, cf: float) -> int:
        return math.lcm(self.block, 4)  # four codes are a byte

    def bound(self, numel: int, cf: float) -> Bound:
        """Two scaled signs; see ``ScaledSign``. Rounding the means costs less than a hundredth of what is kept."""
        return Bound(delta=0.99 / min(numel, self.block))
