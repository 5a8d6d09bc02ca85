"""What all codecs share that send some elements as they are."""

from abc import abstractmethod

import torch
from torch import Tensor

from gravac import kernels
from gravac.compressors.base import Compressor, Key, Part, Payload, Traits, kept, travelling

PLAIN = Traits(
    unbiased=False,
    linear=False,
    homogeneous=True,
    fixed_size=True,
    nested=True,
    selector=True,
    projection=True,
)
"""Traits of Top-k: other selectors say where they differ."""


class Selector(Compressor):
    """The payload's values belong to ``support``; everything is done on those few elements."""

    def weight(self, payload: Payload) -> float:
        """What decoding multiplies the values by: 1, but in unbiased codecs."""
        return 1.0

    def decompress(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        assert payload.support is not None
        out.index_add_(0, payload.support, payload.values.to(out.dtype), alpha=scale * self.weight(payload))

    def energy(self, payload: Payload) -> float:
        return self.weight(payload) ** 2 * kernels.energy(payload.values)

    def inner(self, payload: Payload, x: Tensor) -> float:
        assert payload.support is not None
        return self.weight(payload) * kernels.inner(payload.values, x[payload.support])

    def reached(self, numel: int, cf: float) -> float:
        return numel / kept(numel, cf)

    def achieved(self, payload: Payload) -> float:
        return payload.numel / payload.values.numel() if payload.values.numel() else float("inf")


class Indexed(Selector):
    """Values and their int32 positions, 8 bytes an element for float32; as many as ``choose`` finds."""

    @abstractmethod
    def choose(self, x: Tensor, cf: float, key: Key) -> Tensor:
        """Positions to send of ``x``, int64, ascending."""

    def layout(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[Part, ...] | None:
        return pairs(kept(numel, cf), dtype) if self.traits.fixed_size else None

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        if x.numel() > 2**31 - 1:
            raise ValueError(
                f"{x.numel()} elements do not fit 32-bit positions; use smaller DDP buckets (bucket_cap_mb)"
            )
        support = self.choose(x, cf, key)
        return Payload((travelling(x[support], dtype), support.int()), support, x.numel(), cf, key)

    def rebuild(self, parts: tuple[Tensor, ...], numel: int, cf: float, key: Key) -> Payload:
        return Payload(parts, parts[1].long(), numel, cf, key)

    def wire_bytes(self, numel: int, cf: float, dtype: torch.dtype) -> int:
        return sum(part.nbytes for part in pairs(kept(numel, cf), dtype))

    def parts_of(self, nbytes: int, numel: int, cf: float, dtype: torch.dtype) -> tuple[Part, ...]:
        if self.traits.fixed_size:
            return super().parts_of(nbytes, numel, cf, dtype)
        count, left = divmod(nbytes, dtype.itemsize + 4)
        if left or count > numel:
            raise ValueError(
                f"{self.name} payload has {nbytes} bytes, which is no number of elements of at most {numel}"
            )
        return pairs(count, dtype)

    def blank(
        self, numel: int, cf: float, key: Key, dtype: torch.dtype, device: torch.device, value: float
    ) -> Payload:
        if self.traits.fixed_size:
            return super().blank(numel, cf, key, dtype, device, value)
        values = torch.full((1,), value, dtype=dtype, device=device)
        return self.rebuild((values, torch.zeros(1, dtype=torch.int32, device=device)), numel, cf, key)

    def narrow(self, payload: Payload, cf: float) -> Payload:
        if not self.traits.nested:
            return super().narrow(payload, cf)
        assert payload.support is not None
        chosen = kernels.select_top(payload.values, kept(payload.numel, cf))
        parts = tuple(part[chosen] for part in payload.parts)
        return Payload(parts, payload.support[chosen], payload.numel, cf, payload.key)


def pairs(count: int, dtype: torch.dtype) -> tuple[Part, ...]:
    """Parts of ``count`` values with their positions."""
    return Part(dtype, count), Part(torch.int32, count)
