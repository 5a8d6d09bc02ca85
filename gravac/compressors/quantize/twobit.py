"""Two bits: every element becomes its sign times one of two magnitudes of its block."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Key, Payload, TensorSpec
from gravac.compressors.quantize.quantizer import ROUNDED, Quantizer, chosen_block, spread
from gravac.kernels import blocked, pack, packed_bytes, relative, row_scales, unpack

_LARGEST = torch.finfo(torch.bfloat16).max


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

    def specs(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        blocks = -(-numel // self.block)
        return TensorSpec(torch.bfloat16, 2 * blocks), TensorSpec(torch.uint8, packed_bytes(numel, 2))

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        rows = blocked(x.detach(), self.block)
        top = row_scales(rows, "linf")
        sizes = relative(rows, top).abs()
        inside = torch.ones_like(sizes, dtype=torch.bool)
        inside.view(-1)[x.numel() :] = False
        low, high, _ = _parts(sizes, inside, _mean(sizes, inside))
        low, high, large = _parts(sizes, inside, (low + high) / 2)
        means = torch.stack((low, high), 1) * top.unsqueeze(1)
        means = torch.where(top.isfinite().unsqueeze(1), means.clamp_max(_LARGEST), top.unsqueeze(1))
        codes = ((rows >= 0).to(torch.uint8) + 2 * large.to(torch.uint8)).flatten()[: x.numel()]
        return Payload((means.flatten().to(torch.bfloat16), pack(codes, 2)), None, x.numel(), cf, key)

    def decode(self, payload: Payload) -> Tensor:
        means, packed = payload.parts
        codes = unpack(packed, payload.numel, 2)
        low, high = (
            spread(part.contiguous(), self.block, payload.numel)
            for part in means.float().view(-1, 2).unbind(1)
        )
        sizes = torch.where(codes >= 2, high, low)
        return torch.where(codes % 2 == 1, sizes, -sizes)

    def block_of(self, cf: float) -> int:
        return math.lcm(self.block, 4)  # four codes are a byte

    def bound(self, numel: int, cf: float) -> Bound:
        """Two scaled signs; see ``ScaledSign``. Rounding the means costs less than a hundredth of what is kept."""
        return Bound(delta=0.99 / min(numel, self.block))


def _mean(sizes: Tensor, chosen: Tensor) -> Tensor:
    """Return the mean of each row's chosen elements; 0 if there is none."""
    return (sizes * chosen).sum(1) / chosen.sum(1).clamp_min(1)


def _parts(sizes: Tensor, inside: Tensor, split: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the means of the elements up to ``split`` and above it, and which elements are above it."""
    large = sizes > split.unsqueeze(1)
    return _mean(sizes, inside & ~large), _mean(sizes, large), large
