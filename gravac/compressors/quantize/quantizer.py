"""What quantisers share: every element is sent, in few bits."""

from abc import abstractmethod

import torch
from torch import Tensor

from gravac.compressors.base import Compressor, Payload, Traits

ROUNDED = Traits(
    unbiased=True,
    linear=False,
    homogeneous=True,
    fixed_size=True,
    nested=False,
    selector=False,
    projection=False,
)
"""Traits of a stochastic quantiser with its own scale: others say where they differ."""


class Quantiser(Compressor):
    """Decodes to a whole tensor."""

    @abstractmethod
    def decode(self, payload: Payload) -> Tensor:
        """The decoded tensor, float32, shape ``(n,)``."""

    def decompress(self, payload: Payload, out: Tensor, scale: float = 1.0) -> None:
        out.add_(self.decode(payload).to(out.dtype), alpha=scale)


def mildest(ladder: tuple[int, ...], cf: float) -> int:
    """The most bits of a descending ``ladder`` with 32 / bits >= ``cf``, else the fewest."""
    return next((bits for bits in ladder if 32 / bits >= cf), ladder[-1])


def chosen_bits(name: str, bits: int | None, ladder: tuple[int, ...]) -> int | None:
    """``bits`` as given by a user. Raises ValueError if it is not on the ladder."""
    if bits is not None and bits not in ladder:
        raise ValueError(f"{name}: bits={bits} must be one of {', '.join(map(str, ladder))}")
    return bits


def chosen_block(name: str, block: int) -> int:
    """``block`` as given by a user. Raises ValueError if no tensor can be cut that way."""
    if block < 1:
        raise ValueError(f"{name}: block={block} must be at least 1 element")
    return block


def spread(scales: Tensor, block: int, numel: int) -> Tensor:
    """Each block's scale for each of its elements, shape ``(numel,)``."""
    return torch.repeat_interleave(scales, min(block, numel))[:numel]
