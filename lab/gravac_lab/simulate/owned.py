"""Owner-chosen support, a prototype: each rank chooses among the elements that it owns, and all ranks sum those."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from gravac import kernels
from gravac.aggregators import AGGREGATORS, Aggregator
from gravac.collectives import Communicator, Exchange
from gravac.collectives.base import SummedValues
from gravac.collectives.cost import ring_bytes
from gravac.compressors import Key
from gravac.compressors.base import Payload, kept_count
from gravac.compressors.quantize.nearest import Nearest
from gravac.compressors.sparse.topk import TopK
from gravac.kernels import SelectionHint
from gravac.memories import Bucket


class OwnedSupport(Aggregator):
    """Rank r owns the r-th of N equal parts of a bucket, and chooses the largest elements of its own gradient and
    residual there. The positions are gathered; every rank then sends its values at all of them, rounded.

    Payloads do not grow with the number of ranks. The sum is exact here; its bytes are those of values that stay
    rounded on their way.

    ``levels``: of each value.
    """

    name = "owned"
    source = "ScaleCom (Chen et al. 2020) with a leader for each part"
    selector: ClassVar = TopK()

    def __init__(self, group: dist.ProcessGroup | Communicator, *, levels: int = 15) -> None:
        super().__init__(group)
        self.quantizer = Nearest(levels=levels)

    def prepare(
        self,
        tensors: Bucket,
        x: Tensor,
        cfs: Sequence[float],
        key: Key,
        dtype: torch.dtype,
        hint: SelectionHint | None = None,
    ) -> "_Owned":
        return _Owned(self, x, key)

    def wire_bytes(self, tensors: Bucket, cf: float, dtype: torch.dtype, ranks: int) -> int:
        n = sum(tensors.numels)
        counts = [kept_count(end - start, cf) for start, end in self.parts(n)]
        positions = [
            kernels.position_bytes(k, end - start)
            for k, (start, end) in zip(counts, self.parts(n), strict=True)
        ]
        return max(positions) + self.quantizer.wire_bytes(sum(counts), 1.0, dtype)

    def parts(self, n: int) -> list[tuple[int, int]]:
        """Return where the part of each rank begins and ends."""
        ranks = self.communicator.size
        return [(n * rank // ranks, n * (rank + 1) // ranks) for rank in range(ranks)]


@dataclass(slots=True)
class _Owned:
    owner: OwnedSupport
    x: Tensor
    key: Key

    def kept_energy(self, cf: float) -> float:
        start, end = self.owner.parts(self.x.numel())[self.owner.communicator.rank]
        own = self.x[start:end]
        return (
            float(own.abs().topk(kept_count(end - start, cf)).values.square().sum())
            * self.owner.communicator.size
        )

    def send(self, cf: float) -> Exchange:
        owner, x, n = self.owner, self.x, self.x.numel()
        parts = owner.parts(n)
        counts = [kept_count(end - start, cf) for start, end in parts]
        start, end = parts[owner.communicator.rank]
        mine = x[start:end].abs().topk(counts[owner.communicator.rank]).indices.sort().values + start
        most = max(counts)
        padded = torch.full((most,), -1, dtype=torch.int64)
        padded[: len(mine)] = mine
        every = torch.empty(most * len(parts), dtype=torch.int64)
        owner.communicator.gather(every, padded).wait()
        support = every[every >= 0].int()
        quantizer = owner.quantizer
        values = quantizer.decode(quantizer.compress(x[support.long()].float(), 1.0, self.key, torch.float32))
        total = values * owner.share
        work = owner.communicator.sum(total)
        places = max(kernels.position_bytes(k, b - a) for k, (a, b) in zip(counts, parts, strict=True))
        number = quantizer.wire_bytes(sum(counts), 1.0, torch.float32)
        ranks = len(parts)
        sent = Payload((values, support), support, n, cf, self.key)
        mean = Payload((total, support), support, n, cf, self.key)
        return SummedValues(
            work,
            (ranks - 1) * places + ring_bytes(number, ranks),
            places + number,
            owner.selector,
            sent,
            mean,
        )


AGGREGATORS[OwnedSupport.name] = OwnedSupport
