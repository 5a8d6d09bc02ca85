"""Shared support: one rank says which elements are sent, and all ranks sum theirs at those places."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from gravac import kernels
from gravac.collectives import cost
from gravac.collectives.base import Collective, Exchange, Load
from gravac.collectives.communicator import Communicator, Work
from gravac.collectives.cost import Network, children, ring_bytes
from gravac.collectives.messages import HEADER_BYTES, facts_of, marked, parts, unmarked
from gravac.compressors.base import Compressor, Key, Payload, kept

Leader = Literal["turns", "largest"]


@dataclass(slots=True)
class _Flight:
    work: Work
    sent_bytes: int
    payload_bytes: int
    codec: Compressor
    payload: Payload
    mean: Payload

    def mean_into(self, out: Tensor) -> None:
        out.zero_()
        self.codec.decompress(self.mean, out)


class SharedSupport(Collective):
    """The leader's k places are broadcast, packed; then one all-reduce of k float32 values. What a rank had at other
    places stays in its error memory, exactly.

    ``leader``: ``turns`` goes round the ranks by step and bucket; ``largest`` takes the rank whose own k elements have
    the most energy, for a round of 8 bytes more. For Top-k and the like; quantisers behind them are left out: a sum of
    rounded values would be rounded again on its way, which no memory keeps. About 2 (n-1)/n · 4k bytes on a link,
    however many ranks there are. The sum has k elements where a gather has up to n·k: it tells less a step.
    """

    name = "shared"
    source = (
        "Chen et al. 2020, ScaleCom, cyclic local Top-k (leader=turns); Tyagi and Swany 2023, AR-Topk, STAR and "
        "VAR (leader=largest)"
    )
    whole = False

    def __init__(self, group: dist.ProcessGroup | Communicator, *, leader: Leader = "turns") -> None:
        super().__init__(group)
        if leader not in get_args(Leader):
            raise ValueError(f"shared: leader={leader!r} must be one of {', '.join(get_args(Leader))}")
        self.leader = leader

    def exchange(
        self,
        compressor: Compressor,
        payload: Payload,
        x: Tensor | None,
        cf: float,
        key: Key,
        dtype: torch.dtype,
    ) -> Exchange:
        made = parts(compressor)
        assert made is not None
        assert payload.support is not None
        n, k, ranks, rank = payload.numel, kept(payload.numel, cf), self.world_size, self.communicator.rank
        leader, told = self._leader(compressor, payload, key), self._told_bytes
        message = marked(payload.parts[-1:], facts := facts_of(payload, compressor, key, dtype))
        self.communicator.broadcast(message, leader).wait()
        places = unmarked(message, facts, key._replace(rank=leader))
        support = (payload.support if rank == leader else kernels.unpack_positions(places, k, n)).int()
        # A blank payload has the same value everywhere, so its own places do not matter.
        x, at = (compressor.decode(payload), payload.support) if x is None else (x, support)
        own = x[at.long()].float()
        values = own * self.share
        work = self.communicator.sum(values)
        sent = Payload((own, places), support, n, cf, key)
        sent_bytes = children(ranks, rank, leader) * message.nbytes + ring_bytes(values.nbytes, ranks)
        return _Flight(
            work,
            sent_bytes + (ranks - 1) * told,
            message.nbytes + values.nbytes + told,
            made[0],
            sent,
            replace(sent, parts=(values, places)),
        )

    @staticmethod
    def fits(compressor: Compressor) -> bool:
        return parts(compressor) is not None

    def _leader(self, compressor: Compressor, payload: Payload, key: Key) -> int:
        if self.leader == "turns":
            return (key.step + key.bucket) % self.world_size
        mine = torch.tensor([compressor.energy(payload)], dtype=torch.float64, device=payload.values.device)
        every = mine.new_empty(self.world_size)
        self.communicator.gather(every, mine).wait()
        return int(every.nan_to_num(nan=-1.0).argmax())  # the first of equals, on all ranks

    def payload_bytes(self, load: Load) -> int:
        return sum(self._sizes(load))

    def link_bytes(self, load: Load) -> int:
        told, places, values = self._sizes(load)
        ranks = load.ranks
        return (ranks - 1) * told + places * (ranks - 1) // ranks + ring_bytes(values, ranks)

    def seconds(self, network: Network, load: Load) -> float:
        told, places, values = self._sizes(load)
        leader = cost.all_gather(network, load.ranks, told) if told else 0.0
        first = cost.broadcast(network, load.ranks, places)
        work = cost.handling(2, 1.6 * load.decoding + 0.2 * load.numel)
        return leader + first + cost.all_reduce(network, load.ranks, values) + work

    def _sizes(self, load: Load) -> tuple[int, int, int]:
        """Bytes handed to each round: energies, places, values."""
        k = kept(load.numel, load.cf)
        return self._told_bytes, HEADER_BYTES + kernels.position_bytes(k, load.numel), 4 * k

    @property
    def _told_bytes(self) -> int:
        return 0 if self.leader == "turns" else 8
