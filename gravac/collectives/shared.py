"""Shared support: ranks agree on the positions first, and all of them send their values there."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from gravac import kernels
from gravac.collectives import cost
from gravac.collectives.all_reduce import AllReduce
from gravac.collectives.base import Collective, Exchange, Workload
from gravac.collectives.communicator import Communicator
from gravac.collectives.compressed_all_reduce import CompressedAllReduce, is_coarse
from gravac.collectives.cost import Network, children
from gravac.collectives.messages import HEADER_BYTES, Header, split_codec
from gravac.collectives.owners import Shards
from gravac.compressors.base import Compressor, Key, Layout, Payload, kept_count
from gravac.compressors.dense import Dense

Leader = Literal["owners", "turns", "largest"]
_DENSE = Dense()
_ENERGY_BYTES = 8


@dataclass(slots=True)
class _InFlight(Exchange):
    values: Exchange

    def mean_into(self, out: Tensor) -> None:
        out.zero_()
        assert self.payload.support is not None
        mean = torch.empty_like(self.payload.values)
        self.values.mean_into(mean)
        kernels.scatter_add(out, self.payload.support, mean)

    def tensors(self) -> Iterator[Tensor]:
        yield from (*Exchange.tensors(self), *self.values.tensors())


class SharedSupport(Collective):
    """All ranks send their values at the same k positions, so the bytes do not grow with the number of ranks. What a
    rank had at other positions stays in its error memory, exactly.

    ``leader`` says who chooses the positions. ``owners``: a hash deals the elements out to the ranks, another deal in
    each step, and each rank takes the k/n largest of its own gradient among its elements. An all-gather brings them to
    all. ``turns``: one rank, which rotates by step and bucket, broadcasts its own k. ``largest``: the rank whose own k
    elements have the most energy, for one more round of 8 bytes.

    For Top-k and similar codecs. Values that a compressed all-reduce can carry (``topk+nearest:levels=15``,
    ``topk+bf16``) are sent by it, and the error of both roundings stays in memories; others are summed as float32. The
    sum has k elements where a gather has up to n·k, so a step delivers less.
    """

    name = "shared"
    source = (
        "Chen et al. 2020, ScaleCom, cyclic local Top-k (leader=turns, and owners for each share of the elements); "
        "Tyagi and Swany 2023, AR-Topk, STAR and VAR (leader=largest)"
    )
    examples = ("leader=turns", "leader=largest")
    needs = "a selector that sends a fixed number of elements, such as topk"
    sends_all = False

    def __init__(self, group: dist.ProcessGroup | Communicator, *, leader: Leader = "owners") -> None:
        super().__init__(group)
        if leader not in get_args(Leader):
            raise ValueError(f"shared: leader={leader!r} must be one of {', '.join(get_args(Leader))}")
        self.leader = leader
        self._summed, self._compressed = AllReduce(group), CompressedAllReduce(group)
        self.sync_free = leader != "largest"

    def exchange(self, layout: Layout, payload: Payload, x: Tensor | None, key: Key) -> Exchange:
        codecs = split_codec(layout.codec)
        assert codecs is not None
        assert payload.support is not None
        n = layout.numel
        # Damaged positions would be those of this rank alone, and its values would be added to others.
        header = Header(layout, key, checked=not kernels.on_device(payload.values))
        choose = self._owners_choice if self.leader == "owners" else self._leaders_choice
        support, sent_bytes, nbytes = choose(layout, payload, x, header)
        outside, support = support >= n, support.clamp_max(n - 1)
        if x is None:  # a blank payload has the same value everywhere
            own = layout.codec.decode(payload).index_select(0, payload.support[:1]).expand(support.numel())
        else:
            own = x.index_select(0, support).float()
        own = own.masked_fill(outside, 0.0)
        way, sizes = self._values(Workload.of(layout, self.world_size))
        of_values = sizes.codec.layout(own.numel(), sizes.cf, sizes.dtype)
        coded = sizes.codec.compress(own, sizes.cf, key, sizes.dtype)
        values = way.exchange(of_values, coded, own, key)
        return _InFlight(
            values.work,
            sent_bytes + values.sent_bytes,
            nbytes + values.payload_bytes,
            codecs[0],
            Payload((values.payload.values,), support, n, layout.cf, key),
            values,
        )

    @staticmethod
    def fits(compressor: Compressor) -> bool:
        return split_codec(compressor) is not None

    def _owners_choice(
        self, layout: Layout, payload: Payload, x: Tensor | None, header: Header
    ) -> tuple[Tensor, int, int]:
        """Return the positions that all ranks chose in their shards, int32, and the bytes sent and handed over.

        Those past the end, which stand for nothing, are at least n.
        """
        ranks, rank, device = self.world_size, self.communicator.rank, payload.values.device
        count, shards = _share(layout.numel, layout.cf, ranks), Shards.of(layout.numel, ranks, header.key)
        rows = torch.arange(count if x is None else shards.rows, dtype=torch.int32, device=device)
        if x is not None:
            rows, _ = kernels.take_top(shards.read(x, rows, rank)[1], count)
        message = header.pack((kernels.pack_positions(rows, shards.rows),))
        every = message.new_empty(ranks, message.numel())
        self.communicator.gather(every.view(-1), message).wait()
        chosen = []
        for owner, packed in enumerate(every):
            rows = kernels.unpack_positions(header.strip(packed, owner), count, shards.rows)
            chosen.append(kernels.global_positions(rows, owner, ranks, shards.seed))
        return torch.cat(chosen), (ranks - 1) * message.nbytes, message.nbytes

    def _leaders_choice(
        self, layout: Layout, payload: Payload, x: Tensor | None, header: Header
    ) -> tuple[Tensor, int, int]:
        """Return the positions that one rank chose, as ``_owners_choice``."""
        ranks, rank, key = self.world_size, self.communicator.rank, header.key
        assert payload.support is not None
        leader, energies = (key.step + key.bucket) % ranks, 0
        if self.leader == "largest":
            energy, energies = layout.codec.energy(payload), _ENERGY_BYTES
            mine = torch.as_tensor(energy, dtype=torch.float64, device=payload.values.device).reshape(1)
            every = mine.new_empty(ranks)
            self.communicator.gather(every, mine).wait()
            leader = int(every.nan_to_num(nan=-1.0).argmax())  # the first of equals, on all ranks
        message = header.pack(payload.parts[-1:])
        self.communicator.broadcast(message, leader).wait()
        packed, support = header.strip(message, leader), payload.support.int()
        if rank != leader:
            support = kernels.unpack_positions(packed, support.numel(), layout.numel).int()
        sent_bytes = children(ranks, rank, leader) * message.nbytes + (ranks - 1) * energies
        return support, sent_bytes, message.nbytes + energies

    def payload_bytes(self, workload: Workload) -> int:
        way, values = self._values(workload)
        return self._energies + self._position_bytes(workload) + way.payload_bytes(values)

    def link_bytes(self, workload: Workload) -> int:
        way, values = self._values(workload)
        ranks, positions = workload.ranks, self._position_bytes(workload)
        first = (ranks - 1) * (positions if self.leader == "owners" else self._energies)
        if self.leader != "owners":
            first += positions * (ranks - 1) // ranks
        return first + way.link_bytes(values)

    def seconds(self, network: Network, workload: Workload) -> float:
        way, values = self._values(workload)
        ranks, positions = workload.ranks, self._position_bytes(workload)
        if self.leader == "owners":
            first = cost.all_gather(network, ranks, positions)
            first += cost.handling(ranks, 1.3 * workload.numel / ranks)
        else:
            first = cost.broadcast(network, ranks, positions)
            first += cost.all_gather(network, ranks, self._energies) if self._energies else 0.0
        work = cost.handling(1, 1.6 * workload.decoding + 0.2 * workload.numel)
        return first + way.seconds(network, values) + work

    def _values(self, workload: Workload) -> tuple[Collective, Workload]:
        """Return how values are sent, and what of them."""
        codec, numel, cf, dtype, ranks = workload
        codecs = split_codec(codec)
        assert codecs is not None
        count = kept_count(numel, cf)
        if self.leader == "owners":
            count = ranks * _share(numel, cf, ranks)
        rounded = Workload(codecs[1], count, 1.0, dtype, ranks)
        if CompressedAllReduce.fits(codecs[1]) and not is_coarse(rounded):
            return self._compressed, rounded
        return self._summed, Workload(_DENSE, count, 1.0, torch.float32, ranks)

    def _position_bytes(self, workload: Workload) -> int:
        """Return the bytes of a message with positions."""
        count, numel = kept_count(workload.numel, workload.cf), workload.numel
        if self.leader == "owners":
            count, numel = _share(numel, workload.cf, workload.ranks), -(-numel // workload.ranks)
        return HEADER_BYTES + kernels.position_bytes(count, numel)

    @property
    def _energies(self) -> int:
        return _ENERGY_BYTES if self.leader == "largest" else 0


def _share(numel: int, cf: float, ranks: int) -> int:
    """Return how many positions each of the owners chooses."""
    return -(-kept_count(numel, cf) // ranks)
