"""All-gather of packed payloads: for codecs whose ranks keep different elements, or different numbers of them."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gravac.collectives import cost
from gravac.collectives.base import Collective, Exchange, Workload
from gravac.collectives.cost import Network
from gravac.collectives.messages import HEADER_BYTES, SIZE_BYTES, Header, exchange_sizes, padded
from gravac.compressors.base import Key, Layout, Payload
from gravac.kernels import Scalar


@dataclass(slots=True)
class Gathered(Exchange):
    """A message from each rank. The mean is that of their payloads."""

    sent: Tensor  # kept alive until the collective is done
    arrived: Tensor  # uint8, a row of equal length for each rank
    sizes: list[int]  # bytes of each message without padding
    header: Header
    own: Payload  # of this rank, which needs no reading

    def __post_init__(self) -> None:
        # Of all ranks. Those that sent zeros because compressing failed do not count as senders.
        self.of = len(self.sizes)

    def mean_into(self, out: Tensor) -> None:
        out.zero_()
        if self.senders is not None:
            self.senders.zero_()
        header, share = self.header, 1.0 / len(self.sizes)
        for rank, size in enumerate(self.sizes):  # in rank order everywhere: same rounding on all ranks
            own = rank == header.key.rank
            payload = self.own if own else header.read(self.arrived[rank, :size], rank)
            header.layout.codec.decompress(payload, out, share)
            if self.senders is not None and payload.support is not None:
                _count(self.senders, payload.support, header.layout.codec.energy(payload))

    def tensors(self) -> Iterator[Tensor]:
        yield from (*Exchange.tensors(self), self.sent, self.arrived, *self.own.tensors())


def _count(senders: Tensor, support: Tensor, energy: Scalar) -> None:
    """Add one to the elements that a rank sent, whose payload has this energy."""
    if isinstance(
        energy, Tensor
    ):  # positions that were damaged on the way are out of range, and the mean is NaN
        one = (energy != 0.0).to(torch.uint8).expand(support.shape)
        senders.index_add_(0, support.clamp(0, senders.numel() - 1), one)
    elif energy:
        one = torch.ones(1, device=senders.device, dtype=torch.uint8).expand(support.shape)
        senders.index_add_(0, support, one)


class Gather(Collective):
    """Sends each payload to every other rank: (N-1) payloads per rank, less than a dense ring while N < 2 wire CF.

    Each message begins with a header of eight bytes that identifies it. Where sizes vary, ranks first exchange theirs
    (8 bytes each, and a wait), then pad their messages to the largest, and half of the header is a checksum.
    """

    name = "gather"
    source = "Strom 2015, Scalable distributed DNN training using commodity GPU cloud computing"

    def exchange(self, layout: Layout, payload: Payload, x: Tensor | None, key: Key) -> Exchange:
        header, ranks, size_bytes = Header(layout, key), self.world_size, 0
        message = header.pack(payload.parts)
        sizes = [message.numel()] * ranks
        if layout.specs is None:
            sizes = [row[0] for row in exchange_sizes(self.communicator, [message])]
            message, size_bytes = padded([message], max(sizes))[0], SIZE_BYTES
        arrived = message.new_empty((ranks, message.numel()))
        work = self.communicator.gather(arrived.view(-1), message)
        nbytes = message.numel() + size_bytes
        return Gathered(
            work,
            (ranks - 1) * nbytes,
            nbytes,
            layout.codec,
            payload,
            message,
            arrived,
            sizes,
            header,
            payload,
        )

    def payload_bytes(self, workload: Workload) -> int:
        return HEADER_BYTES + workload.wire_bytes

    def link_bytes(self, workload: Workload) -> int:
        return (workload.ranks - 1) * self.payload_bytes(workload)

    @staticmethod
    def payloads_decoded(ranks: int) -> int:
        return ranks

    def seconds(self, network: Network, workload: Workload) -> float:
        decoding = self.payloads_decoded(workload.ranks) * workload.decoding
        work = cost.handling(workload.ranks, decoding + 0.2 * workload.numel)
        if not workload.codec.traits.fixed_size:
            work += cost.all_gather(network, workload.ranks, SIZE_BYTES)
        return cost.all_gather(network, workload.ranks, self.payload_bytes(workload)) + work
