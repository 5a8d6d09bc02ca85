"""All-reduce of values: for linear codecs, and in place for plain dense gradients."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor

from gravac.collectives import cost
from gravac.collectives.base import Collective, Exchange, SummedValues, Transfer, Workload
from gravac.collectives.cost import Network, ring_bytes
from gravac.compressors.base import Key, Layout, Payload


@dataclass(slots=True)
class _Decoded(Exchange):
    mean: Tensor

    def mean_into(self, out: Tensor) -> None:
        out.copy_(self.mean)

    def tensors(self) -> Iterator[Tensor]:
        yield from (*Exchange.tensors(self), self.mean)


@dataclass(slots=True)
class InPlace(Transfer):
    """A dense reduction, which itself writes the output."""

    def mean_into(self, out: Tensor) -> None:
        return

    def tensors(self) -> Iterator[Tensor]:
        return iter(())


def _nbytes(gradient: Tensor) -> int:
    """Return the bytes of a gradient, which are those of values and positions if it is sparse."""
    if gradient.is_sparse:
        return gradient._values().nbytes + gradient._indices().nbytes
    return gradient.nbytes


class AllReduce(Collective):
    """Sums the values of linear codecs' payloads in one all-reduce, because their support is the same on all ranks.

    Other codecs: sums what their payloads decode to. That takes the bytes of a dense step, 4n, and is still faster for
    n ranks and a wire CF below n/2, where the gathered payloads are larger together.
    """

    name = "all-reduce"
    source = "Patarasuk and Yuan 2009, bandwidth optimal all-reduce"

    def exchange(self, layout: Layout, payload: Payload, x: Tensor | None, key: Key) -> Exchange:
        codec = layout.codec
        values = (
            payload.parts[0] * self.share if codec.traits.linear else codec.decode(payload).mul_(self.share)
        )
        work, nbytes = self.communicator.sum(values), values.nbytes
        sent_bytes = ring_bytes(nbytes, self.world_size)
        if not codec.traits.linear:
            return _Decoded(work, sent_bytes, nbytes, codec, payload, values)
        mean = replace(payload, parts=(values,))
        return SummedValues(work, sent_bytes, nbytes, codec, payload, mean, codec, values)

    def reduce_in_place(self, gradient: Tensor) -> Transfer:
        """Replace a whole bucket by its dense mean.

        These are the operations of DDP without a hook, in the same order, so the result is bit-identical (promise P3).
        DDP divides the values of sparse gradients, and multiplies those of dense ones.

        Args:
            gradient: Dense or sparse; overwritten.
        """
        if gradient.is_sparse:
            gradient.div_(self.world_size)
        else:
            gradient.mul_(self.share)
        work, nbytes = self.communicator.sum(gradient), _nbytes(gradient)
        return InPlace(work, ring_bytes(nbytes, self.world_size), nbytes)

    def payload_bytes(self, workload: Workload) -> int:
        return workload.wire_bytes if workload.codec.traits.linear else 4 * workload.numel

    def link_bytes(self, workload: Workload) -> int:
        return ring_bytes(self.payload_bytes(workload), workload.ranks)

    def seconds(self, network: Network, workload: Workload) -> float:
        work = cost.handling(1, workload.decoding + 0.3 * workload.numel)
        return cost.all_reduce(network, workload.ranks, self.payload_bytes(workload)) + work
