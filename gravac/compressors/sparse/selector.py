"""The base classes of selectors: codecs that send some elements as they are."""

import torch
from torch import Tensor

from gravac import kernels
from gravac.compressors.base import Compressor, Key, Payload, TensorSpec, Traits, kept_count, to_wire

PLAIN = Traits(
    unbiased=False,
    linear=False,
    homogeneous=True,
    fixed_size=True,
    nested=True,
    selector=True,
    projection=True,
    sync_free=True,
)
"""Traits of Top-k; other selectors state where they differ."""


class Selector(Compressor):
    """A codec whose payload has values and their positions, ``support``; all work is done on those few elements."""

    leaves_out = True

    def weight(self, payload: Payload) -> float:
        """Return the factor by which decoding multiplies values: 1, except in unbiased codecs."""
        return 1.0

    def decompress(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        assert payload.support is not None
        kernels.scatter_add(out, payload.support, payload.parts[0], scale * self.weight(payload))

    def _energy(self, payload: Payload) -> kernels.Scalar:
        return self.weight(payload) ** 2 * kernels.energy(payload.parts[0])

    def inner(self, payload: Payload, x: Tensor) -> kernels.Scalar:
        assert payload.support is not None
        return self.weight(payload) * kernels.inner_at(x, payload.support, payload.parts[0])

    def reached(self, numel: int, cf: float) -> float:
        return numel / kept_count(numel, cf)


class Indexed(Selector):
    """A selector that sends values with their positions. Subclasses implement ``choose``, or ``compress`` if they find
    the values along with the positions.

    Where their number is known beforehand, positions take about as many bits as their entropy (``pack_positions``: at
    most 2 + log2(CF) bits each, or one bit for each of the n elements). Otherwise they are int32.
    """

    def choose(self, x: Tensor, cf: float, key: Key) -> Tensor:
        """Return the positions of ``x`` to send, int32 or int64, ascending."""
        raise NotImplementedError(f"{type(self).__name__} must define choose")

    def specs(self, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...] | None:
        if not self.traits.fixed_size:
            return None
        count = kept_count(numel, cf)
        return TensorSpec(dtype, count), TensorSpec(torch.uint8, kernels.position_bytes(count, numel))

    def compress(self, x: Tensor, cf: float, key: Key, dtype: torch.dtype) -> Payload:
        if x.numel() > 2**31 - 1:
            raise ValueError(
                f"{x.numel()} elements do not fit 32-bit positions; use smaller DDP buckets (bucket_cap_mb)"
            )
        support = self.choose(x, cf, key)
        return self._payload(to_wire(x[support], dtype), support, x.numel(), cf, key)

    def rebuild(self, parts: tuple[Tensor, ...], numel: int, cf: float, key: Key) -> Payload:
        places = parts[1]
        if self.traits.fixed_size:
            places = kernels.unpack_positions(places, kept_count(numel, cf), numel)
        return Payload(parts, places, numel, cf, key)

    def wire_bytes(self, numel: int, cf: float, dtype: torch.dtype) -> int:
        if self.traits.fixed_size:
            return super().wire_bytes(numel, cf, dtype)
        return sum(part.nbytes for part in pairs(kept_count(numel, cf), dtype))

    def specs_of(self, nbytes: int, numel: int, cf: float, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        count, left = divmod(nbytes, dtype.itemsize + 4)
        if left or count > numel:
            raise ValueError(
                f"{self.name} payload has {nbytes} bytes, which is no number of elements of at most {numel}"
            )
        return pairs(count, dtype)

    def blank(
        self, numel: int, cf: float, key: Key, dtype: torch.dtype, device: torch.device, value: float
    ) -> Payload:
        count = kept_count(numel, cf) if self.traits.fixed_size else 1
        values = torch.full((count,), value, dtype=dtype, device=device)
        return self._payload(values, torch.arange(count, device=device, dtype=torch.int64), numel, cf, key)

    def narrow(self, payload: Payload, cf: float) -> Payload:
        if not self.traits.nested:
            return super().narrow(payload, cf)
        assert payload.support is not None
        chosen = kernels.select_top(payload.parts[0], kept_count(payload.numel, cf))
        key = payload.key or Key(0, 0, 0, 0)
        return self._payload(payload.parts[0][chosen], payload.support[chosen], payload.numel, cf, key)

    def _payload(self, values: Tensor, support: Tensor, numel: int, cf: float, key: Key) -> Payload:
        support = support.int()
        places = kernels.pack_positions(support, numel) if self.traits.fixed_size else support
        return Payload((values, places), support, numel, cf, key)


def pairs(count: int, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
    """Return the specs of ``count`` values with int32 positions."""
    return TensorSpec(dtype, count), TensorSpec(torch.int32, count)
