"""The base classes of quantizers: codecs that send every element in few bits."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from typing import Self

import torch
from torch import Tensor

from gravac.compressors.base import Compressor, Payload, Traits
from gravac.kernels.device.tiled import Values as TiledValues

ROUNDED = Traits(
    unbiased=True,
    linear=False,
    homogeneous=True,
    fixed_size=True,
    nested=False,
    selector=False,
    projection=False,
    sync_free=True,
)
"""Traits of a stochastic quantizer that sends its scale; others state where they differ."""


class Quantizer(Compressor):
    """A codec that decodes to a whole tensor. Subclasses implement ``decode`` instead of ``decompress``."""

    def kept_values(self) -> TiledValues | None:
        """Return how a whole message made on a device sends a selector's values, rounded by this; None: it cannot."""
        return None

    @abstractmethod
    def decode(self, payload: Payload) -> Tensor:
        """Return the decoded tensor, float32 of shape ``(n,)``."""

    def decompress(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        out.add_(self.decode(payload).to(out.dtype), alpha=scale)

    def remove(self, payload: Payload, x: Tensor) -> None:
        x.sub_(self.decoded(payload).to(x.dtype))


def mildest(ladder: tuple[int, ...], cf: float) -> int:
    """Return the most bits of a descending ``ladder`` with 32 / bits >= ``cf``, else the fewest."""
    return next((bits for bits in ladder if 32 / bits >= cf), ladder[-1])


def chosen_bits(name: str, bits: int | None, ladder: tuple[int, ...]) -> int | None:
    """Return the ``bits`` that a user gave. Raise ValueError if they are not on the ladder."""
    if bits is not None and bits not in ladder:
        raise ValueError(f"{name}: bits={bits} must be one of {', '.join(map(str, ladder))}")
    return bits


def chosen_block(name: str, block: int) -> int:
    """Return the ``block`` that a user gave. Raise ValueError if it is below 1."""
    if block < 1:
        raise ValueError(f"{name}: block={block} must be at least 1 element")
    return block


def spread(scales: Tensor, block: int, numel: int) -> Tensor:
    """Return each block's scale for each of its elements, shape ``(numel,)``."""
    return torch.repeat_interleave(scales, min(block, numel))[:numel]


_AT_ONCE = 1 << 16
"""Elements summed at a time on a CPU, so that intermediate results stay in its cache."""


class PerTensor(Quantizer):
    """A quantizer with scales per tensor: layers differ in magnitude, and a DDP bucket holds several.

    It is ``fitted`` to tensors of known sizes; otherwise the flat tensor counts as one.
    """

    _numels: tuple[int, ...] = ()

    def fitted(self, shapes: Sequence[tuple[int, ...]]) -> Self:
        other = copy(self)
        # An empty tensor has no magnitude to scale by.
        other._numels = tuple(size for size in (math.prod(shape) for shape in shapes) if size)
        return other

    def numels(self, numel: int) -> tuple[int, ...]:
        """Return the sizes of the tensors that have a scale. Raise ValueError if the codec was fitted to others."""
        if sum(self._numels) not in (0, numel):
            raise ValueError(f"{self.name} was fitted to tensors of {self._numels} elements, not to {numel}")
        return self._numels or (numel,)

    def pieces(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return views of ``x``, one per tensor."""
        return torch.split(x, list(self.numels(x.numel())))

    def spread(self, scales: Tensor, numel: int) -> Tensor:
        """Return each tensor's scale for each of its elements."""
        pieces = zip(scales, self.numels(numel), strict=True)
        return torch.cat([scale.expand(size) for scale, size in pieces])

    def choose(self, upper: Tensor, high: Tensor, low: Tensor) -> Tensor:
        """Return each tensor's ``high`` where ``upper`` is True, else its ``low``.

        Args:
            upper: bool, shape ``(n,)``.
            high: One value per tensor.
            low: One value per tensor.

        Returns:
            float32 of shape ``(n,)``.
        """
        out = torch.empty(upper.numel(), device=upper.device, dtype=torch.float32)
        for piece, which, one, other in zip(self.pieces(out), self.pieces(upper), high, low, strict=True):
            torch.where(which, one, other, out=piece)
        return out


def summed(x: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the sum of ``of(x)`` in float64, shape ``()``, because a float32 sum of finite elements could overflow."""
    size = _AT_ONCE if x.device.type == "cpu" else x.numel()
    total = of(x[:size]).double().sum()
    for part in x[size:].split(size):
        total += of(part).double().sum()
    return total
