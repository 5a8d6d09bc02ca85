"""QSGD with Elias coding: zeros cost next to nothing, so few levels and the l2 norm make small payloads."""

import math
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from gravac.compressors.base import Key, Payload, TensorSpec
from gravac.compressors.quantize.qsgd import QSGD
from gravac.compressors.quantize.quantizer import ROUNDED
from gravac.kernels import Norm, pack, packed_bytes, unpack
from gravac.kernels.entropy.elias import chain, glue, omega, omega_at_every_bit, stream


class EliasQSGD(QSGD):
    """QSGD with Elias coding: zeros cost next to nothing, so few levels and the l2 norm make small payloads.

    For each level that is not zero: omega(gap since the last one), 1 sign bit, omega(level). 4 bytes per block, and as
    many bits as the levels need. ``bits`` sets the number of levels, as in QSGD, and not the size. With the l2 norm the
    CF reached is larger than the CF asked for, and it is known only afterwards.
    """

    name = "qsgd-elias"
    source = "Alistarh et al. 2017, QSGD, Elias coding of sparse levels"
    traits = replace(ROUNDED, fixed_size=False, sync_free=False)
    examples: tuple[str, ...] = ("bits=2,block=64", "norm=linf")

    def __init__(self, *, bits: int | None = None, norm: Norm = "l2", block: int = 512) -> None:
        super().__init__(bits=bits, norm=norm, block=block)

    def specs(self, numel: int, cf: float, dtype: torch.dtype) -> None:
        return None

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        scales, levels = self.quantize(x, cf, key)
        return Payload((scales, pack(encode(levels), 1)), None, x.numel(), cf, key)

    def decode(self, payload: Payload) -> Tensor:
        packed = payload.parts[1]
        levels = decode(unpack(packed, 8 * packed.numel(), 1), payload.numel)
        return self.scaled(payload, levels.float())

    def specs_of(self, nbytes: int, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        blocks = -(-numel // self.block)
        if nbytes < 4 * blocks:
            raise ValueError(f"{self.name} payload has {nbytes} bytes, at least {4 * blocks} for n={numel}")
        return TensorSpec(torch.float32, blocks), TensorSpec(torch.uint8, nbytes - 4 * blocks)

    def wire_bytes(self, numel: int, cf: float, dtype: torch.dtype) -> int:
        block, steps = min(numel, self.block), 2 ** (self.width(cf) - 1) - 1
        bits = round(numel * _bits_an_element(block, steps, self.norm))
        return 4 * -(-numel // self.block) + packed_bytes(bits, 1)

    def blank(
        self, numel: int, cf: float, key: Key, dtype: torch.dtype, device: torch.device, value: float
    ) -> Payload:
        blocks = -(-numel // self.block)
        scales = torch.full((blocks,), value, device=device, dtype=torch.float32)
        return self.rebuild((scales, torch.empty(0, dtype=torch.uint8, device=device)), numel, cf, key)


def encode(levels: Tensor) -> Tensor:
    """Encode whole numbers.

    Args:
        levels: Shape ``(n,)``.

    Returns:
        uint8 bits, a multiple of 8 of them; none if all levels are zero.
    """
    places = levels.nonzero().squeeze(1)
    found = levels[places].long()
    gaps = torch.diff(places, prepend=places.new_full((1,), -1))
    sign = ((found < 0).long(), torch.ones_like(found))
    return stream(glue(glue(omega(gaps), sign), omega(found.abs())))


def decode(bits: Tensor, numel: int) -> Tensor:
    """Decode what ``encode`` made.

    Args:
        bits: uint8, shape ``(t,)``.
        numel: Levels to return.

    Returns:
        int64 of shape ``(numel,)``.

    Raises:
        ValueError: The bits are no such code.
    """
    end = bits.numel()
    number, following = omega_at_every_bit(bits)
    sign_at = following  # ... of the symbol whose gap begins at p; its level begins one further
    level_at = torch.where(sign_at < end, sign_at + 1, end + 1)
    after = following[level_at]
    after[end] = end
    starts = chain(after)
    starts = starts[after[starts] <= end]  # the last may be filling
    places = number[starts].cumsum(0) - 1
    if starts.numel() and not 0 <= int(places[-1]) < numel:
        raise ValueError(f"the code's last level belongs to element {int(places[-1])} of {numel}")
    size = number[level_at[starts]]
    levels = torch.zeros(numel, dtype=torch.int64, device=bits.device)
    levels[places] = torch.where(bits[sign_at[starts]].bool(), -size, size)
    return levels


@cache
def _bits_an_element(block: int, steps: int, norm: Norm) -> float:
    """Return the expected bits of the code per element of normal data."""
    quantiles = torch.special.ndtri(
        (torch.arange(4096, dtype=torch.float64, device="cpu") + 0.5) / 4096
    ).abs()
    scale = math.sqrt(block) if norm == "l2" else max(1.0, math.sqrt(2 * math.log(block)))
    a = (quantiles / scale).clamp(max=1.0) * steps
    low, share = a.floor().long(), a - a.floor()
    chances = torch.zeros(steps + 2, dtype=torch.float64, device="cpu")
    chances.index_add_(0, low, (1 - share) / 4096).index_add_(0, low + 1, share / 4096)
    nonzero = float(chances[1:].sum())
    gaps = torch.arange(1, 1 + min(100_000, math.ceil(20 / nonzero)), dtype=torch.int64, device="cpu")
    gap_chances = nonzero * (1 - nonzero) ** (gaps.double() - 1)
    gap_bits = float((omega(gaps)[1] * gap_chances).sum())
    level_bits = (
        float((omega(torch.arange(1, steps + 2, dtype=torch.int64, device="cpu"))[1] * chances[1:]).sum())
        / nonzero
    )
    return nonzero * (gap_bits + 1 + level_bits)
