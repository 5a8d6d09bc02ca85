"""Natural compression: every element becomes a power of two, rounded up or down at random."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Key, Payload, TensorSpec
from gravac.compressors.quantize.quantizer import ROUNDED, Quantizer
from gravac.kernels import noise, pack, packed_bytes, powers_of_two, unpack


class _Range(NamedTuple):
    """Exponents that have a code. Code 0 is zero, the last one everything non-finite."""

    lowest: int
    highest: int

    @property
    def nonfinite(self) -> int:
        return self.highest - self.lowest + 2


_RANGES = {8: _Range(-109, 16), 9: _Range(-126, 127)}


class Natural(Quantizer):
    """Rounds every element to a power of two, up or down at random.

    Between 2^a and 2^(a+1) it takes the upper one with probability ``|x|/2^a - 1``: ``E‖C(x) - x‖² <= ‖x‖²/8``.

    ``bits=8``: n bytes, a sign and 7 bits of exponent, 2^-109 to 2^16. Smaller elements become 0 or 2^-109, with the
    right mean; larger ones become 2^16 and the rest stays in the residual. ``bits=9``: all exponents of float32.
    """

    name = "natural"
    source = "Horváth et al. 2022, Natural compression, randomized rounding to powers of two"
    traits = replace(ROUNDED, homogeneous=False)  # only for powers of two, and not at the ends of the range
    examples: tuple[str, ...] = ("bits=9",)

    def __init__(self, *, bits: int = 8) -> None:
        if bits not in _RANGES:
            raise ValueError(f"natural: bits={bits} must be 8 or 9")
        self.bits, self._range = bits, _RANGES[bits]

    def specs(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        codes = TensorSpec(torch.uint8, numel)
        return (codes,) if self.bits == 8 else (codes, TensorSpec(torch.uint8, packed_bytes(numel, 1)))

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        low, high = self._range
        size = x.float().abs().contiguous()
        fraction, exponent = torch.frexp(size)  # size = fraction · 2^exponent, fraction in [1/2, 1)
        draw = noise(x.numel(), key.own_seed(), x.device)
        rounded = exponent - 1 + (draw < 2 * fraction - 1)
        code = (rounded - low + 1).clamp(max=high - low + 1)
        below = (exponent <= low) | (size == 0)
        # Below the smallest power with a code, that power or zero, at random with the right mean.
        code = torch.where(below, (draw < size * 2.0**-low).int(), code)
        code = torch.where(size.isfinite(), code, self._range.nonfinite)
        negative = x < 0
        if self.bits == 8:
            parts: tuple[Tensor, ...] = ((code + 128 * negative).to(torch.uint8),)
        else:
            parts = (code.to(torch.uint8), pack(negative, 1))
        return Payload(parts, None, x.numel(), cf, key)

    def decode(self, payload: Payload) -> Tensor:
        low, high = self._range
        ends = payload.values.new_zeros(2, dtype=torch.float32)
        ends[1:] = torch.nan
        powers = powers_of_two(low, high, payload.values.device)
        table = torch.cat((ends[:1], powers, ends[1:]))
        if self.bits == 8:
            codes, negative = payload.values & 127, payload.values >= 128
        else:
            codes, negative = payload.values, unpack(payload.parts[1], payload.numel, 1).bool()
        size = table[codes.long()]
        return torch.where(negative, -size, size)

    def blank(
        self, numel: int, cf: float, key: Key, dtype: torch.dtype, device: torch.device, value: float
    ) -> Payload:
        # No part is a float that could say NaN; the code that does is the last one.
        empty = super().blank(numel, cf, key, dtype, device, 0.0)
        if value != 0.0:
            empty.values.fill_(self._range.nonfinite)
        return empty

    def bound(self, numel: int, cf: float) -> Bound:
        return Bound(omega=1 / 8, absolute=numel * 4.0 ** (self._range.lowest - 1))
