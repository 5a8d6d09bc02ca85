"""All-reduce of the values: for linear codecs, and for plain dense gradients in place."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gravac.collectives.base import Collective, Exchange, ring_bytes
from gravac.collectives.communicator import Work
from gravac.compressors.base import Compressor, Key, Payload


@dataclass(slots=True)
class _Reduced:
    work: Work
    sent_bytes: int
    payload_bytes: int
    compressor: Compressor
    payload: Payload

    def mean_into(self, out: Tensor) -> None:
        out.zero_()
        self.compressor.decompress(self.payload, out)


@dataclass(slots=True)
class _InPlace:
    work: Work
    sent_bytes: int
    payload_bytes: int

    def mean_into(self, out: Tensor) -> None:
        return  # the buffer that was reduced is the output


class AllReduce(Collective):
    """Sum the payloads' values across ranks; the support is the same everywhere, so one ring does it."""

    name = "all_reduce"
    source = "Patarasuk and Yuan 2009, bandwidth optimal all-reduce"

    def exchange(
        self, compressor: Compressor, payload: Payload, cf: float, key: Key, dtype: torch.dtype
    ) -> Exchange:
        (own,) = payload.parts
        values = own * self.share
        work = self.communicator.sum(values)
        sent_bytes = self.link_bytes(values.nbytes, self.world_size)
        return _Reduced(work, sent_bytes, values.nbytes, compressor, replace(payload, parts=(values,)))

    def reduce_in_place(self, gradient: Tensor) -> Exchange:
        """Dense mean of a whole bucket, written over it: the same operations in the same order as DDP without a hook,
        hence bit-identical to it (promise P3)."""
        gradient.mul_(self.share)
        work = self.communicator.sum(gradient)
        return _InPlace(work, self.link_bytes(gradient.nbytes, self.world_size), gradient.nbytes)

    @staticmethod
    def link_bytes(payload_bytes: int, world_size: int) -> int:
        return ring_bytes(payload_bytes, world_size)
