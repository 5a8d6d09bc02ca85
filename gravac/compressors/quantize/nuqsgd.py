"""NUQSGD: levels at powers of two of the block's norm, where most normalized elements are."""

import math

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Key, Payload, TensorSpec
from gravac.compressors.quantize.quantizer import (
    ROUNDED,
    Quantizer,
    chosen_bits,
    chosen_block,
    mildest,
    spread,
)
from gravac.kernels import blocked, noise, pack, packed_bytes, powers_of_two, relative, row_scales, unpack

_LADDER = (4, 3, 2)


class NUQSGD(Quantizer):
    """Rounds every element at random to a level: 0, 2^-s, …, 1/2 or 1 times the l2 norm of its block, s = 2^(bits-1) -
    2.

    ceil(bits·n/8) bytes, and 4 per block. Error: at most one eighth of x² between levels, ``r·(2^-s - r)`` below the
    lowest; by Cauchy-Schwarz, with ``c = 2^-s √B``, at most ``2c²/9 + 1/8`` for c < 9/4, else ``c - 1``, times ``‖x‖²``
    (never above the paper's bound).
    """

    name = "nuqsgd"
    source = "Ramezani-Kebrya et al. 2021, NUQSGD, levels at powers of two; bound derived here"
    traits = ROUNDED
    examples: tuple[str, ...] = ("bits=2", "bits=3,block=64")

    def __init__(self, *, bits: int | None = None, block: int = 512) -> None:
        self.bits, self.block = chosen_bits(self.name, bits, _LADDER), chosen_block(self.name, block)

    def width(self, cf: float) -> int:
        """Return the bits per element at that CF."""
        return self.bits or mildest(_LADDER, cf)

    def specs(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        return (
            TensorSpec(torch.float32, math.ceil(numel / self.block)),
            TensorSpec(torch.uint8, packed_bytes(numel, self.width(cf))),
        )

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        lowest = _lowest(self.width(cf))
        rows = blocked(x, self.block)
        scales = row_scales(rows, "l2")
        share = relative(rows, scales).flatten()[: x.numel()]
        fraction, exponent = torch.frexp(share.abs())  # share = fraction · 2^exponent, fraction in [1/2, 1)
        draw = noise(x.numel(), key.own_seed(), x.device)
        # Level number: 0 for zero, 1 for 2^-s, s + 1 for 1. Below 2^-s the neighbors are 0 and 2^-s.
        level = torch.where(
            (exponent <= -lowest) | (share == 0),
            draw < share.abs() * 2.0**lowest,
            exponent + lowest + (draw < 2 * fraction - 1),
        )
        signed = torch.where(share < 0, -level, level)
        return Payload((scales, pack(signed + lowest + 1, self.width(cf))), None, x.numel(), cf, key)

    def decode(self, payload: Payload) -> Tensor:
        lowest = _lowest(self.width(payload.cf))
        powers = powers_of_two(-lowest, 0, payload.values.device)
        table = torch.cat((-powers.flip(0), powers.new_zeros(1), powers))
        codes = unpack(payload.parts[1], payload.numel, self.width(payload.cf)).long()
        return table[codes] * spread(payload.parts[0], self.block, payload.numel)

    def bound(self, numel: int, cf: float) -> Bound:
        c = math.sqrt(min(numel, self.block)) / 2 ** _lowest(self.width(cf))
        return Bound(omega=2 * c**2 / 9 + 1 / 8 if c < 9 / 4 else c - 1)


def _lowest(bits: int) -> int:
    """Return s. The lowest level above zero is 2^-s."""
    return (1 << (bits - 1)) - 2
