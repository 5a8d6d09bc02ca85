"""A bucket: the parameters whose gradients lie one after the other in one tensor."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor


class Bucket(NamedTuple):
    """The parameters that a flat gradient is made of, in order. DDP regroups them after its first step."""

    number: int
    names: tuple[str, ...]
    numels: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...] = ()
    """Shape of each parameter; empty if unknown."""

    def split(self, flat: Tensor) -> Iterable[tuple[str, Tensor]]:
        """Return each parameter's name with its part of a tensor of shape ``(n,)``."""
        return zip(self.names, torch.split(flat, list(self.numels)), strict=True)
