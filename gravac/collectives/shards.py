"""Shards: the elements of a bucket, dealt out to the ranks by a hash."""

from typing import NamedTuple

from torch import Tensor

from gravac import kernels
from gravac.compressors.base import Key

_SEED_BITS = 2**31 - 1


class Shards(NamedTuple):
    """A tensor of ``numel`` elements split among ``ranks`` ranks, equally many for each.

    A row is ``ranks`` neighboring elements. Each rank owns one element of each row; which one differs from row to row
    (``gravac.kernels.draws``). A selector's elements come in clusters (a layer, a column), and this split gives each
    rank about as many of them. The last row may reach past ``numel``; the missing elements stand for the last one.
    """

    numel: int
    ranks: int
    seed: int

    @classmethod
    def of(cls, numel: int, ranks: int, key: Key) -> "Shards":
        """Return the split of a step and bucket, the same on all ranks."""
        return cls(numel, ranks, key.shared_seed() & _SEED_BITS)

    @property
    def rows(self) -> int:
        """Elements of each shard, those past the end included."""
        return -(-self.numel // self.ranks)

    def positions(self, rows: Tensor, owner: int) -> Tensor:
        """Return the positions in the tensor (int32) of these rows of a rank's shard."""
        return kernels.global_positions(rows, owner, self.ranks, self.seed).clamp_(max=self.numel - 1)

    def read(self, x: Tensor, rows: Tensor, owner: int) -> tuple[Tensor, Tensor]:
        """Read these rows (ascending) of a rank's shard of ``x``.

        Returns:
            Positions (int32) and values (float32); the value is 0 past the end.
        """
        positions = kernels.global_positions(rows, owner, self.ranks, self.seed)
        outside = positions[-1:] >= self.numel  # only the last one can be
        positions.clamp_(max=self.numel - 1)
        values = x.index_select(0, positions).float()
        values[-1:].masked_fill_(outside, 0.0)
        return positions, values
