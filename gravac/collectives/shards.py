"""A tensor dealt out among ranks, an equal number of elements for each."""

from typing import NamedTuple

import torch
from torch import Tensor

from gravac import kernels


class Shards(NamedTuple):
    """Each of ``ranks`` ranks owns one element of each row of ``ranks`` neighbours, which one differs from row to row
    (``gravac.kernels.dealing``).

    A selector's elements come in clusters (a layer, a column); dealt out like this, each rank gets about as many. The
    last row may reach past ``numel``; what is there does not exist and stands for the last element.
    """

    numel: int
    ranks: int
    seed: int

    @property
    def rows(self) -> int:
        """Elements of each shard, those past the end included."""
        return -(-self.numel // self.ranks)

    def places(self, rows: Tensor, owner: int) -> Tensor:
        """Where in the tensor these rows of a rank's shard are (int32)."""
        return kernels.home(rows, owner, self.ranks, self.seed).clamp_(max=self.numel - 1)

    def read(self, x: Tensor, rows: Tensor, owner: int) -> tuple[Tensor, Tensor]:
        """Places and values (float32) of ``x`` in these rows (ascending) of a rank's shard; 0 past the end."""
        places = kernels.home(rows, owner, self.ranks, self.seed)
        outside = places[-1:] >= self.numel  # nothing before the last can be
        places.clamp_(max=self.numel - 1)
        values = x.index_select(0, places).float()
        values[-1:].masked_fill_(outside, 0.0)
        return places, values

    def divide(self, places: Tensor, x: Tensor, count: int) -> list[Tensor]:
        """For each rank, ``count`` rows of its shard (int32, ascending; at most ``rows``): those of ``places`` (int32,
        ascending), of more the ones where ``x`` is largest, of fewer filled up with others."""
        order, counts = kernels.deal(places, self.ranks, self.seed)
        found = []
        for mine in order.split(counts.tolist()):
            mine = places.index_select(0, mine)
            if mine.numel() > count:
                sizes = x.index_select(0, mine).float()
                mine = mine.index_select(0, kernels.take_top(sizes, count)[0])
            found.append(_filled(mine // self.ranks, count))
        return found


def _filled(rows: Tensor, count: int) -> Tensor:
    """``rows`` (ascending, distinct) with the lowest others added until there are ``count``."""
    missing = count - rows.numel()
    if not missing:
        return rows
    low = int((rows < count).sum())
    taken = torch.zeros(count, dtype=torch.bool, device=rows.device)
    taken[rows[:low].long()] = True
    taken[(~taken).nonzero().squeeze(1)[:missing]] = True
    return torch.cat((taken.nonzero().squeeze(1).int(), rows[low:]))
