"""A collective as somebody would add it to gravac/collectives: one file, and its name in ``COLLECTIVES``."""

from torch import Tensor

from gravac.collectives import cost
from gravac.collectives.base import Collective, Exchange, Workload
from gravac.collectives.cost import Network, children
from gravac.collectives.gather import Gathered
from gravac.collectives.messages import HEADER_BYTES, Header
from gravac.compressors.base import Compressor, Key, Layout, Payload


class Relay(Collective):
    """Broadcasts the payload of one rank after another."""

    name = "relay"
    source = "the example of a collective that is added"
    needs = "a codec of fixed size, such as topk"

    def exchange(self, layout: Layout, payload: Payload, x: Tensor | None, key: Key) -> Exchange:
        header, ranks, rank = Header(layout, key), self.world_size, self.communicator.rank
        message = header.pack(payload.parts)
        nbytes = message.numel()
        arrived = message.new_empty((ranks, nbytes))
        arrived[rank] = message
        for root in range(ranks):
            work = self.communicator.broadcast(arrived[root], root)
            if root < ranks - 1:
                work.wait()
        sent_bytes = nbytes * sum(children(ranks, rank, root) for root in range(ranks))
        sizes = [nbytes] * ranks
        return Gathered(
            work, sent_bytes, ranks * nbytes, layout.codec, payload, message, arrived, sizes, header, payload
        )

    @staticmethod
    def fits(compressor: Compressor) -> bool:
        return compressor.traits.fixed_size

    def payload_bytes(self, workload: Workload) -> int:
        return workload.ranks * (HEADER_BYTES + workload.wire_bytes)

    def link_bytes(self, workload: Workload) -> int:
        return (workload.ranks - 1) * (HEADER_BYTES + workload.wire_bytes)

    @staticmethod
    def payloads_decoded(ranks: int) -> int:
        return ranks

    def seconds(self, network: Network, workload: Workload) -> float:
        ranks, nbytes = workload.ranks, HEADER_BYTES + workload.wire_bytes
        work = cost.handling(ranks, ranks * workload.decoding + 0.2 * workload.numel)
        return ranks * cost.broadcast(network, ranks, nbytes) + work
