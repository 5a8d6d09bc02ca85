"""Shared support: one rank chooses the elements, and all ranks sum theirs at those positions."""

from dataclasses import replace
from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from gravac import kernels
from gravac.collectives import cost
from gravac.collectives.base import Collective, Exchange, SummedValues, Workload
from gravac.collectives.communicator import Communicator
from gravac.collectives.cost import Network, children, ring_bytes
from gravac.collectives.messages import HEADER_BYTES, Header, split_codec
from gravac.compressors.base import Compressor, Key, Layout, Payload, kept_count

Leader = Literal["turns", "largest"]


class SharedSupport(Collective):
    """Broadcasts the leader's k positions, packed, then all-reduces k float32 values. What a rank had at other
    positions stays in its error memory, exactly.

    ``leader``: ``turns`` rotates over the ranks by step and bucket. ``largest`` takes the rank whose own k elements
    have the most energy, for one more round of 8 bytes.

    For Top-k and similar codecs. Quantized values are not supported: a sum of rounded values would be rounded again on
    its way, and no error memory would hold that error. About 2 (n-1)/n · 4k bytes pass a link, however many ranks there
    are. The sum has k elements where a gather has up to n·k, so a step delivers less.
    """

    name = "shared"
    source = (
        "Chen et al. 2020, ScaleCom, cyclic local Top-k (leader=turns); Tyagi and Swany 2023, AR-Topk, STAR and "
        "VAR (leader=largest)"
    )
    examples = ("leader=largest",)
    needs = "a selector that sends a fixed number of elements, such as topk"
    sends_all = False

    def __init__(self, group: dist.ProcessGroup | Communicator, *, leader: Leader = "turns") -> None:
        super().__init__(group)
        if leader not in get_args(Leader):
            raise ValueError(f"shared: leader={leader!r} must be one of {', '.join(get_args(Leader))}")
        self.leader = leader
        self.sync_free = leader == "turns"

    def exchange(self, layout: Layout, payload: Payload, x: Tensor | None, key: Key) -> Exchange:
        codecs = split_codec(layout.codec)
        assert codecs is not None
        assert payload.support is not None
        n, ranks, rank = layout.numel, self.world_size, self.communicator.rank
        leader = self._leader(layout.codec, payload, key)
        # Damaged positions would be those of this rank alone, and its values would be added to others.
        header = Header(layout, key, checked=not kernels.on_device(payload.values))
        message = header.pack(payload.parts[-1:])
        self.communicator.broadcast(message, leader).wait()
        packed, support = header.strip(message, leader), payload.support.int()
        if rank != leader:
            support = kernels.unpack_positions(packed, support.numel(), n).int()
        # A blank payload has the same value everywhere, so its own positions do not matter.
        x, source = (layout.codec.decode(payload), payload.support) if x is None else (x, support)
        own = x[source.long()].float()
        values = own * self.share
        work = self.communicator.sum(values)
        sent = Payload((own, packed), support, n, payload.cf, key)
        sent_bytes = children(ranks, rank, leader) * message.nbytes + ring_bytes(values.nbytes, ranks)
        return SummedValues(
            work,
            sent_bytes + (ranks - 1) * self._energy_bytes,
            message.nbytes + values.nbytes + self._energy_bytes,
            codecs[0],
            sent,
            replace(sent, parts=(values, packed)),
            codecs[0],
            values,
        )

    @staticmethod
    def fits(compressor: Compressor) -> bool:
        return split_codec(compressor) is not None

    def _leader(self, compressor: Compressor, payload: Payload, key: Key) -> int:
        if self.leader == "turns":
            return (key.step + key.bucket) % self.world_size
        energy, device = compressor.energy(payload), payload.values.device
        mine = torch.as_tensor(energy, dtype=torch.float64, device=device).reshape(1)
        every = mine.new_empty(self.world_size)
        self.communicator.gather(every, mine).wait()
        return int(every.nan_to_num(nan=-1.0).argmax())  # the first of equals, on all ranks

    def payload_bytes(self, workload: Workload) -> int:
        return sum(self._sizes(workload))

    def link_bytes(self, workload: Workload) -> int:
        energies, positions, values = self._sizes(workload)
        ranks = workload.ranks
        return (ranks - 1) * energies + positions * (ranks - 1) // ranks + ring_bytes(values, ranks)

    def seconds(self, network: Network, workload: Workload) -> float:
        energies, positions, values = self._sizes(workload)
        leader = cost.all_gather(network, workload.ranks, energies) if energies else 0.0
        first = cost.broadcast(network, workload.ranks, positions)
        work = cost.handling(2, 1.6 * workload.decoding + 0.2 * workload.numel)
        return leader + first + cost.all_reduce(network, workload.ranks, values) + work

    def _sizes(self, workload: Workload) -> tuple[int, int, int]:
        """Return the bytes that are handed to each round: energies, positions, values."""
        k = kept_count(workload.numel, workload.cf)
        return self._energy_bytes, HEADER_BYTES + kernels.position_bytes(k, workload.numel), 4 * k

    @property
    def _energy_bytes(self) -> int:
        return 0 if self.leader == "turns" else 8
