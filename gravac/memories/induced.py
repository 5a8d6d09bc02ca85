"""The induced compressor: two codecs in a row, the second on what the first left, C(y) = C1(y) + C2(y - C1(y))."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gravac.compressors.base import Bound, Compressor, Key, Payload, TensorSpec

_SECOND_DRAW = 0x51AFD7ED558CCD25
"""Turns the key of the first codec into an independent one: with equal draws the second codec would undo nothing."""


@dataclass(frozen=True, slots=True)
class InducedPayload(Payload):
    """The parts of both payloads, and the payloads themselves for a caller that decodes at once."""

    first: Payload | None = None
    second: Payload | None = None


class Induced(Compressor):
    """Two codecs in a row. Unbiased if the second is, with θ = θ2 · ρ1, where ρ1 is the relative error of the first.

    iConEF stores its residual this way. v1: the same codec twice, θ² (helps if θ < 1). v2: the wire's codec first, then
    an unbiased one (always helps, and stores the first payload too).

    Args:
        first: Compresses y; gets the CF.
        second: Compresses the rest; its payloads must have a fixed size, so that both can be separated.
        second_cf: The CF that the second codec is asked for.

    Raises:
        ValueError: The second codec's payloads vary in size.
    """

    name = "induced"
    source = "Horváth & Richtárik 2021, A better alternative to error feedback; Li et al. 2023, iConEF"

    def __init__(self, first: Compressor, second: Compressor, second_cf: float = 1.0) -> None:
        if not second.traits.fixed_size:
            raise ValueError(
                f"second={second.name!r} has payloads of varying size; use a quantizer or Random-k"
            )
        self.first, self.second, self.second_cf = first, second, second_cf
        self.traits = replace(
            second.traits,
            homogeneous=first.traits.homogeneous and second.traits.homogeneous,
            fixed_size=first.traits.fixed_size,
            linear=False,
            nested=False,
            selector=False,
            projection=False,
        )

    def specs(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...] | None:
        first = self.first.specs(numel, cf, dtype)
        return None if first is None else first + self._second_specs(numel, dtype)

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        first = self.first.compress(x, cf, key, dtype)
        rest = x.clone()
        self.first.remove(first, rest)
        first.forget()
        second = self.second.compress(rest, self.second_cf, _second(key), dtype)
        return InducedPayload(first.parts + second.parts, None, x.numel(), cf, key, first, second)

    def rebuild(self, parts: tuple[Tensor, ...], numel: int, cf: float, key: Key) -> Payload:
        count = len(parts) - len(self._second_specs(numel, torch.float32))
        first = self.first.rebuild(parts[:count], numel, cf, key)
        second = self.second.rebuild(parts[count:], numel, self.second_cf, _second(key))
        return InducedPayload(parts, None, numel, cf, key, first, second)

    def decompress(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        assert isinstance(payload, InducedPayload)
        assert payload.first is not None
        assert payload.second is not None
        self.first.decompress(payload.first, out, scale)
        self.second.decompress(payload.second, out, scale)

    def wire_bytes(self, numel: int, cf: float, dtype: torch.dtype) -> int:
        return self.first.wire_bytes(numel, cf, dtype) + self.second.wire_bytes(numel, self.second_cf, dtype)

    def bound(self, numel: int, cf: float) -> Bound:
        first = self.first.bound(numel, cf).ratio
        second = self.second.bound(numel, self.second_cf).omega
        return Bound(omega=None if first is None or second is None else first * second)

    def _second_specs(self, numel: int, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        specs = self.second.specs(numel, self.second_cf, dtype)
        assert specs is not None
        return specs


def _second(key: Key) -> Key:
    return key._replace(seed=key.own_seed() ^ _SECOND_DRAW)
