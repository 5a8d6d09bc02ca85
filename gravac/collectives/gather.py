"""All-gather of packed payloads: for codecs whose ranks keep different elements, or different numbers of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from gravac.collectives import cost
from gravac.collectives.base import Collective, Exchange, Workload
from gravac.collectives.cost import Network
from gravac.collectives.messages import (
    HEADER_BYTES,
    SIZE_BYTES,
    exchange_sizes,
    pack_payload,
    padded,
    unpack_payload,
)
from gravac.compressors.base import Compressor, Key, Payload


@dataclass(slots=True)
class _Gathered(Exchange):
    message: Tensor  # kept alive until the collective is done
    arrived: Tensor  # uint8, world_size messages of equal length
    sizes: list[int]  # bytes of each message without padding
    key: Key
    dtype: torch.dtype
    share: float

    def mean_into(self, out: Tensor) -> None:
        out.zero_()
        messages, own = self.arrived.view(len(self.sizes), -1), self.payload
        layout = self.codec.layout(own.numel, own.cf, self.dtype)
        for rank, size in enumerate(self.sizes):  # in rank order everywhere: same rounding on all ranks
            payload, key = own, self.key._replace(rank=rank)
            if key != self.key:
                message = unpack_payload(messages[rank, :size], own, self.codec, key, self.dtype)
                payload = layout.unpack(message, key)
            self.codec.decompress(payload, out, self.share)


class Gather(Collective):
    """Sends each payload to every other rank: (N-1) payloads per rank, less than a dense ring while N < 2 wire CF.

    Each message begins with a header of eight bytes that identifies it. Where sizes vary, ranks first exchange theirs
    (8 bytes each, and a wait), then pad their messages to the largest, and half of the header is a checksum.
    """

    name = "gather"
    source = "Strom 2015, Scalable distributed DNN training using commodity GPU cloud computing"

    def exchange(
        self, compressor: Compressor, payload: Payload, x: Tensor | None, key: Key, dtype: torch.dtype
    ) -> Exchange:
        message, size_bytes = pack_payload(payload, compressor, key, dtype), 0
        sizes = [message.numel()] * self.world_size
        if not compressor.traits.fixed_size:
            sizes = [row[0] for row in exchange_sizes(self.communicator, [message])]
            message, size_bytes = padded([message], max(sizes))[0], SIZE_BYTES
        arrived = message.new_empty(self.world_size * message.numel())
        work = self.communicator.gather(arrived, message)
        payload_bytes = message.numel() + size_bytes
        return _Gathered(
            work,
            (self.world_size - 1) * payload_bytes,
            payload_bytes,
            compressor,
            payload,
            message,
            arrived,
            sizes,
            key,
            dtype,
            self.share,
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
