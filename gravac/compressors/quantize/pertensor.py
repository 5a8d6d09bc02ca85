"""Codecs whose scales belong to a tensor each: layers differ in magnitude, and a DDP bucket holds several."""

import math
from collections.abc import Callable, Sequence
from copy import copy
from typing import Self

import torch
from torch import Tensor

from gravac.compressors.quantize.quantizer import Quantiser

_AT_ONCE = 1 << 16
"""Elements summed at a time on a CPU, so that what is in between stays in its cache."""


class PerTensor(Quantiser):
    """A quantiser that is ``fitted`` to tensors of known sizes; not fitted, the flat tensor counts as one."""

    _numels: tuple[int, ...] = ()

    def fitted(self, shapes: Sequence[tuple[int, ...]]) -> Self:
        other = copy(self)
        # An empty tensor has no magnitude to scale by.
        other._numels = tuple(size for size in (math.prod(shape) for shape in shapes) if size)
        return other

    def numels(self, numel: int) -> tuple[int, ...]:
        """Sizes of the tensors that have a scale of their own. Raises ValueError if it was fitted to others."""
        if sum(self._numels) not in (0, numel):
            raise ValueError(f"{self.name} was fitted to tensors of {self._numels} elements, not to {numel}")
        return self._numels or (numel,)

    def pieces(self, x: Tensor) -> tuple[Tensor, ...]:
        """Views of ``x``, one a tensor."""
        return torch.split(x, list(self.numels(x.numel())))

    def spread(self, scales: Tensor, numel: int) -> Tensor:
        """Each tensor's scale for each of its elements."""
        counts = torch.tensor(self.numels(numel), device=scales.device)
        return torch.repeat_interleave(scales, counts, output_size=numel)

    def choose(self, upper: Tensor, high: Tensor, low: Tensor) -> Tensor:
        """Each tensor's ``high`` where ``upper`` (bool, shape ``(n,)``), else its ``low``: float32, shape ``(n,)``."""
        out = torch.empty(upper.numel(), device=upper.device)
        for piece, which, one, other in zip(self.pieces(out), self.pieces(upper), high, low, strict=True):
            torch.where(which, one, other, out=piece)
        return out


def summed(x: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
    """Sum of ``of(x)`` in float64, shape ``()``: a float32 sum of finite elements could overflow."""
    size = _AT_ONCE if x.device.type == "cpu" else x.numel()
    total = of(x[:size]).double().sum()
    for part in x[size:].split(size):
        total += of(part).double().sum()
    return total
