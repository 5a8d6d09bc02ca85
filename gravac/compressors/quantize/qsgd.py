"""QSGD, int8 and int4: every element becomes a whole number of steps of its block's norm, rounded at random."""

import math

import torch
from torch import Tensor

from gravac import kernels
from gravac.compressors.base import Bound, Key, Payload, TensorSpec
from gravac.compressors.quantize.quantizer import (
    ROUNDED,
    Quantizer,
    chosen_bits,
    chosen_block,
    mildest,
    spread,
)
from gravac.kernels import (
    Norm,
    blocked,
    pack,
    packed_bytes,
    relative,
    row_scales,
    stochastic_round,
    unpack,
)
from gravac.kernels.device.rounded import FORMATS, RANDOM, Rounding
from gravac.offers import Offer

_LADDER = (8, 4, 3, 2)


class QSGD(Quantizer):
    """Rounds every element at random to a whole number of steps of its block's norm.

    s = 2^(bits-1) - 1 steps on each side: ceil(bits·n/8) bytes, and 4 per block. ``bits``: 8, 4, 3 or 2; by default the
    CF asked for decides. ``norm``: linf (far smaller error) or l2 (the paper's). ``block``: elements that share a norm.
    ``E‖C(x) - x‖² <= min(B/4s², √B/s) ‖x‖²`` with B the block.
    """

    name = "qsgd"
    source = "Alistarh et al. 2017, QSGD, §3.1 and lemma 3.1"
    traits = ROUNDED
    offer = Offer(
        sgd={12.8: (0.942, 1.000, 1.000)},
        adam={12.8: (0.265, 0.483, 0.609)},
        random=True,
        averages_out=True,
    )
    examples: tuple[str, ...] = ("bits=2", "bits=3", "norm=l2", "bits=4,norm=l2,block=32")

    def __init__(self, *, bits: int | None = None, norm: Norm = "linf", block: int = 512) -> None:
        if norm not in ("l2", "linf"):
            raise ValueError(f"{self.name}: norm={norm!r} must be l2 or linf")
        self.bits = chosen_bits(self.name, bits, _LADDER)
        self.norm, self.block = norm, chosen_block(self.name, block)

    def width(self, cf: float) -> int:
        """Return the bits per element at that CF."""
        return self.bits or mildest(_LADDER, cf)

    def specs(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...] | None:
        return (
            TensorSpec(torch.float32, math.ceil(numel / self.block)),
            TensorSpec(torch.uint8, packed_bytes(numel, self.width(cf))),
        )

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        bits = self.width(cf)
        if self.norm == "linf":  # in one pass
            return Payload(kernels.quantize(x, self.block, bits, key.own_seed()), None, x.numel(), cf, key)
        scales, levels = self.quantize(x, cf, key)
        return Payload((scales, pack(levels + _steps(bits), bits)), None, x.numel(), cf, key)

    def decode(self, payload: Payload) -> Tensor:
        bits = self.width(payload.cf)
        if self.norm == "linf":
            scales, packed = payload.parts
            return kernels.dequantize(scales, packed, payload.numel, self.block, bits)
        return self.scaled(payload, unpack(payload.parts[1], payload.numel, bits).float() - _steps(bits))

    def block_of(self, cf: float) -> int | None:
        exact = self.norm == "linf" and self.width(cf) > 2  # else the error is too large
        # Eight codes are whole bytes, whatever their width.
        return math.lcm(self.block, 8) if exact and self.traits.fixed_size else None

    def quantize(self, x: Tensor, cf: float, key: Key) -> tuple[Tensor, Tensor]:
        """Return the norm of each block, and each element's level in [-s, s] as int16 of shape ``(n,)``."""
        rows = blocked(x, self.block)
        scales = row_scales(rows, self.norm)
        levels = stochastic_round(relative(rows, scales) * _steps(self.width(cf)), key.own_seed())
        return scales, levels.flatten()[: x.numel()].to(torch.int16)

    def scaled(self, payload: Payload, levels: Tensor) -> Tensor:
        """Return the elements that these levels stand for."""
        share = levels / _steps(self.width(payload.cf))
        return share * spread(payload.parts[0], self.block, payload.numel)

    def bound(self, numel: int, cf: float) -> Bound:
        steps, block = _steps(self.width(cf)), min(numel, self.block)
        return Bound(omega=min(block / (4 * steps**2), math.sqrt(block) / steps))


def _steps(bits: int) -> int:
    return (1 << (bits - 1)) - 1


class Int8(QSGD):
    """QSGD with 8 bits and blocks of 256: accurate enough to store an error memory.

    127 steps of the block's largest magnitude: variance at most 0.4 % of ``‖x‖²``, CF 3.94.
    """

    name = "int8"
    offer = Offer(plans={"": 3.9}, sgd={3.9: (0.980, 1.000, 1.000)}, adam={3.9: (0.995, 0.996, 1.000)})
    source = "Dettmers 2016, 8-bit approximations for parallelism; Alistarh et al. 2017, lemma 3.1 with the max norm"
    examples: tuple[str, ...] = ()

    def __init__(self, *, block: int = 256) -> None:
        super().__init__(bits=8, block=block)

    def message_rounding(self, cf: float, dtype: torch.dtype) -> Rounding | None:
        return RANDOM if self.block == RANDOM.block and dtype in FORMATS else None


class Int4(QSGD):
    """QSGD with 4 bits and blocks of 32: accurate enough to store an error memory.

    7 steps of the block's largest magnitude: variance at most 16.3 % of ``‖x‖²``, CF 6.4.
    """

    name = "int4"
    source = Int8.source
    examples: tuple[str, ...] = ()

    def __init__(self, *, block: int = 32) -> None:
        super().__init__(bits=4, block=block)
