"""Who owns which element when a tensor is dealt out among ranks."""

from typing import NamedTuple

import torch
from torch import Tensor

from gravac.kernels import select_top

_MASK = 2**31 - 1
_GOLDEN = 0x9E3779B1


class Shards(NamedTuple):
    """Neighbours go to different ranks, in an order that differs from row to row and from ``seed`` to seed.

    A row is n neighbours, n = ``ranks``; each rank owns one of them, so its shard has an element a row. A selector's
    elements come in clusters (a layer, a column); dealt out like this, each rank gets about as many. The last row may
    reach past ``numel``.
    """

    numel: int
    ranks: int
    seed: int

    @property
    def rows(self) -> int:
        """Elements of each shard, those past the end included."""
        return -(-self.numel // self.ranks)

    def owners(self, places: Tensor) -> Tensor:
        """The rank that owns each place of the tensor (int64)."""
        return (places + self._turn(places // self.ranks)) % self.ranks

    def places(self, rows: Tensor, owner: int) -> Tensor:
        """Where in the tensor these rows of a rank's shard are (int64); past its end at most in the last row."""
        return rows * self.ranks + (owner - self._turn(rows)) % self.ranks

    def _turn(self, rows: Tensor) -> Tensor:
        # Fibonacci hashing: the high half of a product modulo 2^32.
        spread = ((rows + self.seed) & _MASK) * _GOLDEN & 0xFFFFFFFF
        return (spread >> 16) % self.ranks

    def divide(self, places: Tensor, sizes: Tensor, count: int) -> list[Tensor]:
        """For each rank, ``count`` rows of its shard (ascending, at most ``rows``): those of ``places`` (ascending,
        int64), of more the ones of the largest ``sizes`` (shape of ``places``), of fewer filled up with others."""
        owners, rows = self.owners(places), places // self.ranks
        found = []
        for owner in range(self.ranks):
            mine = (owners == owner).nonzero().squeeze(1)
            if mine.numel() > count:
                mine = mine[select_top(sizes[mine], count)]
            found.append(_filled(rows[mine], count))
        return found


def _filled(rows: Tensor, count: int) -> Tensor:
    """``rows`` (ascending, distinct) with the lowest others added until there are ``count``."""
    missing = count - rows.numel()
    if not missing:
        return rows
    free = torch.ones(count, dtype=torch.bool, device=rows.device)
    free[rows[rows < count]] = False
    return torch.cat((rows, free.nonzero().squeeze(1)[:missing])).sort().values
